"""The reviewer tool against a really running stack: each verb, each exit code, two people at once."""

import json
import re
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
def perdure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The commands of a stack with the notice board."""
    home = tmp_path_factory.mktemp("reviewing") / "home"
    with running(home, "--app", str(ROOT / "tests" / "apps" / "board")):
        yield Command(home)


def person(perdure: Command, name: str, *roles: str) -> Command:
    """A user with an own token."""
    return Command(perdure.home, PERDURE_TOKEN=perdure("users", "add", name, *roles, "--json").json["token"])


@pytest.fixture(scope="module")
def rita(perdure: Command) -> Command:
    return person(perdure, "rita", "--role", "reviewer")


class PausedTurn:
    """A turn of the board that waits for an approval."""

    def __init__(self, perdure: Command, prompt: str, agent: str = "board") -> None:
        self._perdure = perdure
        with perdure.client() as client:
            self._turn = client.turns.start(client.conversations.create(agent).id, prompt).turn_id
        self.id: str = perdure.pending(prompt)["id"]

    def ended(self) -> Turn:
        with self._perdure.client() as client:
            return client.turns.wait(self._turn, through_pauses=True, timeout_seconds=60)


def shown(perdure: Command, approval_id: str) -> Any:
    return perdure("approvals", "show", approval_id, "--json").json


def test_a_quorum_of_two_approves_and_can_withdraw_during_the_hold(perdure: Command, rita: Command) -> None:
    asked = PausedTurn(perdure, "announce the fair")
    first = perdure("approvals", "approve", asked.id, "--comment", "fine")
    assert (first.code, "1 of 2" in first.out) == (0, True)
    again = perdure("approvals", "approve", asked.id)
    assert (again.code, "already_voted" in again.err) == (5, True)
    card = perdure("approvals", "show", asked.id).out
    assert "1 of 2" in card and "reviewer" in card and "rita" in card
    second = rita("approvals", "approve", asked.id)
    assert second.code == 0 and f"approvals withdraw {asked.id}" in second.out
    taken_back = rita("approvals", "withdraw", asked.id, "--comment", "the hall is closed")
    assert (taken_back.code, taken_back.out.splitlines()[-1].split(":")[0]) == (0, "withdrawn")
    assert asked.ended().status == "completed"
    assert perdure("approvals", "withdraw", asked.id).code == 5


def test_a_request_is_reassigned_and_then_escalated_to_another_role(perdure: Command, rita: Command) -> None:
    asked = PausedTurn(perdure, "pin a found glove")
    person(perdure, "tom")  # who may only ask
    assert "rita" in perdure("approvals", "reassign", asked.id, "rita", "--comment", "yours").out
    mine = rita("approvals", "list", "--assignee", "rita", "--json").json["items"]
    assert [each["id"] for each in mine] == [asked.id]
    for nobody in ("tom", "requester", "nobody-at-all"):
        assert perdure("approvals", "reassign", asked.id, nobody).code == 2
    assert "rita" in perdure("approvals", "ageing").out
    assert "admin" in perdure("approvals", "escalate", asked.id).out
    assert perdure("approvals", "approve", asked.id).code == 1
    assert perdure("approvals", "escalate", asked.id, "--as", "admin").code == 5
    assert perdure("approvals", "approve", asked.id, "--as", "admin").code == 0
    assert asked.ended().status == "completed"
    kinds = [row["what"] for row in shown(perdure, asked.id)["history"]]
    assert kinds[1:3] == ["approval.reassigned", "approval.escalated"]


def test_a_delegate_decides_until_the_delegation_is_ended(perdure: Command, rita: Command) -> None:
    una = person(perdure, "una", "--role", "reviewer")
    first, second = PausedTurn(perdure, "pin a menu", "named_board"), PausedTurn(perdure, "pin a bill", "named_board")
    assert una("approvals", "approve", first.id).code == 1
    given = rita("delegations", "add", "una", "--days", "2", "--json")
    assert given.code == 0 and rita("delegations", "list").out.count("una") == 1
    assert rita("delegations", "add", "rita", "--days", "2").code == 2
    assert rita("delegations", "add", "una", "--days", "91").code == 2
    assert una("approvals", "approve", first.id).code == 0
    assert re.search("una.*rita", perdure("approvals", "show", first.id).out)
    assert rita("delegations", "remove", given.json["id"]).code == 0
    assert rita("delegations", "remove", given.json["id"]).code == 4
    assert "una" not in rita("delegations", "list").out
    assert una("approvals", "approve", second.id).code == 1
    assert rita("approvals", "approve", second.id).code == 0
    assert [each.ended().status for each in (first, second)] == ["completed"] * 2


def test_a_bulk_decision_has_a_result_for_each_request(perdure: Command) -> None:
    low = [PausedTurn(perdure, f"pin card {number}") for number in range(3)]
    high = PausedTurn(perdure, "announce the cards")
    mixed = perdure("approvals", "batch", "approve", low[0].id, high.id)
    assert mixed.code == 2 and mixed.out.count("not_in_bulk") == 2
    done = perdure("approvals", "batch", "approve", *(each.id for each in low), "--json")
    assert (done.code, [each["status"] for each in done.json["items"]]) == (0, ["approved"] * 3)
    assert perdure("approvals", "batch", "approve", *(each.id for each in low)).code == 5
    assert perdure("approvals", "batch", "reject", high.id, "--reason", "not now").code == 0
    assert [each.ended().status for each in (*low, high)] == ["completed"] * 4


def test_of_two_simultaneous_reviewers_one_decides_and_the_other_is_told(perdure: Command, rita: Command) -> None:
    asked = PausedTurn(perdure, "pin a race")
    one = perdure.start("approvals", "approve", asked.id)
    other = rita.start("approvals", "reject", asked.id, "--comment", "no")
    assert sorted((one.ended().code, other.ended().code)) == [0, 5]
    assert asked.ended().status == "completed"
    assert [row["what"] for row in shown(perdure, asked.id)["history"]].count("approval.decided") == 1


def test_an_invalid_edit_at_a_terminal_opens_again_until_it_fits(perdure: Command, tmp_path: Path) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        "old, new = ('77', '7') if 'NOT SENT' in text else ('\"a map\"', '\"a map\", \"copies\": 77')\n"
        "path.write_text(text.replace(old, new))\n"
    )
    asked = PausedTurn(perdure, "pin a map")
    terminal = Terminal(perdure, "approvals", "edit", asked.id, EDITOR=f"{sys.executable} {script}")
    seen = terminal.until(r"\[y/N\]")
    assert "copies" in seen and '+  "copies": 7' in seen
    terminal.type("y\n")
    assert terminal.left() == 0
    assert asked.ended().status == "completed"
    assert shown(perdure, asked.id)["decision"]["args"] == {"text": "a map", "copies": 7}


def test_watching_prints_json_lines_or_a_table_on_a_terminal(perdure: Command, rita: Command) -> None:
    lines = rita.start("approvals", "watch", "--json")
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
    assert terminal.left() == 0
    asked.ended()
    assert next(each for each in told if each["id"] == asked.id)["status"] != "pending"
    lines.send_signal(signal.SIGINT)
    ended = lines.ended()
    assert (ended.code, ended.err) == (0, "")
