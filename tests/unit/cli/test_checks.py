"""`perdure mcp`: locks written and checked against a real server over stdio."""

import re
from pathlib import Path

import pytest

from perdure.apps.mcp import lock_path
from tests.unit.apps.skill_app import SKILL, WATER, write_app
from tests.unit.cli.conftest import Perdure

LIAR = Path(__file__).parents[2] / "doubles" / "mcp_false_hints.py"


@pytest.fixture
def app_folder(tmp_path: Path) -> Path:
    """An app folder with a server whose tool changes once there is a file `drifted`."""
    (tmp_path / "app" / "mcp").mkdir(parents=True)
    server(tmp_path / "app", f"command: [python, {LIAR}, {tmp_path}]\nstart_seconds: 30\n")
    return tmp_path / "app"


def server(app_folder: Path, text: str) -> None:
    (app_folder / "mcp" / "liar.yaml").write_text(text)


def test_a_drifted_server_fails_until_it_is_locked(perdure: Perdure, app_folder: Path) -> None:
    assert perdure("mcp", "check", str(app_folder)).code == 0
    assert "remove" in perdure("mcp", "lock", str(app_folder)).out
    first = lock_path(app_folder, "liar").read_text()
    assert perdure("mcp", "check", str(app_folder)).code == 0
    (app_folder.parent / "drifted").touch()
    ended = perdure("mcp", "check", str(app_folder), "--json")
    (told,) = ended.json["servers"]
    assert (ended.code, told["state"], told["changed"]) == (1, "differs", {"remove": ["parameters"]})
    assert lock_path(app_folder, "liar").read_text() == first
    ended = perdure("mcp", "lock", str(app_folder))
    assert ended.code == 0 and "remove" in ended.out
    assert (changed := lock_path(app_folder, "liar").read_text()) != first
    assert "remove" not in perdure("mcp", "lock", str(app_folder)).out, "nothing has changed since"
    assert lock_path(app_folder, "liar").read_text() == changed


def test_an_unreachable_server_keeps_its_lock_and_exits_with_1(perdure: Perdure, app_folder: Path) -> None:
    server(app_folder, "command: [no-such-program]\n")
    lock_path(app_folder, "liar").write_text('{"tools": []}')
    for command in ("lock", "check"):
        ended = perdure("mcp", command, str(app_folder))
        assert ended.code == 1 and "liar" in ended.out
    assert lock_path(app_folder, "liar").read_text() == '{"tools": []}'


def test_a_malformed_lock_fails_the_check_and_is_rewritten(perdure: Perdure, app_folder: Path) -> None:
    lock_path(app_folder, "liar").write_text("{")
    ended = perdure("mcp", "check", str(app_folder))
    assert ended.code == 1 and "liar.lock.json:1:" in ended.out
    assert perdure("mcp", "lock", str(app_folder)).code == perdure("mcp", "check", str(app_folder)).code == 0


def test_a_folder_without_servers_or_with_a_mistake_is_refused(perdure: Perdure, app_folder: Path) -> None:
    assert perdure("mcp", "lock", str(app_folder / "none")).code == 2
    server(app_folder, "comand: [x]\n")
    ended = perdure("mcp", "lock", str(app_folder))
    assert ended.code == 1 and "comand" in ended.err
    (app_folder / "mcp" / "liar.yaml").unlink()
    assert perdure("mcp", "check", str(app_folder)).code == 2


def test_a_valid_app_is_one_line_and_a_warning_is_no_failure(perdure: Perdure, tmp_path: Path) -> None:
    ended = perdure("skills check")
    assert (ended.code, ended.err) == (0, ""), "the apps that ship"
    folder = write_app(tmp_path / "app")
    ended = perdure(f"skills check {folder}")
    assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1) and "parlour" in ended.out
    write_app(folder, {"skills/water/SKILL.md": WATER.replace("None.", "None. " * 600)})
    ended = perdure(f"skills check {folder}")
    assert ended.code == 0 and "skills/water/SKILL.md:" in ended.out
    write_app(folder, {"skills/tea/SKILL.md": SKILL.replace("triggers:", '"\\e[31mtrigers":')})
    ended = perdure(f"skills check {folder}")
    assert ended.code == 1 and "\x1b" not in ended.out, "what a file says cannot command the terminal"


def test_a_mistake_has_a_place_and_exit_code(perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = SKILL.replace("triggers:", "trigers:").replace("A leaf", "A leaf " * 500)
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled, "skills/tea/blocks/steep.py": "x = 1\n"})
    monkeypatch.chdir(folder)
    ended = perdure("skills check .")
    assert ended.code == 1
    places = re.findall(r"^([\w/.]+\.(?:md|py|yaml):\d+):", ended.out, re.MULTILINE)
    skill, block = "skills/tea/SKILL.md", "skills/tea/blocks/steep.py"
    assert places == [f"{skill}:5", f"{skill}:23", f"{block}:1", "agents/host.yaml:4"]


def test_with_json_the_places_are_values(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": None})
    ended = perdure("skills", "check", str(folder), "--json")
    assert ended.code == 1
    assert ended.json["apps"] == [{"app": "parlour", "folder": str(folder), "agents": [], "skills": ["water"]}]
    agent = str(folder / "agents" / "host.yaml")
    assert [{**each, "message": ""} for each in ended.json["problems"]] == [
        {"file": str(folder / "skills" / "tea"), "line": None, "warning": False, "message": ""},
        {"file": agent, "line": 4, "warning": False, "message": ""},
    ]


def test_a_folder_without_an_app_is_named(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    assert perdure("skills", "check", str(tmp_path / "nowhere")).code == 2
    ended = perdure("skills", "check", str(folder / "skills" / "tea"))
    assert ended.code == 2 and str(folder) in ended.err
    assert perdure("skills", "check", str(tmp_path)).code == 1
