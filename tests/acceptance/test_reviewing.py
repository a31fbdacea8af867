"""The reviewer tool against a really running stack: each verb, each exit code, two people at once."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.client import Turn
from tests.acceptance.command import Command, Terminal
from tests.acceptance.running import ROOT, running


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The commands of a stack with the notice board."""
    home = tmp_path_factory.mktemp("reviewing") / "home"
    with running(home, "--app", str(ROOT / "tests" / "apps" / "board")):
        yield Command(home)


def person(board: Command, name: str, *roles: str) -> Command:
    """A user with an own token."""
    return Command(board.home, PERDURE_TOKEN=board("users", "add", name, *roles, "--json").json["token"])


@pytest.fixture(scope="module")
def reviewer(board: Command) -> Command:
    return person(board, "rita", "--role", "reviewer")


class PausedTurn:
    """A turn of the board that waits for an approval."""

    def __init__(self, board: Command, prompt: str, agent: str = "board") -> None:
        self._perdure = board
        with board.client() as client:
            self._turn = client.turns.start(client.conversations.create(agent).id, prompt).turn_id
        self.id: str = board.pending(prompt)["id"]

    def ended(self) -> Turn:
        with self._perdure.client() as client:
            return client.turns.wait(self._turn, through_pauses=True, timeout_seconds=60)


def shown(board: Command, approval_id: str) -> Any:
    return board("approvals", "show", approval_id, "--json").json


def test_an_invalid_edit_at_a_terminal_opens_again_until_it_fits(board: Command, tmp_path: Path) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        "old, new = ('77', '7') if 'NOT SENT' in text else ('\"a map\"', '\"a map\", \"copies\": 77')\n"
        "path.write_text(text.replace(old, new))\n"
    )
    asked = PausedTurn(board, "pin a map")
    terminal = Terminal(board, "approvals", "edit", asked.id, EDITOR=f"{sys.executable} {script}")
    seen = terminal.until(r"\[y/N\]")
    assert "copies" in seen and '+  "copies": 7' in seen
    terminal.type("y\n")
    assert terminal.left() == 0
    assert asked.ended().status == "completed"
    assert shown(board, asked.id)["decision"]["args"] == {"text": "a map", "copies": 7}


def test_watching_prints_json_lines_or_a_table_on_a_terminal(board: Command, reviewer: Command) -> None:
    lines = reviewer.start("approvals", "watch", "--json")
    terminal = Terminal(board, "approvals", "watch")
    assert lines.stdout is not None
    told = map(json.loads, lines.stdout)
    terminal.until("Ctrl-C")
    asked = PausedTurn(board, "pin a clock")
    assert next(each for each in told if each["id"] == asked.id)["status"] == "pending"
    row = terminal.until(asked.id)
    assert "pin" in row and "low" in row and "board" in row
    assert board("approvals", "approve", asked.id).code == 0
    terminal.until(rf"pin \({asked.id}\)[^\n]* reviewer")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.left() == 0
    asked.ended()
    assert next(each for each in told if each["id"] == asked.id)["status"] != "pending"
    lines.send_signal(signal.SIGINT)
    ended = lines.ended()
    assert (ended.code, ended.err) == (0, "")
