"""What the people port promises, of the double and of the real records behind a real run alike."""

from collections.abc import Sequence

import pytest

from perdure.contracts.approvals import RequestKind, RequestRef, Verdict, VerdictState
from perdure.core.text import preview
from tests.ports.contract import NewTurn, Run, Turn, approved, asks, gated, line, paused, planned

V = VerdictState
DECIDED = {
    V.APPROVED: ("fine by me", "reviewer"),
    V.EDITED: ("less, please", "reviewer"),
    V.REJECTED: ("not in policy", "reviewer"),
    V.RESPONDED: ("ask them first", "reviewer"),
    V.EXPIRED: ("", ""),
    V.WITHDRAWN: ("", ""),
    V.CANCELLED: ("", ""),
}
"""Each state with its comment and who decided; what comes by itself has neither."""


async def decided(turn: Turn, call_id: str, state: VerdictState) -> None:
    """Bring an approval into a state."""
    await turn.decide(call_id, state, DECIDED[state][0], {"amount": 1, "mode": ""} if state is V.EDITED else None)


async def states(run: Run, requests: Sequence[RequestRef]) -> list[VerdictState]:
    """The states read, which come with no problem."""
    read = await run.verdicts(requests)
    assert read.problem is None
    return [verdict.state for verdict in read.verdicts]


async def test_requests_are_named_before_anything_is_opened_and_the_same_at_every_ask(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("shout", {"mode": "break"}), ("post", {})))
    run = await planned(turn)
    pay, shout, post = gated("pay", "shout", "post")
    first = await run.ask([pay, post], [shout])
    assert [(ref.kind, ref.call_id, ref.tool) for ref in first] == [
        (RequestKind.APPROVAL, "t1.0", "pay"),
        (RequestKind.APPROVAL, "t1.2", "post"),
        (RequestKind.EFFECT, "t1.1", "shout"),
    ]
    assert len({ref.request_id for ref in first}) == 3
    assert await run.ask([pay, post], [shout]) == first
    assert await (await turn.run(step=1)).ask([pay, post], [shout]) == first


async def test_what_a_run_asked_for_is_open_only_once_the_run_ends_in_its_pause(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run = await planned(turn)
    requests = await run.ask(gated("pay", "post"))
    before = (await run.verdicts(requests)).verdicts
    assert [(each.state, each.no_record) for each in before] == [(V.UNREADABLE, True)] * 2, "no record, no verdict"
    await run.pause()
    after = (await run.verdicts(requests)).verdicts
    assert [(each.state, each.no_record) for each in after] == [(V.PENDING, False)] * 2


async def test_opening_again_changes_no_verdict(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run, requests = await paused(turn, "pay", "post")
    await decided(turn, "t1.0", V.REJECTED)
    assert await run.ask(gated("pay", "post")) == requests
    await run.pause()
    assert await states(run, requests) == [V.REJECTED, V.PENDING]


@pytest.mark.parametrize("state", DECIDED)
async def test_a_verdict_says_what_was_decided_why_and_by_whom(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("pay", {})))
    run, (request,) = await paused(turn, "pay")
    await decided(turn, "t1.0", state)
    comment, by = DECIDED[state]
    expected = Verdict(
        request_id=request.request_id, call_id="t1.0", tool="pay", state=state, comment=comment, decided_by=by
    )
    assert (await run.verdicts([request])).verdicts == (expected,)
    later = await turn.run(step=1)
    assert (await later.verdicts([request])).verdicts == (expected,), "the same for every run"


async def test_a_long_reason_comes_by_its_start_and_says_so(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {})))
    run, requests = await paused(turn, "pay")
    await turn.decide("t1.0", V.REJECTED, "not in policy, " * 100)
    (verdict,) = (await run.verdicts(requests)).verdicts
    assert (verdict.comment, verdict.is_cut) == (preview("not in policy, " * 100), True)


async def test_verdicts_come_in_the_order_of_the_requests_one_for_each(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {}), ("pay", {})))
    run, requests = await paused(turn, "pay", "post", "pay")
    await decided(turn, "t1.0", V.APPROVED)
    await decided(turn, "t1.2", V.REJECTED)
    assert await states(run, requests) == [V.APPROVED, V.PENDING, V.REJECTED]
    assert await states(run, [*reversed(requests)]) == [V.REJECTED, V.PENDING, V.APPROVED]
    assert await states(run, [requests[1]]) == [V.PENDING]
    assert await states(run, []) == []


async def test_each_read_is_fresh(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {})))
    run, requests = await paused(turn, "pay")
    (verdict,) = (await run.verdicts(requests)).verdicts
    assert (verdict.state, verdict.comment, verdict.decided_by) == (V.PENDING, "", "")
    await decided(turn, "t1.0", V.APPROVED)
    assert await states(run, requests) == [V.APPROVED]


async def test_a_forged_record_is_unreadable_and_its_sibling_is_not(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run, requests = await paused(turn, "pay", "post")
    await decided(turn, "t1.0", V.APPROVED)
    await decided(turn, "t1.1", V.APPROVED)
    await turn.forge("t1.0")
    (forged, sibling) = (await run.verdicts(requests)).verdicts
    assert (forged.state, forged.comment, forged.decided_by) == (V.UNREADABLE, "", "")
    assert sibling.state is V.APPROVED


async def test_a_request_for_another_call_than_the_records_is_unreadable(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run, (pay, post) = await paused(turn, "pay", "post")
    await decided(turn, "t1.0", V.APPROVED)
    crossed = post.model_copy(update={"request_id": pay.request_id})
    assert await states(run, [crossed]) == [V.UNREADABLE]


@pytest.mark.parametrize("kind", RequestKind)
async def test_a_request_that_nobody_made_is_unreadable(new_turn: NewTurn, kind: RequestKind) -> None:
    run, _ = await paused(await new_turn(line(("pay", {}))), "pay")
    unknown = "00000000-0000-8000-8000-000000000000"
    made_up = RequestRef(request_id=unknown, kind=kind, call_id="t1.0", tool="pay")
    assert await states(run, [made_up]) == [V.UNREADABLE]


async def test_a_record_that_cannot_be_read_at_all_never_reads_as_a_verdict(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {})))
    run, requests = await paused(turn, "pay")
    await turn.garble("t1.0")
    read = await run.verdicts(requests)
    assert read.problem is not None or [verdict.state for verdict in read.verdicts] == [V.UNREADABLE]


@pytest.mark.parametrize("state", [V.APPROVED, V.EDITED])
async def test_a_call_that_has_run_reads_as_approved_from_then_on(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("pay", {})))
    run, requests = await paused(turn, "pay")
    await decided(turn, "t1.0", state)
    await run.run_tools(asks("pay"))
    assert await states(run, requests) == [V.APPROVED]


async def test_an_effect_is_pending_until_a_person_says_what_became_of_it(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("post", {"mode": "break"})))
    run = await approved(turn, "post")
    await run.run_tools(asks("post"))
    (effect,) = await run.ask([], gated("post"))
    await run.pause()
    assert effect.kind is RequestKind.EFFECT
    (open_one,) = (await run.verdicts([effect])).verdicts
    assert (open_one.state, open_one.comment) == (V.PENDING, "")
    await turn.settle("t1.0", happened=True)
    (settled,) = (await run.verdicts([effect])).verdicts
    assert (settled.state, settled.comment) == (V.SETTLED, "I looked")
    assert (settled.request_id, settled.call_id, settled.tool) == (effect.request_id, "t1.0", "post")
