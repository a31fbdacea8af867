"""`perdure skills check`: every mistake with its place, without anything that runs."""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.unit.apps.skill_app import SKILL, WATER, write_app
from tests.unit.cli.conftest import Perdure


def test_the_apps_that_ship_have_no_mistake(perdure: Perdure) -> None:
    ended = perdure("skills", "check")
    assert (ended.code, ended.err) == (0, "")


def test_a_good_app_is_told_in_one_line(perdure: Perdure, tmp_path: Path) -> None:
    ended = perdure("skills", "check", str(write_app(tmp_path / "app")))
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) == 1 and "parlour" in ended.out


def test_every_mistake_is_told_with_its_place_and_the_code_is_1(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    spoiled = SKILL.replace("triggers:", "trigers:").replace("A leaf", "A leaf " * 500)
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled, "skills/tea/blocks/steep.py": "x = 1\n"})
    monkeypatch.chdir(folder)
    ended = perdure("skills", "check", ".")
    assert ended.code == 1
    places = re.findall(r"^([\w/.]+\.(?:md|py|yaml):\d+):", ended.out, re.MULTILINE)
    skill, block = "skills/tea/SKILL.md", "skills/tea/blocks/steep.py"
    assert places == [f"{skill}:5", f"{skill}:23", f"{block}:1", "agents/host.yaml:4"]
    assert ended.seen == snapshot


def test_a_warning_alone_is_no_failure(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/water/SKILL.md": WATER.replace("None.", "None. " * 600)})
    ended = perdure("skills", "check", str(folder))
    assert ended.code == 0
    assert "skills/water/SKILL.md:" in ended.out


def test_in_json_the_places_are_values(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": None})
    ended = perdure("skills", "check", str(folder), "--json")
    assert ended.code == 1
    assert ended.json["apps"] == [{"app": "parlour", "folder": str(folder), "agents": [], "skills": ["water"]}]
    agent = str(folder / "agents" / "host.yaml")
    assert [{**each, "message": ""} for each in ended.json["problems"]] == [
        {"file": str(folder / "skills" / "tea"), "line": None, "warning": False, "message": ""},
        {"file": agent, "line": 4, "warning": False, "message": ""},
    ]


def test_a_folder_that_is_no_app_is_told_what_it_is(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    assert perdure("skills", "check", str(tmp_path / "nowhere")).code == 2
    ended = perdure("skills", "check", str(folder / "skills" / "tea"))
    assert ended.code == 2 and str(folder) in ended.err
    assert perdure("skills", "check", str(tmp_path)).code == 1


def test_what_a_file_says_cannot_command_the_terminal(perdure: Perdure, tmp_path: Path) -> None:
    spoiled = SKILL.replace("triggers:", '"\\e[31mtrigers":')
    ended = perdure("skills", "check", str(write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled})))
    assert ended.code == 1 and "\x1b" not in ended.out
