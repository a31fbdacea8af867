"""Everything of ours is below `perdure`; the folders on top are links that nobody imports through."""

import os
import sys
from pathlib import Path

import pytest

from tests.repo.committed import ROOT

LINKS = ("activities", "api", "examples", "graph", "workflows")


@pytest.mark.parametrize("name", LINKS)
def test_a_folder_on_top_is_a_link_to_the_package(name: str) -> None:
    place = ROOT / name
    written = str(place.readlink()) if place.is_symlink() else place.read_text().strip()  # a checkout without links
    assert written == f"perdure/{name}"
    assert (ROOT / written).is_dir()


def doubles(loaded: dict[str, str]) -> dict[str, list[str]]:
    """Files that are loaded under several names, by module; `__main__` is any module's second name."""
    by_file: dict[str, list[str]] = {}
    for name, file in loaded.items():
        if name != "__main__":
            by_file.setdefault(os.path.realpath(file), []).append(name)
    return {file: sorted(names) for file, names in by_file.items() if len(names) > 1}


def test_no_file_is_loaded_twice() -> None:
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    ours = {name: file for name, file in files.items() if file and Path(file).is_relative_to(ROOT)}
    by_path = tuple(ROOT / each for each in (".venv", "perdure/examples", "perdure/apps/template", "tests/apps"))
    ours = {name: file for name, file in ours.items() if not any(map(Path(file).is_relative_to, by_path))}
    assert len(ours) > 10
    assert not doubles(ours), "import perdure.<name>, never through a link"


def test_a_file_under_two_names_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "b.py").symlink_to("a.py")
    found = doubles(
        {"a": str(tmp_path / "a.py"), "perdure.a": str(tmp_path / "b.py"), "__main__": str(tmp_path / "a.py")}
    )
    assert [*found.values()] == [["a", "perdure.a"]]
