"""Checkpoints that cannot be opened: those whose rules allow it are skipped with a warning, all others wait.

The workers here cache no run, so every workflow task replays all that came before it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from perdure.activities import approvals
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.errors import InvariantBroken, PerdureError, UpstreamUnavailable
from perdure.contracts.skills import Skill
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals.requests import open_requests
from perdure.store.approvals.verdicts import read_verdicts
from perdure.workflows import turn_run
from tests.doubles.desk_variants import agent_of, changed_agent
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, publish_app
from tests.served_turns import ALL_KINDS, PAUSED, Served, refused, serve

pytestmark = pytest.mark.usefixtures("without_cache")

LENIENT = "lenient"
BOOK = ("book", {"what": "a chair"})
SAID = Line("", [BOOK]), Line("well")
AWAY = UpstreamUnavailable("database_unavailable", "No approval can be opened.")
REFUSED = InvariantBroken("no_approval", "No approval can be opened.")
PATIENCE = timedelta(seconds=2)


def lenient() -> PublishedAgent:
    """The agent `checked`; its booking continues if no request can be opened."""
    agent = agent_of("checked")

    def softened(skill: Skill) -> Skill:
        own = ((each, {"go_on_when_unavailable": each.name == "before_sending"}) for each in skill.checkpoints)
        return skill.model_copy(update={"checkpoints": tuple(each.model_copy(update=more) for each, more in own)})

    return changed_agent(agent, id=LENIENT, skills=tuple(softened(skill) for skill in agent.definition.skills))


@pytest.fixture(scope="module")
async def served(harness: Harness, temporal: Client) -> AsyncIterator[Served]:
    """The test app with workers for every queue of the module, without caches."""
    await publish_app(harness.owner_url, [*app_agents()[0], ("desk", lenient())])
    tools = app_agents()[1]
    own = [(LENIENT, tool) for agent_id, tool in tools if agent_id == "checked"]
    toolbox = Toolbox([*tools, *own], lambda name: None, harness.deps.toolbox.http)
    at = replace(harness, deps=replace(harness.deps, toolbox=toolbox))
    async with AsyncExitStack() as stack:
        yield Served(at, temporal, await serve(stack, at, ALL_KINDS))


class ApprovalRecord:
    """Sets whether approvals can be opened and read."""

    def __init__(self) -> None:
        self.closed: PerdureError | None = None
        self.tried: Counter[str] = Counter()
        """The number of times that they were opened, by turn."""
        self.looked: Counter[str] = Counter()
        """The number of times that they were read, by turn."""
        self.loses_answers = False
        """Each time it is opened, and the answer is lost."""
        self.unreadable = False

    async def open_requests(self, *given: Any) -> Any:
        self.tried[given[1].address.turn_id] += 1
        if self.closed is not None:
            raise self.closed
        opened = await open_requests(*given)
        if self.loses_answers:
            await given[0].execute("COMMIT")
            raise AWAY
        return opened

    async def read_verdicts(self, *given: Any) -> Any:
        self.looked[given[1].address.turn_id] += 1
        if self.unreadable:
            raise AWAY
        return await read_verdicts(*given)


@pytest.fixture
def approval_record(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApprovalRecord]:
    """Opens it; an optional checkpoint is tried for two seconds, and checked for one more."""
    made = ApprovalRecord()
    monkeypatch.setattr(approvals, "open_requests", made.open_requests)
    monkeypatch.setattr(approvals, "read_verdicts", made.read_verdicts)
    monkeypatch.setattr(turn_run, "OPEN_PATIENCE", PATIENCE)
    monkeypatch.setattr(turn_run, "READ_PATIENCE", PATIENCE / 2)
    yield made
    made.closed = None


async def warnings(served: Served, address: TurnAddress) -> list[tuple[str, str]]:
    """The turn's warnings: the call, and its tool."""
    warned = "SELECT call_id, data->>'tool' FROM events WHERE turn_id = $1 AND kind = 'hitl.warning'"
    return [tuple(row) for row in await served.harness.rows(warned, address.turn_id)]


async def test_a_skipped_checkpoint_warns_and_a_later_gate_pauses(
    served: Served, approval_record: ApprovalRecord
) -> None:
    approval_record.closed = AWAY
    address = await served.begin(SAID[0], Line("", [("pay", {"amount": 1})]), SAID[1], agent_id=LENIENT)
    await until(lambda: len(served.sent_to_model(address)) == 2)
    approval_record.closed = None
    assert approval_record.tried[address.turn_id] >= 3
    assert served.effects(address, "/book") == 1
    note = served.sent_to_model(address)[-1][-1]
    assert note["role"] == "system" and note["content"].startswith("HITL_WARNING: ")
    assert await warnings(served, address) == [("t1.0", "book")]
    audit = await served.harness.rows("SELECT kind, actor FROM audit WHERE turn_id = $1", address.turn_id)
    assert [tuple(each) for each in audit if each["kind"].startswith("checkpoint")] == [("checkpoint.not_asked", None)]
    await served.until(address, PAUSED)
    asked = await served.harness.rows("SELECT call_id FROM approvals WHERE turn_id = $1", address.turn_id)
    assert [row["call_id"] for row in asked] == ["t2.0"], "no request was opened for the checkpoint"
    await served.decide(address, "t2.0")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["problem"], served.effects(address, "/pay", "t2.0")) == ("well", None, 1)


async def test_a_checkpoint_blocked_by_an_internal_fault_is_not_skipped(
    served: Served, approval_record: ApprovalRecord
) -> None:
    approval_record.closed = REFUSED
    address = await served.begin(*SAID, agent_id=LENIENT)
    with pytest.raises(WorkflowFailureError):
        await served.handle(address).result()
    assert len(served.sent_to_model(address)) == 1, "it has not gone on"
    assert await warnings(served, address) == []


OTHERS = {
    "a checkpoint that does not say so": ("checked", (BOOK,)),
    "one that does beside one that does not": (LENIENT, (BOOK, ("look", {"what": "a", "mode": "busy"}))),
    "a rule before a call": (LENIENT, (("jot", {"text": "a"}),)),
    "a gate": (LENIENT, (BOOK, ("pay", {"amount": 1}))),
}


async def test_every_other_checkpoint_waits_until_it_can_be_opened(
    served: Served, approval_record: ApprovalRecord
) -> None:
    approval_record.closed = AWAY
    begun = {
        what: await served.begin(Line("", calls), SAID[1], agent_id=agent_id)
        for what, (agent_id, calls) in OTHERS.items()
    }
    # Side by side on workers without a cache, a turn may lose a task's time-out.
    await until(lambda: all(approval_record.tried[address.turn_id] for address in begun.values()), seconds=20)
    await asyncio.sleep(PATIENCE.total_seconds() + 1)
    for what, address in begun.items():
        assert (await served.row(address))["status"] == TurnStatus.RUNNING.value, what
        assert len(served.sent_to_model(address)) == 1, f"{what}: it has gone on"
    approval_record.closed = None
    for what, address in begun.items():
        await served.until(address, PAUSED)
        assert await warnings(served, address) == [], what
        await served.stop(address)


async def test_an_opened_but_unreadable_checkpoint_is_checked_once(
    served: Served, approval_record: ApprovalRecord
) -> None:
    approval_record.loses_answers = approval_record.unreadable = True
    waits = Line("", [("look", {"mode": "wait"})])
    served.harness.world.go_on.clear()
    address = await served.begin(SAID[0], waits, SAID[1], agent_id=LENIENT)
    await until(lambda: served.harness.world.running > 0, seconds=20)
    row = await served.row(address)
    assert (row["status"], row["waiting"]) == ("running", None)
    assert (await served.harness.approval_row(address, "c1.0"))["status"] == "cancelled"
    with refused("already_decided"):
        await served.decide(address, "c1.0", Decision.EDIT, args={"what": "a table"})
    served.harness.world.go_on.set()
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert await served.states(address) == {"t1.0": "done", "t2.0": "done"}
    assert await warnings(served, address) == [("t1.0", "book")]


@pytest.mark.parametrize("how", ["not opened at first", "opened unheard"])
async def test_one_opened_or_read_in_time_waits_for_decision(
    served: Served, approval_record: ApprovalRecord, how: str
) -> None:
    approval_record.closed, approval_record.loses_answers = (None, True) if how == "opened unheard" else (AWAY, False)
    address = await served.begin(*SAID, agent_id=LENIENT)
    await until(
        lambda: (approval_record.looked if how == "opened unheard" else approval_record.tried)[address.turn_id] > 0
    )
    approval_record.closed, approval_record.loses_answers = None, False
    await served.waits(address)
    await served.decide(address, "c1.0", Decision.REJECT, comment="not that one")
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "done"}
    assert "not that one" in served.sent_to_model(address)[-1][-1]["content"]
    assert await warnings(served, address) == []


async def test_an_unreadable_rejection_ends_the_turn_that_continued(
    served: Served, approval_record: ApprovalRecord
) -> None:
    approval_record.loses_answers = approval_record.unreadable = True
    address = await served.begin(*SAID, agent_id=LENIENT)
    await served.until(address, PAUSED)
    await served.decide(address, "c1.0", Decision.REJECT, comment="not that one")
    assert (await served.until(address, TurnStatus.FAILED))["problem"]["code"] == "checkpoint_decided"
    assert len(served.sent_to_model(address)) == 1, "the model was not asked again"
    assert (await served.harness.approval_row(address, "c1.0"))["status"] == "rejected"
    audited = await served.harness.rows("SELECT kind FROM audit WHERE turn_id = $1", address.turn_id)
    assert "checkpoint.not_asked" not in [each["kind"] for each in audited]
