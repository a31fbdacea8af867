"""The shapes of a turn that are recorded: how each is brought about, how it ends, and the calls of its runs. A
recording with other calls is refused when it is made."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.turns import Limits, TurnAddress, TurnStatus, WakeSignal
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals import requests
from tests.doubles.broken_inside import Breaks, Brief, broken_inside
from tests.doubles.desk_variants import CALM, CLIENT_TABLE, KEEPER, PLANNER, gatherer, keeper, planner, published
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import publish_app
from tests.replay import stopping
from tests.replay.stopping import CONFIRM
from tests.served_turns import DONE, PAY, POST, Served

LOOKS = [("look", {"what": "a"}), ("look", {"what": "b"})]
BOOK: tuple[str, Mapping[str, JsonValue]] = ("book", {"what": "a chair"})
LOADING = Line("", [("load_toolset", {"toolset": "counter", "include_write_tools": True})])
SELECT = Line("SKILL_SELECT:parcels")

LOAD, MODEL, TOOL, FINISH = "memory.load", "model.complete", "tools.run", "turns.finish"
FACTS, ASSEMBLE, CHECK = "memory.facts", "tools.assemble", "tools.check"
OPEN, READ = "approvals.open", "approvals.read"
WAIT: tuple[str, ...] = ()
"""The run of a TurnWait calls nothing."""
TO_GATE = (LOAD, MODEL, OPEN)
TO_CHECKPOINT = (LOAD, MODEL, TOOL, OPEN)
TO_LOOP_GATE = (LOAD, MODEL, MODEL, OPEN, READ, TOOL, TOOL, OPEN)
"""All requests are open before the calls without approval run beside them; then the turn waits for the rest."""
FREED = (READ, TOOL, MODEL, FINISH)
ACKNOWLEDGED = (READ, MODEL, FINISH)


@dataclass(frozen=True, slots=True)
class Shape:
    play: Callable[[Served], Awaitable[TurnAddress]]
    """Takes a turn through it; the turn may still be on its last run."""
    status: TurnStatus
    runs: tuple[tuple[str, ...], ...]
    """The activities that each run calls, in order."""


def said(*lines: Line, **given: Any) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A turn that takes its course alone."""

    async def play(served: Served) -> TurnAddress:
        return (await served.run_to_end(*lines, **given))[0]

    return play


def decided(decision: Decision, **given: Any) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A turn whose one gated call is decided on."""

    async def play(served: Served) -> TurnAddress:
        address = await served.paused(Line("asking", [PAY]), DONE)
        await served.decide(address, decision=decision, **given)
        return address

    return play


async def checked(served: Served) -> TurnAddress:
    """The tool's types refuse one of two calls; the other one is approved."""
    remits = [("remit", {"day": day, "amount": "1.50"}) for day in ("2026-02-30", "2026-02-28")]
    address = await served.paused(Line("asking", remits), DONE, agent_id="remitter")
    await served.decide(address, "t1.1")
    return address


def at_checkpoint(
    decision: Decision, *, first: Sequence[Line] = (), **given: Any
) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A turn whose call has run and waits for a review; `first` comes before the model's call."""

    async def play(served: Served) -> TurnAddress:
        address = await served.paused(*first, Line("booking", [BOOK]), DONE, agent_id="checked")
        await served.decide(address, f"c{len(first) + 1}.0", decision, **given)
        return address

    return play


async def unreadable(served: Served) -> TurnAddress:
    """The record cannot be read when the turn looks, so it waits on; mended, it is approved."""
    address = await served.paused(Line("asking", [PAY]), DONE)
    run_id = await served.waits(address)
    spoil = "UPDATE approvals SET nonce = $2 WHERE turn_id = $1"
    nonce = await served.harness.value("SELECT nonce FROM approvals WHERE turn_id = $1", address.turn_id)
    await served.harness.write(spoil, address.turn_id, "spoiled")
    await served.wake(address, WakeSignal(kind="request"))
    await served.waits_again(address, run_id)
    await served.harness.write(spoil, address.turn_id, nonce)
    await served.decide(address)
    return address


async def unknown_outcome(served: Served) -> TurnAddress:
    """The call breaks off after it was sent; a person settles it."""
    address = await served.paused(Line("asking", [("post", {"mode": "break"})]), DONE)
    await served.decide(address)
    await served.waits_for(address, effect_key(address.turn_id, "t1.0"))
    await served.settle(address, "t1.0")
    return address


async def decided_apart(served: Served) -> TurnAddress:
    """Two gated calls; the second is approved when the first has run and the turn waits again."""
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    run_id = await served.waits(address)
    await served.decide(address)
    await served.waits_again(address, run_id)
    await served.decide(address, "t1.1")
    return address


async def decided_together(served: Served) -> TurnAddress:
    """Two gated calls, both decided before the turn looks."""
    address = await served.paused(Line("asking", [PAY, POST]), DONE)
    await served.harness.decide(approval_id(address.turn_id, "t1.0"))
    await served.decide(address, "t1.1", Decision.REJECT, comment="no")
    return address


async def decided_while_one_runs(served: Served) -> TurnAddress:
    """Two gated calls; the second is approved while the first runs."""
    served.harness.world.go_on.clear()
    address = await served.paused(Line("asking", [("pay", {"mode": "wait"}), POST]), DONE)
    await served.decide(address)
    await until(lambda: served.effects(address, "/pay") == 1)
    await served.decide(address, "t1.1")
    await until(lambda: served.effects(address, "/post", "t1.1") == 1)
    served.harness.world.go_on.set()
    return address


async def unknown_beside_others(served: Served) -> TurnAddress:
    """One call breaks off; its sibling is approved before a person settles it."""
    address = await served.paused(Line("asking", [("post", {"mode": "break"}), PAY]), DONE)
    await served.decide(address)
    run_id = await served.waits_for(address, effect_key(address.turn_id, "t1.0"))
    await served.decide(address, "t1.1")
    await served.waits_again(address, run_id)
    await served.settle(address, "t1.0")
    return address


def looping(decision: Decision, **given: Any) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A turn that loads its tools; of its round one call needs no approval, and one is decided on."""

    async def play(served: Served) -> TurnAddress:
        address = await served.paused(LOADING, Line("asking", [PAY, *LOOKS]), DONE, agent_id="looper")
        await served.waits_for(address, approval_id(address.turn_id, "t2.0"))
        await served.decide(address, "t2.0", decision, **given)
        return address

    return play


async def looping_stopped(served: Served) -> TurnAddress:
    address = await served.paused(LOADING, Line("asking", [PAY]), DONE, agent_id="looper")
    await served.stop(address)
    return address


def outside(brief: Brief) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A brief call fails inside the workflow task, and is made again as an ordinary activity."""

    async def play(served: Served) -> TurnAddress:
        with broken_inside(Breaks.FAILS, brief):
            address, _ = await served.run_to_end(Line("hello"))
            await served.handle(address).result()
        return address

    return play


async def handed_in(served: Served) -> TurnAddress:
    """The data stays with the client, which returns the result of the plan; no tool checks the rest."""
    harness = served.harness
    await publish_app(harness.owner_url, [*app_agents()[0], ("desk", planner())])
    plan = {"early_exit": False, "question": "", "options": [], "transformation": "", "xml": "", "suggestions": []}
    objects = [{"kind": "visualization", "excludes": False}, {**plan, "visualization": "a"}, *[{"xml": "<a/>"}] * 4]
    lines = [*(Line(json.dumps(each)) for each in objects), DONE]
    address, started = await harness.start(*lines, agent_id=PLANNER)
    await harness.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, {"client_table": CLIENT_TABLE})
    assert started.note is not None and await harness.deps.notifier.deliver_soon(started.note)
    await served.until(address, TurnStatus.AWAITING_ANSWER)
    await served.waits(address)
    request_id = approval_id(address.turn_id, "q2")
    payload: dict[str, Any] = {"ok": True, "rows": 2, "columns": CLIENT_TABLE["columns"]}
    async with harness.db.transaction("local") as tx:
        user_id = harness.people["requester"].user_id
        _, note = await requests.answer_question(tx, address.turn_id, request_id, user_id, "client_run", payload)
    assert await harness.deps.notifier.deliver_soon(note)
    await served.until(address, TurnStatus.FAILED)
    return address


async def at_the_hub(served: Served) -> TurnAddress:
    """A turn of the strict topology, which reads facts before its one model call and keeps none of them."""
    await publish_app(served.harness.owner_url, [*app_agents()[0], ("desk", keeper())])
    return (await served.run_to_end(DONE, agent_id=KEEPER))[0]


def gathering(*lines: Line) -> Callable[[Served], Awaitable[TurnAddress]]:
    """A turn that runs the check of two questions, then the context's one tool and the tone. Its result is no
    bundle."""

    async def play(served: Served) -> TurnAddress:
        async with published(served.harness, gatherer()):
            return (await served.run_to_end(*CALM, *lines, DONE))[0]

    return play


COMPLETED = TurnStatus.COMPLETED
ROUND = (TOOL, TOOL, MODEL)
TO_ANSWER = (LOAD, MODEL, MODEL, MODEL, ASSEMBLE)
SHAPES: dict[str, Shape] = {
    "plain_answer": Shape(said(Line("hello")), COMPLETED, ((LOAD, MODEL, FINISH),)),
    "finish_outside": Shape(outside(Brief.FINISH), COMPLETED, ((LOAD, MODEL, FINISH, FINISH),)),
    "load_outside": Shape(outside(Brief.LOAD), COMPLETED, ((LOAD, LOAD, MODEL, FINISH),)),
    "tool_loop": Shape(
        said(Line("look", LOOKS), Line("again", LOOKS), DONE), COMPLETED, ((LOAD, MODEL, *ROUND, *ROUND, FINISH),)
    ),
    "hub": Shape(at_the_hub, COMPLETED, ((LOAD, FACTS, FACTS, MODEL, FINISH),)),
    "context": Shape(gathering(), COMPLETED, ((*TO_ANSWER, MODEL, FINISH),)),
    "context_rounds": Shape(
        gathering(Line("look", LOOKS), Line("again", LOOKS)), COMPLETED, ((*TO_ANSWER, MODEL, *ROUND, *ROUND, FINISH),)
    ),
    "client_run": Shape(handed_in, TurnStatus.FAILED, ((LOAD, MODEL, MODEL, OPEN), WAIT, (READ, *[MODEL] * 5, FINISH))),
    "gate_approved": Shape(decided(Decision.APPROVE), COMPLETED, (TO_GATE, WAIT, FREED)),
    "gate_edited": Shape(decided(Decision.EDIT, args={"amount": 1}), COMPLETED, (TO_GATE, WAIT, FREED)),
    "gate_rejected": Shape(decided(Decision.REJECT, comment="no"), COMPLETED, (TO_GATE, WAIT, ACKNOWLEDGED)),
    "gate_checked": Shape(checked, COMPLETED, ((LOAD, MODEL, CHECK, OPEN), WAIT, FREED)),
    "gate_unreadable": Shape(unreadable, COMPLETED, (TO_GATE, WAIT, (READ,), WAIT, FREED)),
    "gate_expired": Shape(
        said(Line("asking", [PAY]), DONE, agent_id="hasty"), COMPLETED, (TO_GATE, WAIT, ACKNOWLEDGED)
    ),
    "unknown_outcome": Shape(unknown_outcome, COMPLETED, (TO_GATE, WAIT, (READ, TOOL, OPEN), WAIT, FREED)),
    "gates_decided_apart": Shape(decided_apart, COMPLETED, (TO_GATE, WAIT, (READ, TOOL, OPEN), WAIT, FREED)),
    "gates_decided_together": Shape(decided_together, COMPLETED, (TO_GATE, WAIT, (READ, TOOL, TOOL, MODEL, FINISH))),
    "gate_decided_while_another_runs": Shape(
        decided_while_one_runs, COMPLETED, (TO_GATE, WAIT, (READ, TOOL, READ, TOOL, MODEL, FINISH))
    ),
    "unknown_outcome_beside_others": Shape(
        unknown_beside_others, COMPLETED, (TO_GATE, WAIT, (READ, TOOL, OPEN), WAIT, (READ, TOOL, OPEN), WAIT, FREED)
    ),
    "checkpoint_approved": Shape(at_checkpoint(Decision.APPROVE), COMPLETED, (TO_CHECKPOINT, WAIT, ACKNOWLEDGED)),
    "checkpoint_edited": Shape(
        at_checkpoint(Decision.EDIT, args={"what": "a table"}), COMPLETED, (TO_CHECKPOINT, WAIT, FREED)
    ),
    "checkpoint_rejected": Shape(
        at_checkpoint(Decision.REJECT, comment="no"), COMPLETED, (TO_CHECKPOINT, WAIT, ACKNOWLEDGED)
    ),
    "checkpoint_in_synthesis": Shape(
        at_checkpoint(Decision.APPROVE, first=(SELECT,)),
        COMPLETED,
        ((LOAD, MODEL, MODEL, TOOL, OPEN), WAIT, ACKNOWLEDGED),
    ),
    "rule_abort": Shape(
        said(Line("", [("shout", {"text": "a"})]), agent_id="checked"), TurnStatus.FAILED, ((LOAD, MODEL, FINISH),)
    ),
    "stopped_running": Shape(stopping.stopped_running, TurnStatus.STOPPED, ((LOAD, MODEL, CONFIRM, FINISH),)),
    "stopped_paused": Shape(stopping.stopped_paused, TurnStatus.STOPPED, (TO_GATE, WAIT, (CONFIRM, FINISH))),
    "stop_read_outside": Shape(
        stopping.stop_read_outside, TurnStatus.STOPPED, ((LOAD, MODEL, CONFIRM, CONFIRM, FINISH),)
    ),
    "forged_stop_running": Shape(stopping.forged_running, COMPLETED, ((LOAD, MODEL, CONFIRM, FINISH),)),
    "forged_stop_paused": Shape(stopping.forged_paused, COMPLETED, (TO_GATE, WAIT, (CONFIRM, READ), WAIT, FREED)),
    "forged_stop_then_stopped": Shape(
        stopping.forged_then_stopped, TurnStatus.STOPPED, ((LOAD, MODEL, CONFIRM, CONFIRM, FINISH),)
    ),
    "cancelled_running": Shape(stopping.cancelled_running, TurnStatus.STOPPED, ((LOAD, MODEL, FINISH),)),
    "cancelled_paused": Shape(stopping.cancelled_paused, TurnStatus.STOPPED, (TO_GATE, WAIT, (FINISH,))),
    "refused_call": Shape(
        said(Line("asking", [("nobodys", {}), *LOOKS]), DONE), COMPLETED, ((LOAD, MODEL, *ROUND, FINISH),)
    ),
    "limited": Shape(
        said(Line("look", LOOKS), DONE, limits=Limits(max_iterations=1)),
        TurnStatus.LIMITED,
        ((LOAD, MODEL, TOOL, TOOL, FINISH),),
    ),
    "loop_answer": Shape(
        said(LOADING, Line("look", LOOKS), DONE, agent_id="looper"), COMPLETED, ((LOAD, MODEL, MODEL, *ROUND, FINISH),)
    ),
    "loop_approved": Shape(looping(Decision.APPROVE), COMPLETED, (TO_LOOP_GATE, WAIT, FREED)),
    "loop_rejected": Shape(looping(Decision.REJECT, comment="no"), COMPLETED, (TO_LOOP_GATE, WAIT, FREED)),
    "loop_stopped_paused": Shape(
        looping_stopped, TurnStatus.STOPPED, ((LOAD, MODEL, MODEL, OPEN), WAIT, (CONFIRM, FINISH))
    ),
    "provider_failed": Shape(said(Line("half", fails=99)), TurnStatus.FAILED, ((LOAD, MODEL, FINISH),)),
}
"""The shapes by name, which is the recording's file name."""
