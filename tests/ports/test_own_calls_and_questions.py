"""What the ports promise a graph that works by itself, of the double and of the real ledger alike: calls of its own,
objects of a model, questions to the turn's own user."""

import json
from typing import Any

from perdure.contracts.approvals import Question, RequestKind, RequestRef, VerdictState
from perdure.contracts.calls import CallState, ModelCallRequest, OutputAsk, PlannedAsk
from tests.doubles.spoken import Line
from tests.ports.contract import NewTurn, Run, Turn, line

S, V = CallState, VerdictState
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
ASKED = Question(call_id="", kind=RequestKind.CLARIFICATION, asked={"question": "Which?"}, answer_schema=SCHEMA)


async def asked(turn: Turn, run: Run | None = None) -> tuple[Run, RequestRef]:
    """A run that has ended in the pause for a question."""
    run = run or await turn.run(step=3)
    request = await run.question(ASKED)
    await run.pause()
    return run, request


async def test_calls_of_the_graphs_own_are_done_and_answer_whole_in_their_order(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run = await turn.run(step=4)
    outcomes = await run.make_calls(
        [PlannedAsk(tool="look", args={}), PlannedAsk(tool="look", args={"mode": "refuse"})]
    )
    assert [(each.call_id, each.state) for each in outcomes] == [("t5.0", S.DONE), ("t5.1", S.FAILED)]
    assert outcomes[0].output == {"done": "/look", "number": 0}
    refused: Any = outcomes[1].output
    assert refused["status"] == "error" and "the desk says no" in refused["message"]


async def test_a_call_of_the_graphs_own_is_settled_once_whoever_makes_it_again(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    ask = [PlannedAsk(tool="look", args={"what": "rooms"})]
    first = await (await turn.run(step=4)).make_calls(ask)
    assert await (await turn.run(step=4)).make_calls(ask) == first
    assert await turn.dispatched("t5.0") == 1


async def test_a_graph_makes_no_call_that_needs_leave_and_none_of_a_tool_that_is_not_there(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run = await turn.run(step=4)
    outcomes = await run.make_calls(PlannedAsk(tool="pay", args={}), PlannedAsk(tool="nobodys", args={}))
    assert [(each.state, each.problem.code if each.problem else "") for each in outcomes] == [
        (S.PLANNED, "call_not_planned"),
        (S.PLANNED, "call_not_planned"),
    ]
    assert await turn.dispatched("t5.0") == 0


async def test_a_stopped_run_makes_no_call(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run = await turn.run(step=4)
    await run.wake_stop()
    (outcome,) = await run.make_calls(PlannedAsk(tool="look", args={}))
    assert outcome.problem is not None and outcome.problem.code == "stopped"
    assert await turn.dispatched("t5.0") == 0


async def test_an_object_comes_as_it_fits_and_what_does_not_fit_is_a_fault(new_turn: NewTurn) -> None:
    turn = await new_turn(Line(json.dumps({"text": "yes"})), Line("words"))
    run = await turn.run()
    ask = ModelCallRequest(messages=(), tools=(), stage="say", output=OutputAsk(name="say", fits=SCHEMA))
    good = await run.complete(ask)
    assert (good.value, good.fault, good.message, good.problem) == ({"text": "yes"}, "", None, None)
    bad = await run.complete(ask)
    assert bad.value is None and bad.fault and bad.problem is None and bad.usage.tokens > 0
    again = await (await turn.run()).complete(ask)
    now = {"turn_used": None}  # what the turn has come to meanwhile
    assert again.model_copy(update=now) == good.model_copy(update=now), "paid once"


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


async def test_an_answer_is_read_as_it_was_given_also_by_a_later_run(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run, request = await asked(turn)
    await turn.answer("q3", {"text": "the second"})
    for reader in (run, await turn.run(step=3)):
        (verdict,) = (await reader.verdicts([request])).verdicts
        assert (verdict.state, verdict.answer) == (V.ANSWERED, {"text": "the second"})
    again, same = await asked(turn, await turn.run(step=3))
    assert same == request, "asked again it stays answered"
    assert (await again.verdicts([request])).verdicts[0].state is V.ANSWERED
