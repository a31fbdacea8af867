"""`perdure skills check`: every mistake with its place, without anything that runs."""

from pathlib import Path

import pytest

from tests.unit.apps.skill_app import SKILL, WATER, write_app
from tests.unit.cli.conftest import Perdure


def test_the_apps_that_ship_have_no_mistake(perdure: Perdure) -> None:
    ended = perdure("skills", "check")
    assert (ended.code, ended.err) == (0, "")
    assert "0 mistakes" in ended.out.splitlines()[-1]


def test_a_good_app_is_told_in_one_line(perdure: Perdure, tmp_path: Path) -> None:
    ended = perdure("skills", "check", str(write_app(tmp_path / "app")))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "parlour: 0 mistakes, 0 warnings; without a mistake: 2 skills, 1 code block, 1 agent\n"


def test_every_mistake_is_told_with_its_place_and_the_code_is_1(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = SKILL.replace("triggers:", "trigers:").replace("A leaf", "A leaf " * 500)
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled, "skills/tea/blocks/steep.py": "x = 1\n"})
    monkeypatch.chdir(folder)
    ended = perdure("skills", "check", ".")
    assert ended.code == 1
    assert ended.out.splitlines() == [
        "skills/tea/SKILL.md:5: unknown field 'trigers'; did you mean 'triggers'?",
        "skills/tea/SKILL.md:23: warning: the body has about 900 tokens, more than the 800 that it should have",
        "skills/tea/blocks/steep.py:1: defines no function run: its parameters are the input, what it returns is the "
        "result",
        "agents/host.yaml:4: the skill tea has mistakes",
        "parlour: 3 mistakes, 1 warning; without a mistake: 1 skill, 0 code blocks, 0 agents",
    ]


def test_a_warning_alone_is_no_failure(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/water/SKILL.md": WATER.replace("None.", "None. " * 600)})
    ended = perdure("skills", "check", str(folder))
    assert ended.code == 0
    assert ended.out.splitlines()[-1].startswith("parlour: 0 mistakes, 1 warning;")


def test_in_json_the_places_are_values(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": None})
    ended = perdure("skills", "check", str(folder), "--json")
    assert ended.code == 1
    assert ended.json["apps"] == [{"app": "parlour", "folder": str(folder), "agents": [], "skills": ["water"]}]
    agent = str(folder / "agents" / "host.yaml")
    assert ended.json["problems"] == [
        {"file": str(folder / "skills" / "tea"), "line": None, "message": "has no SKILL.md", "warning": False},
        {"file": agent, "line": 4, "message": "the skill tea has mistakes", "warning": False},
    ]


def test_a_folder_that_is_no_app_is_told_what_it_is(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    assert perdure("skills", "check", str(tmp_path / "nowhere")).code == 2
    ended = perdure("skills", "check", str(folder / "skills" / "tea"))
    assert ended.code == 2 and f"name the app folder, {folder}" in ended.err
    ended = perdure("skills", "check", str(tmp_path))
    assert ended.code == 1 and "is not an app folder: it has no agents/" in ended.out


def test_what_a_file_says_cannot_command_the_terminal(perdure: Perdure, tmp_path: Path) -> None:
    spoiled = SKILL.replace("triggers:", '"\\e[31mtrigers":')
    ended = perdure("skills", "check", str(write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled})))
    assert ended.code == 1 and "\x1b" not in ended.out


def test_the_help_says_what_is_looked_at(perdure: Perdure) -> None:
    ended = perdure("skills", "check", "--help")
    assert ended.code == 0
    for word in ("DIR", "code blocks", "rules", "Exit code 1"):
        assert word in " ".join(ended.out.split())
