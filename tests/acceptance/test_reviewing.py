"""The reviewer tool against a really running stack: each verb, each exit code, two people at once."""

import json
import signal

import pytest

from perdure.client import Turn
from tests.acceptance.command import Command, Terminal


@pytest.fixture
def reviewer(perdure: Command) -> Command:
    """The commands of a second reviewer, who has an own token."""
    added = perdure("users", "add", "rita", "--role", "reviewer", "--json")
    return Command(perdure.home, PERDURE_TOKEN=added.json["token"])


class PausedTurn:
    """A turn of the board that waits for an approval."""

    def __init__(self, perdure: Command, prompt: str, agent: str = "board") -> None:
        self._perdure = perdure
        with perdure.client() as client:
            self._turn = client.turns.start(client.conversations.create(agent).id, prompt).turn_id
        self.id: str = perdure.pending(prompt)["id"]

    def wait_ended(self) -> Turn:
        with self._perdure.client() as client:
            return client.turns.wait(self._turn, through_pauses=True, timeout_seconds=60)


def test_watching_prints_json_lines_or_a_table_on_a_terminal(perdure: Command, reviewer: Command) -> None:
    lines = reviewer.start("approvals", "watch", "--json")
    terminal = Terminal(perdure, "approvals", "watch")
    assert lines.stdout is not None
    told = map(json.loads, lines.stdout)
    terminal.until("Ctrl-C")
    asked = PausedTurn(perdure, "pin a clock")
    assert next(each for each in told if each["id"] == asked.id)["status"] == "pending"
    row = terminal.until(asked.id)
    assert "pin" in row and "low" in row and "board" in row
    assert perdure("approvals", "approve", asked.id).code == 0
    terminal.until(rf"pin \({asked.id}\)[^\n]* reviewer")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.exit_code() == 0
    asked.wait_ended()
    assert next(each for each in told if each["id"] == asked.id)["status"] != "pending"
    lines.send_signal(signal.SIGINT)
    ended = lines.wait_ended()
    assert (ended.code, ended.err) == (0, "")
