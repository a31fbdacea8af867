"""What the people port promises of checkpoints, of the double and of the real records alike."""

import pytest

from perdure.contracts.approvals import GatedCall, RequestKind, VerdictState
from perdure.contracts.calls import CallState, ToolCallRequest
from perdure.contracts.messages import Role
from tests.ports.contract import NewTurn, Run, Turn, asks, line, planned

V = VerdictState


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


async def test_a_checkpoint_on_no_call_is_named_by_the_step_at_which_it_is_asked_for(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await planned(turn)
    (request,) = await run.ask([checkpoint("", "")])
    assert (request.call_id, request.kind, request.tool) == ("c1", RequestKind.CHECKPOINT, "")
    assert (await run.ask([checkpoint("c1", "")]))[0] == request


@pytest.mark.parametrize("state", [V.APPROVED, V.REJECTED, V.RESPONDED, V.EXPIRED])
async def test_a_run_that_starts_over_finds_the_checkpoint_and_its_verdict(
    new_turn: NewTurn, state: VerdictState
) -> None:
    turn = await new_turn(line(("look", {})))
    await at_checkpoint(turn)
    await turn.decide("c1.0", state, "because")
    later = await turn.run()
    found = await later.load()
    assert [(ref.kind, ref.call_id) for ref in found.pending] == [(RequestKind.CHECKPOINT, "c1.0")]
    assert found.pending_round is None, "nothing was stripped"
    (verdict,) = (await later.verdicts(found.pending)).verdicts
    assert (verdict.state, verdict.round) == (state, None)


async def test_an_edited_checkpoint_names_the_round_that_makes_its_call_again_and_it_runs_once(
    new_turn: NewTurn,
) -> None:
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


async def test_a_call_that_nobody_edited_is_none_to_run(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await at_checkpoint(turn)
    await turn.decide("c1.0", V.APPROVED)
    (outcome,) = await run.run_tools([ToolCallRequest(call_id="c1.0", tool="look")])
    assert outcome.problem is not None and outcome.problem.code == "call_not_planned"


async def test_the_places_asked_about_are_told_of_a_result(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})))
    run = await planned(turn)
    (done,) = await run.run_tools([ToolCallRequest(call_id="t1.0", tool="look", paths=("number", "done", "nowhere"))])
    assert done.facts == {"number": 0, "done": "/look"}
    (stored,) = await run.run_tools([ToolCallRequest(call_id="t1.0", tool="look", paths=("number", "done", "nowhere"))])
    assert stored.facts == done.facts
