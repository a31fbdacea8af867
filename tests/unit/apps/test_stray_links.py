"""perdure/apps: nothing comes into an app by a link from outside of its folder."""

from pathlib import Path

import pytest

from perdure.apps import load_app
from tests.unit.apps.problems import are_at, told
from tests.unit.apps.skill_app import FILES, write_app

TOOL = "raise SystemExit('it was imported')\n"


def linked(folder: Path, path: str, to: Path) -> Path:
    """The app in `folder` with a link at `path`."""
    write_app(folder, {path: None})
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).symlink_to(to)
    return folder


@pytest.mark.parametrize(
    "path",
    ["app.yaml", "agents/host.yaml", "skills/tea/SKILL.md", "skills/tea/artifacts/leaves.md", "data/leaves.json"],
)
def test_a_file_from_outside_is_a_mistake_with_its_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "elsewhere").write_text(FILES[path])
    app = load_app(linked(tmp_path / "app", path, tmp_path / "elsewhere"))
    assert are_at(told(app), [path])
    assert (app.agents, app.skills, app.tables) == ((), {}, {})


def test_a_folder_from_outside_is_one_mistake_and_no_tool_of_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "desk.py").write_text(TOOL)
    assert are_at(told(load_app(linked(tmp_path / "app", "tools", tmp_path / "elsewhere"))), ["tools"])


def test_one_that_leads_there_by_way_of_another_is_found_and_so_is_a_dead_one(tmp_path: Path) -> None:
    folder = linked(tmp_path / "app", "skills/tea/artifacts/leaves.md", Path("../../../shared/leaves.md"))
    (folder / "shared").mkdir()
    (folder / "shared" / "leaves.md").symlink_to(tmp_path / "nowhere")
    assert are_at(told(load_app(folder)), ["skills/tea/artifacts/leaves.md"])


def test_links_that_stay_inside_are_read_and_so_is_an_app_that_is_itself_behind_one(tmp_path: Path) -> None:
    folder = linked(tmp_path / "app", "personas/host.md", Path("../shared/host.md"))
    (folder / "shared").mkdir()
    (folder / "shared" / "host.md").write_text(FILES["personas/host.md"])
    (folder / "personas" / "round").symlink_to(".")
    (folder / "notes").symlink_to(tmp_path)
    (tmp_path / "behind").symlink_to(folder)
    for each in (folder, tmp_path / "behind"):
        assert told(load_app(each)) == []
