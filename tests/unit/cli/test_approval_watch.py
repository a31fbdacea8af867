"""`approvals watch`: lines without a terminal, a table on one."""

import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from perdure.cli.approvals.watch import TableScreen
from perdure.client import Approval
from tests.unit.apps.api_double import Reply, reply
from tests.unit.cli.conftest import APPROVAL, Perdure

NONE = reply({"items": [], "next": None})
InterruptAfter = Callable[[int], None]


def waits(**changed: Any) -> Reply:
    return reply({"items": [{**APPROVAL, **changed}], "next": None})


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> InterruptAfter:
    """Presses Ctrl-C after so many polls."""

    def after(most: int) -> None:
        slept = 0

        def sleep(_seconds: float) -> None:
            nonlocal slept
            slept += 1
            if slept == most:
                raise KeyboardInterrupt

        monkeypatch.setattr("perdure.cli.approvals.watch.time.sleep", sleep)

    return after


def test_each_is_shown_and_its_end(cli: Perdure, interrupt_after: InterruptAfter) -> None:
    interrupt_after(3)
    cli.will(waits(), waits(), NONE, reply({**APPROVAL, "status": "rejected"}))
    ended = cli("approvals watch --mine --agent refunds")
    assert ended.code == 0
    assert ended.out.count('"order": "1042"') == 1
    assert "rejected" in ended.out.splitlines()[-1] and "approvals approve a-1" in ended.out
    assert cli.asked[0].query == {"status": ["pending"], "mine": ["true"], "agent": ["refunds"], "limit": ["200"]}


def test_each_change_of_a_waiting_approval_is_one_line(cli: Perdure, interrupt_after: InterruptAfter) -> None:
    interrupt_after(3)
    claim = {"assignee": "tom", "claimed_by": "rita", "claimed_until": "2999-01-01T00:00:00Z", "quorum": 2}
    votes = [{"by": "rita", "for": None, "decision": "approve"}]
    cli.will(waits(), waits(**claim), waits(**claim, votes=votes))
    lines = [line for line in cli("approvals watch").out.splitlines() if line.startswith("~")]
    assert len(lines) == 2
    assert all(name in lines[0] for name in ("refund", "a-1", "tom", "rita")) and "1/2" in lines[1]


def test_with_json_each_event_is_one_line(cli: Perdure, interrupt_after: InterruptAfter) -> None:
    interrupt_after(4)
    cli.will(waits(), waits(), waits(assignee="tom"), NONE, reply({**APPROVAL, "status": "done"}))
    lines = [json.loads(line) for line in cli("approvals watch --json").out.splitlines()]
    told = [(line["status"], line["assignee"]) for line in lines]
    assert told == [("pending", None), ("pending", "tom"), ("done", None)]
    assert lines[0]["schema"] == APPROVAL["schema"]


def test_on_a_terminal_it_is_a_table_until_ctrl_c(
    cli: Perdure, interrupt_after: InterruptAfter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    interrupt_after(2)
    ended = cli("approvals watch", waits(), NONE, reply({**APPROVAL, "status": "approved", "decided_by": "tom"}))
    assert (ended.code, ended.err) == (0, "")
    assert all(part in ended.out for part in ("\x1b[", "age", "high", "1 pending; press Ctrl-C"))
    assert re.search(r"refund \(a-1\)[^\n]* tom", ended.out)


def test_a_queue_of_several_pages_is_read_completely(cli: Perdure, interrupt_after: InterruptAfter) -> None:
    interrupt_after(1)
    out = cli("approvals watch", reply({"items": [APPROVAL], "next": "more"}), waits(id="a-2")).out
    assert out.index("a-2") < out.index("a-1")
    assert cli.asked[1].query["cursor"] == ["more"]


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def watch_table(screen: io.StringIO) -> TableScreen:
    """A table on a terminal of 160 columns and 12 lines."""
    console = Console(file=screen, force_terminal=True, width=160, height=12, highlight=False, emoji=False)
    return TableScreen(console)


def approval(name: str, **changed: Any) -> Approval:
    return Approval.model_validate({**APPROVAL, "id": name, **changed})


def drawn(table: TableScreen, *waiting: Approval, columns: int = 160) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, height=12, color_system="standard")
    console.print(table.render({each.id: each for each in waiting}))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_has_age_deadline_assignee_and_votes(watch_table: TableScreen) -> None:
    now = datetime.now(UTC)
    row = approval(
        "a-1", requested_at=now - timedelta(hours=2, seconds=1), expires_at=now + timedelta(days=1, seconds=30),
        assignee="tom", claimed_by="rita", claimed_until=now + timedelta(minutes=5, seconds=30), quorum=2,
        votes=[{"by": "rita", "for": None, "decision": "approve"}], agent="\x1b[2Jagent",
    )  # fmt: skip
    out = drawn(watch_table, row)
    for part in (" 2 h ", " 1 d ", "tom", "rita", "5 min", "1/2", "high", "\\u001b[2Jagent"):
        assert part in out


def test_only_requests_arriving_while_watching_are_highlighted(watch_table: TableScreen, screen: io.StringIO) -> None:
    old, new = approval("a-old"), approval("a-new")
    with watch_table:
        watch_table.added(old)
        watch_table.polled({"a-old": old})
        watch_table.added(new)
        watch_table.polled({"a-new": new, "a-old": old})
        assert "a-new" in screen.getvalue()
        lines = drawn(watch_table, old, new).splitlines()
    standing_out = [line for line in lines if "\x1b[1;7m" in line]
    assert [("a-new" in line, "a-old" in line) for line in standing_out] == [(True, False)]


def test_ended_requests_are_named_and_a_long_queue_has_a_count(watch_table: TableScreen) -> None:
    for number in range(5):
        watch_table.ended(approval(f"a-gone-{number}", status="approved", decided_by="rita\x1b"))
    out = drawn(watch_table, *(approval(f"a-{number}") for number in range(30)))
    assert "25" in out and out.count("rita\\u001b") == out.count("a-gone-") == 3 and "a-gone-1" not in out
    assert drawn(watch_table).count("a-gone-") == 3


def test_on_a_narrow_terminal_the_id_is_below_its_tool_and_neither_is_cut() -> None:
    name = "3f0a1b2c-1111-4222-8333-abcdefabcdef"
    table = TableScreen(Console(file=io.StringIO(), force_terminal=True, width=80, height=24))
    row = approval(name, assignee="tom", claimed_by="rita", claimed_until="2999-01-01T00:00:00Z", quorum=2)
    lines = drawn(table, row, columns=80).splitlines()
    at = next(number for number, line in enumerate(lines) if name in line)
    for part in ("refund", "high", "tom", "rita", "0/2"):
        assert part in lines[at - 1]
