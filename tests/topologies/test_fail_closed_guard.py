"""resume_guard fails closed: what cannot be read is never passed, warm from the state and cold from the store alike."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.contracts.activities import Verdicts
from perdure.contracts.calls import CallState
from perdure.contracts.errors import Problem
from perdure.contracts.messages import Role
from perdure.graph.spec import Outcome
from tests.doubles.fake_turn import Says
from tests.topologies.played import PAY, Played, V, Way, again_from_the_store, each_way, play, ran, resume

Reading = Callable[[Verdicts], Verdicts]
AWAY = Verdicts(problem=Problem(code="activity_timeout", message="no answer"))
HALF_READ = Problem(code="unexpected_error", message="half read")
CLOSED: dict[str, tuple[V, Reading]] = {
    "pending": (V.PENDING, lambda read: read),
    "service error": (V.APPROVED, lambda read: AWAY),
    "error beside approvals": (V.APPROVED, lambda read: read.model_copy(update={"problem": HALF_READ})),
    "missing record": (V.APPROVED, lambda read: Verdicts()),
    "one record missing": (V.APPROVED, lambda read: Verdicts(verdicts=read.verdicts[1:])),
    "unreadable": (V.UNREADABLE, lambda read: read),
    "service error over a rejection": (V.REJECTED, lambda read: AWAY),
}
REFUSED = [V.REJECTED, V.RESPONDED, V.EXPIRED, V.CANCELLED, V.WITHDRAWN, V.UNAVAILABLE]


async def paused_turn(state: V, reading: Reading = lambda read: read) -> Played:
    """A turn that waits for two approvals, both of which are decided like this, and read so."""

    async def read(found: Verdicts) -> Verdicts:
        return reading(found)

    played = await play(Says("asking", (PAY, PAY)), Says("well"))
    for call_id in ("t1.0", "t1.1"):
        played.turn.decide(call_id, state, args={"amount": 1} if state is V.EDITED else None)
    played.turn.reading = read
    return played


@each_way
@pytest.mark.parametrize(("state", "reading"), CLOSED.values(), ids=list(CLOSED))
async def test_an_open_or_unreadable_gate_pauses_again_with_no_dispatch(way: Way, state: V, reading: Reading) -> None:
    played = await paused_turn(state, reading)
    await way(played)
    assert (played.outcome(), played.turn.ran) == (Outcome.AWAITING, [])
    assert len(played.turn.asks) == 1, "no model call either"
    assert played.run.trace()[-2:] == ["resume_guard", "output_format"]
    assert played.run.asked is None or way is again_from_the_store, "nothing is opened twice"
    assert played.state["pending_tool_calls"] == []
    waits_for = played.state["pending_requests"]
    assert isinstance(waits_for, list) and len(waits_for) == 2
    assert all(message.role is Role.USER for message in played.messages), "the round stays stripped"


@each_way
@pytest.mark.parametrize(("state", "amount"), [(V.APPROVED, 5), (V.EDITED, 1), *((state, 0) for state in REFUSED)])
async def test_a_readable_verdict_counts_alike_after_a_resume_and_a_restart(way: Way, state: V, amount: int) -> None:
    """An amount of 0 is not paid."""
    played = await paused_turn(state)
    await way(played)
    assert (played.outcome(), len(played.turn.asks)) == (Outcome.COMPLETED, 2)
    assert played.turn.ran == ([("t1.0", {"amount": amount}), ("t1.1", {"amount": amount})] if amount else [])
    roles = [message.role.value for message in played.messages]
    assert roles == ["user", *(["assistant", "tool", "tool"] if amount else ["system"]), "assistant"]


@each_way
async def test_an_unreadable_verdict_that_becomes_readable_lets_the_call_run_once(way: Way) -> None:
    played = await paused_turn(V.APPROVED, lambda read: AWAY)
    for _ in range(2):
        await way(played)
        assert played.outcome() is Outcome.AWAITING
    played.turn.reading = None
    await way(played)
    assert (played.outcome(), ran(played.turn)) == (Outcome.COMPLETED, ["t1.0", "t1.1"])


@each_way
async def test_a_stop_while_verdicts_are_read_ends_the_turn_as_stopped(way: Way) -> None:
    stopped = Verdicts(problem=Problem(code="stopped", message="stopped"))
    played = await paused_turn(V.APPROVED, lambda read: stopped)
    await way(played)
    assert (played.outcome(), played.turn.ran) == (Outcome.STOPPED, [])


decisions = st.sampled_from([V.PENDING, V.APPROVED, V.EDITED, V.REJECTED, V.RESPONDED, V.EXPIRED, V.WITHDRAWN])
calls = st.lists(st.sampled_from(["look", "pay", "post", "shout", "nobody"]), min_size=1, max_size=5)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls, st.data())
async def test_each_call_of_a_round_runs_at_most_once(tools: list[str], data: st.DataObject) -> None:
    breaks = {f"t1.{index}" for index in range(len(tools)) if data.draw(st.booleans())}
    script = tuple((tool, {"breaks": True} if f"t1.{index}" in breaks else {}) for index, tool in enumerate(tools))
    played = await play(Says("asking", script), Says("well"))
    made = played.turn
    allowed = {f"t1.{index}" for index, tool in enumerate(tools) if tool in ("look", "shout")}
    free = set(allowed)
    gated = {f"t1.{index}" for index, tool in enumerate(tools) if tool in ("pay", "post")}
    if gated:
        assert made.ran == [], "nothing of a gated round runs before it is decided"
    for _ in range(12):
        if played.outcome() is not Outcome.AWAITING:
            break
        for call_id in sorted(gated):
            state = data.draw(decisions)
            made.decide(call_id, state, args={} if state is V.EDITED else None)
            allowed |= {call_id} if state in (V.APPROVED, V.EDITED) else set()
            gated -= {call_id} if state is not V.PENDING else set()
        for row in made.rows.values():
            if row.state is CallState.OUTCOME_UNKNOWN and data.draw(st.booleans()):
                made.settle(row.call_id, data.draw(st.booleans()))
        await data.draw(st.sampled_from([resume, again_from_the_store]))(played)
        dispatched = ran(made)
        assert len(dispatched) == len(set(dispatched))
        assert set(dispatched) <= allowed
        assert not dispatched or not (made.book or gated) or allowed - free, "a verdict has freed the round"
        assert all(message.role is not Role.TOOL for message in played.messages) or not gated, "it stays stripped"
    answered = {message.call_id for message in played.messages if message.role is Role.TOOL}
    asked = {call.call_id for message in played.messages for call in message.calls}
    assert answered == asked, "no call without its answer, no answer without its call"
