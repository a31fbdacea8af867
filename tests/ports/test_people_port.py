"""What the people port promises, of the double and of the real records behind a real run alike."""

from collections.abc import Sequence

import pytest

from perdure.contracts.approvals import GatedCall, Question, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import CallState, ToolCallRequest
from perdure.contracts.messages import Role
from perdure.core.text import preview
from tests.ports.contract import SCHEMA, NewTurn, Run, Turn, approved, asks, gated, line, paused, planned, problem

V = VerdictState
ASKED = Question(call_id="", kind=RequestKind.CLARIFICATION, asked={"question": "Which?"}, answer_schema=SCHEMA)
DECIDED = {
    V.APPROVED: ("fine by me", "reviewer"),
    V.EDITED: ("less, please", "reviewer"),
    V.REJECTED: ("not in policy, " * 100, "reviewer"),  # a long reason is cut and marked
    V.RESPONDED: ("ask them first", "reviewer"),
    V.EXPIRED: ("", ""),
    V.WITHDRAWN: ("", ""),
    V.CANCELLED: ("", ""),
}
"""Each state with its comment and who decided; what comes by itself has neither."""


async def decided(turn: Turn, call_id: str, state: VerdictState) -> None:
    await turn.decide(call_id, state, DECIDED[state][0], {"amount": 1, "mode": ""} if state is V.EDITED else None)


async def states(run: Run, requests: Sequence[RequestRef]) -> list[VerdictState]:
    read = await run.verdicts(requests)
    assert read.problem is None
    return [verdict.state for verdict in read.verdicts]


async def test_requests_get_the_same_ids_each_time_before_they_are_opened(new_turn: NewTurn) -> None:
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


async def test_requests_open_when_the_run_pauses_and_opening_again_changes_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run = await planned(turn)
    requests = await run.ask(gated("pay", "post"))
    before = (await run.verdicts(requests)).verdicts
    assert [(each.state, each.no_record) for each in before] == [(V.UNREADABLE, True)] * 2, "no record, no verdict"
    await run.pause()
    for after in (await run.verdicts(requests)).verdicts:
        assert (after.state, after.no_record, after.comment, after.decided_by) == (V.PENDING, False, "", "")
    await decided(turn, "t1.0", V.REJECTED)
    assert await run.ask(gated("pay", "post")) == requests
    await run.pause()
    assert await states(run, requests) == [V.REJECTED, V.PENDING]


@pytest.mark.parametrize("state", DECIDED)
async def test_a_verdict_has_its_decision_reason_and_reviewer(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("pay", {})))
    run, (request,) = await paused(turn, "pay")
    await decided(turn, "t1.0", state)
    comment, by = DECIDED[state]
    expected = Verdict(
        request_id=request.request_id, call_id="t1.0", tool="pay", state=state, comment=preview(comment),
        is_cut=preview(comment) != comment, decided_by=by,
    )  # fmt: skip
    assert (await run.verdicts([request])).verdicts == (expected,)
    later = await turn.run(step=1)
    assert (await later.verdicts([request])).verdicts == (expected,), "the same for every run"


async def test_each_request_has_one_verdict_in_the_order_of_the_requests(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {}), ("pay", {})))
    run, requests = await paused(turn, "pay", "post", "pay")
    await decided(turn, "t1.0", V.APPROVED)
    await decided(turn, "t1.2", V.REJECTED)
    assert await states(run, requests) == [V.APPROVED, V.PENDING, V.REJECTED]
    assert await states(run, [*reversed(requests)]) == [V.REJECTED, V.PENDING, V.APPROVED]
    assert await states(run, [requests[1]]) == [V.PENDING]
    assert await states(run, []) == []


async def test_invalid_records_are_unreadable_and_do_not_affect_a_sibling(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run, requests = await paused(turn, "pay", "post")
    await decided(turn, "t1.0", V.APPROVED)
    await decided(turn, "t1.1", V.APPROVED)
    crossed = requests[1].model_copy(update={"request_id": requests[0].request_id})
    assert await states(run, [crossed]) == [V.UNREADABLE]
    await turn.forge("t1.0")
    (forged, sibling) = (await run.verdicts(requests)).verdicts
    assert (forged.state, forged.comment, forged.decided_by) == (V.UNREADABLE, "", "")
    assert sibling.state is V.APPROVED
    await turn.garble("t1.1")
    garbled = await run.verdicts(requests[1:])
    assert garbled.problem is not None or [verdict.state for verdict in garbled.verdicts] == [V.UNREADABLE]


@pytest.mark.parametrize("kind", RequestKind)
async def test_an_unknown_request_is_unreadable(new_turn: NewTurn, kind: RequestKind) -> None:
    run, _ = await paused(await new_turn(line(("pay", {}))), "pay")
    unknown = "00000000-0000-8000-8000-000000000000"
    made_up = RequestRef(request_id=unknown, kind=kind, call_id="t1.0", tool="pay")
    assert await states(run, [made_up]) == [V.UNREADABLE]


@pytest.mark.parametrize("state", [V.APPROVED, V.EDITED])
async def test_a_call_that_ran_reads_as_approved(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("pay", {})))
    run, requests = await paused(turn, "pay")
    await decided(turn, "t1.0", state)
    await run.run_tools(asks("pay"))
    assert await states(run, requests) == [V.APPROVED]


async def test_an_effect_is_pending_until_a_person_settles_it(new_turn: NewTurn) -> None:
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


def checkpoint(call_id: str = "c1.0", tool: str = "look") -> GatedCall:
    return GatedCall(call_id=call_id, tool=tool, rule="test", kind=RequestKind.CHECKPOINT, checkpoint="before_sending")


async def at_checkpoint(turn: Turn) -> Run:
    """A run that has made its call and waits for somebody to look at it."""
    run = await planned(turn)
    (done,) = await run.run_tools(asks("look"))
    assert done.state is CallState.DONE
    await run.ask([checkpoint()])
    await run.pause()
    return run


async def test_a_checkpoint_on_no_call_is_named_by_its_step(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await planned(turn)
    (request,) = await run.ask([checkpoint("", "")])
    assert (request.call_id, request.kind, request.tool) == ("c1", RequestKind.CHECKPOINT, "")
    assert (await run.ask([checkpoint("c1", "")]))[0] == request


@pytest.mark.parametrize("state", [V.APPROVED, V.REJECTED, V.RESPONDED, V.EXPIRED])
async def test_a_restarted_run_finds_the_checkpoint_and_its_verdict(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("look", {})))
    await at_checkpoint(turn)
    await turn.decide("c1.0", state, "because")
    later = await turn.run()
    found = await later.load()
    assert [(ref.kind, ref.call_id) for ref in found.pending] == [(RequestKind.CHECKPOINT, "c1.0")]
    assert found.pending_round is None, "nothing was stripped"
    (verdict,) = (await later.verdicts(found.pending)).verdicts
    assert (verdict.state, verdict.round) == (state, None)


async def test_an_edited_checkpoint_names_the_round_that_repeats_its_call_and_it_runs_once(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await at_checkpoint(turn)
    requests = await run.ask([checkpoint()])
    await turn.decide("c1.0", V.EDITED, args={"what": "b", "mode": ""})
    for _ in range(2):
        (verdict,) = (await run.verdicts(requests)).verdicts
        assert verdict.state is V.EDITED and verdict.round is not None
        assert (verdict.round.role, [call.call_id for call in verdict.round.calls]) == (Role.ASSISTANT, ["c1.0"])
        (again,) = await run.run_tools([ToolCallRequest(call_id="c1.0", tool="look")])
        assert again.state is CallState.DONE and again.message is not None
        assert '"b"' in again.message.text
    assert [await turn.dispatched(call_id) for call_id in ("t1.0", "c1.0")] == [1, 1]


async def test_a_call_that_was_not_edited_does_not_run_again(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await at_checkpoint(turn)
    await turn.decide("c1.0", V.APPROVED)
    (outcome,) = await run.run_tools([ToolCallRequest(call_id="c1.0", tool="look")])
    assert problem(outcome) == "call_not_planned"


async def asked(turn: Turn, run: Run | None = None) -> tuple[Run, RequestRef]:
    """A run that has ended in the pause for a question."""
    run = run or await turn.run(step=3)
    request = await run.question(ASKED)
    await run.pause()
    return run, request


async def test_a_question_is_named_by_its_step_and_open_only_once_the_run_has_paused(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run = await turn.run(step=3)
    request = await run.question(ASKED)
    assert (request.kind, request.call_id) == (RequestKind.CLARIFICATION, "q3")
    (before,) = (await run.verdicts([request])).verdicts
    assert (before.state, before.no_record) == (V.UNREADABLE, True)
    await run.pause()
    (after,) = (await run.verdicts([request])).verdicts
    assert after.state is V.PENDING and after.answer == {}


async def test_an_answer_is_read_unchanged_also_by_a_later_run(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run, request = await asked(turn)
    await turn.answer("q3", {"text": "the second"})
    for reader in (run, await turn.run(step=3)):
        (verdict,) = (await reader.verdicts([request])).verdicts
        assert (verdict.state, verdict.answer) == (V.ANSWERED, {"text": "the second"})
    again, same = await asked(turn, await turn.run(step=3))
    assert same == request, "asked again it stays answered"
    assert (await again.verdicts([request])).verdicts[0].state is V.ANSWERED
