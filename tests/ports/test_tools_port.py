"""What the ports of the model and of tools promise, of the doubles and of what is behind a real run alike."""

import json

import pytest

from perdure.contracts.approvals import VerdictState
from perdure.contracts.calls import (
    CallState,
    ModelCallRequest,
    ModelReply,
    OutputAsk,
    PlannedAsk,
    ToolCallRequest,
    ToolOutcome,
)
from perdure.contracts.messages import Role
from tests.doubles.message_script import Line
from tests.ports.contract import ASK, SCHEMA, Args, NewTurn, approved, asks, gated, line, paused, planned, problem

S, V = CallState, VerdictState


def told(outcome: ToolOutcome) -> Args:
    """What the model reads of a settled call."""
    assert outcome.message is not None and outcome.problem is None
    assert (outcome.message.role, outcome.message.call_id) == (Role.TOOL, outcome.call_id)
    assert outcome.message.id, "a message that stays is stored"
    found: Args = json.loads(outcome.message.text)
    return found


async def test_outcomes_are_returned_in_the_order_of_the_requests(new_turn: NewTurn) -> None:
    run = await planned(await new_turn(line(("slow_look", {}), ("look", {}), ("look", {"mode": "refuse"}))))
    outcomes = await run.run_tools(asks("slow_look", "look", "look"))
    assert [outcome.call_id for outcome in outcomes] == ["t1.0", "t1.1", "t1.2"]
    assert [outcome.state for outcome in outcomes] == [S.FAILED, S.DONE, S.FAILED]
    body = told(outcomes[2])
    assert body["status"] == "error" and "the desk says no" in str(body["message"]), "a no is an answer, no problem"
    backwards = await run.run_tools([*reversed(asks("slow_look", "look", "look"))])
    assert backwards == [*reversed(outcomes)]


async def test_a_call_that_is_done_tells_the_model_its_result_and_the_places_asked_about(new_turn: NewTurn) -> None:
    run = await planned(await new_turn(line(("look", {}))))
    assert [*await run.run_tools([])] == []
    for _ in range(2):
        ask = ToolCallRequest(call_id="t1.0", tool="look", paths=("number", "done", "nowhere"))
        (outcome,) = await run.run_tools([ask])
        assert told(outcome) == {"done": "/look", "number": 0}
        assert (outcome.patch, outcome.facts) == ({}, {"number": 0, "done": "/look"})


@pytest.mark.parametrize(
    ("tools", "needs_leave", "mode", "states"),
    [(("book", "look"), False, "refuse", [S.DONE, S.FAILED]), (("pay", "post"), True, "", [S.DONE, S.DONE])],
)
async def test_a_call_runs_once_and_answers_with_its_stored_result_in_this_run_and_in_a_later_one(
    new_turn: NewTurn, tools: tuple[str, str], needs_leave: bool, mode: str, states: list[CallState]
) -> None:
    turn = await new_turn(line((tools[0], {}), (tools[1], {"mode": mode})))
    run = await (approved(turn, *tools) if needs_leave else planned(turn))
    first = await run.run_tools(asks(*tools))
    assert [outcome.state for outcome in first] == states
    assert await run.run_tools(asks(*tools)) == first
    assert await (await turn.run(step=1)).run_tools(asks(*tools)) == first
    assert [await turn.dispatched(call) for call in ("t1.0", "t1.1")] == [1, 1]


async def test_a_state_aware_tool_updates_the_fields_that_its_card_names(new_turn: NewTurn) -> None:
    run = await planned(await new_turn(line(("entity_resolve", {"name": "nobody of this name"}))))
    (outcome,) = await run.run_tools(asks("entity_resolve"))
    assert outcome.patch == {"consecutive_failed_resolves": 1}
    assert await run.run_tools(asks("entity_resolve")) == [outcome], "its updates are stored with it"


async def test_an_unknown_tool_is_settled_already_and_a_call_that_no_model_made_is_a_problem(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("nobodys", {}), ("look", {})))
    run = await planned(turn)
    unknown, look, other = await run.run_tools([*asks("nobodys", "look"), *asks("look", step=7)])
    assert (unknown.state, look.state) == (S.FAILED, S.DONE)
    assert told(unknown)["status"] == "error" and "nobodys" in str(told(unknown)["message"])
    assert (other.state, other.message, problem(other)) == (S.PLANNED, None, "call_not_planned")
    assert [await turn.dispatched(call) for call in ("t1.0", "t7.0")] == [0, 0]


async def test_a_gated_call_without_an_approval_is_denied_for_good(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {})))
    run = await planned(turn)
    (outcome,) = await run.run_tools(asks("pay"))
    assert outcome.state is S.DENIED and told(outcome)["status"] == "denied"
    await run.ask(gated("pay"))
    await run.pause()
    await turn.decide("t1.0", V.APPROVED)
    assert await run.run_tools(asks("pay")) == [outcome]
    assert await turn.dispatched("t1.0") == 0


@pytest.mark.parametrize("state", [V.PENDING, V.REJECTED, V.RESPONDED, V.EXPIRED, V.WITHDRAWN, V.UNREADABLE])
async def test_a_gated_call_runs_only_on_an_approving_verdict(new_turn: NewTurn, state: VerdictState) -> None:
    turn = await new_turn(line(("pay", {}), ("look", {})))
    run, requests = await paused(turn, "pay")
    if state is V.UNREADABLE:
        await turn.decide("t1.0", V.APPROVED)
        await turn.forge("t1.0")
    elif state is not V.PENDING:
        await turn.decide("t1.0", state, "not in policy")
        await run.verdicts(requests)  # where an overdue one expires
    gated_call, look = await run.run_tools(asks("pay", "look"))
    waits = state is V.PENDING
    assert (gated_call.state, look.state) == (S.PLANNED if waits else S.DENIED, S.DONE), "its sibling runs all the same"
    body = {} if waits else told(gated_call)
    assert body.get("status") == (None if waits else "denied") and gated_call.problem is None
    if state in (V.REJECTED, V.RESPONDED):
        assert body["reason"] == "not in policy"
    assert await turn.dispatched("t1.0") == 0


async def test_an_edited_call_runs_as_edited_and_the_model_is_told_so(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {"amount": 5, "mode": "refuse"})))
    run, _ = await paused(turn, "pay")
    await turn.decide("t1.0", V.EDITED, args={"amount": 3, "mode": ""})
    (outcome,) = await run.run_tools(asks("pay"))
    assert outcome.state is S.DONE
    body = told(outcome)
    assert body["arguments"] == {"amount": 3, "mode": ""}
    assert body["result"] == {"done": "/pay", "number": 0}


@pytest.mark.parametrize("tool", ["shout", "post"])
async def test_a_call_with_an_unknown_outcome_says_so_and_is_never_sent_again(new_turn: NewTurn, tool: str) -> None:
    turn = await new_turn(line((tool, {"mode": "break"}), ("look", {})))
    run = await (approved(turn, tool) if tool == "post" else planned(turn))
    unknown, look = await run.run_tools(asks(tool, "look"))
    assert look.state is S.DONE
    assert unknown == ToolOutcome(call_id="t1.0", state=S.OUTCOME_UNKNOWN)
    assert await run.run_tools(asks(tool, "look")) == [unknown, look]
    assert await (await turn.run(step=1)).run_tools(asks(tool)) == [unknown]
    assert await turn.dispatched("t1.0") == 1


@pytest.mark.parametrize(("happened", "state"), [(True, S.DONE), (False, S.FAILED)])
async def test_a_settled_outcome_stays_the_outcome(new_turn: NewTurn, happened: bool, state: CallState) -> None:
    turn = await new_turn(line(("shout", {"mode": "break"})))
    run = await planned(turn)
    await run.run_tools(asks("shout"))
    await turn.settle("t1.0", happened=happened)
    (outcome,) = await run.run_tools(asks("shout"))
    assert outcome.state is state
    assert told(outcome) == {
        "status": "happened" if happened else "did_not_happen",
        "settled_by": "reviewer",
        "comment": "I looked",
    }
    assert await run.run_tools(asks("shout")) == [outcome]
    assert await turn.dispatched("t1.0") == 1


async def test_after_a_stop_nothing_new_is_sent_and_settled_results_are_still_returned(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("book", {}), ("book", {}), ("shout", {"mode": "break"}), ("pay", {})))
    run = await planned(turn)
    everything = asks("book", "book", "shout", "pay")
    done, unknown = await run.run_tools([everything[0], everything[2]])
    await turn.stop()
    outcomes = await run.run_tools(everything)
    assert (outcomes[0], outcomes[2]) == (done, unknown)
    for outcome in (outcomes[1], outcomes[3]):
        assert (outcome.state, outcome.message, problem(outcome)) == (S.PLANNED, None, "stopped")
    assert [await turn.dispatched(f"t1.{index}") for index in range(4)] == [1, 0, 1, 0]


async def test_a_run_that_has_received_the_stop_requests_and_calls_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("book", {})), line())
    run = await planned(turn)
    await run.wake_stop()
    (outcome,) = await run.run_tools(asks("book"))
    (own,) = await run.make_calls(PlannedAsk(tool="look", args={}))
    assert {problem(each) for each in (outcome, own, await run.complete(ASK))} == {"stopped"}
    assert [await turn.dispatched(call) for call in (outcome.call_id, own.call_id)] == [0, 0]


async def test_impossible_work_is_a_problem_of_each_call_and_raises_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {}), ("book", {})))
    await planned(turn)
    gone = await turn.run(step=1, gone=True)
    outcomes = await gone.run_tools(asks("look", "book"))
    assert [outcome.call_id for outcome in outcomes] == ["t1.0", "t1.1"]
    for outcome in outcomes:
        assert (outcome.state, outcome.message, problem(outcome)) == (S.PLANNED, None, "agent_version_not_found")
    assert [await turn.dispatched(call) for call in ("t1.0", "t1.1")] == [0, 0]
    reply = await gone.complete(ASK)
    assert (reply.message, problem(reply)) == (None, "agent_version_not_found")


@pytest.mark.parametrize(
    ("state", "becomes"), [(V.APPROVED, S.DONE), (V.REJECTED, S.DENIED), (V.UNREADABLE, S.PLANNED)]
)
async def test_only_decided_calls_start(new_turn: NewTurn, state: VerdictState, becomes: CallState) -> None:
    turn = await new_turn(line(("pay", {}), ("post", {}), ("pay", {})))
    run, requests = await paused(turn, "pay", "post", "pay")
    await turn.decide("t1.0", V.APPROVED)
    await run.verdicts(requests)
    await turn.decide("t1.1", V.REJECTED if state is V.REJECTED else V.APPROVED, "not in policy")
    if state is V.UNREADABLE:
        await turn.forge("t1.1")
    await run.wake()
    outcomes = await run.run_tools(asks("pay", "post", "pay"), requests[1:])
    assert [outcome.state for outcome in outcomes] == [S.DONE, becomes, S.PLANNED]
    assert outcomes[2].message is None and outcomes[2].problem is None, "it waits"
    assert [await turn.dispatched(f"t1.{index}") for index in range(3)] == [1, int(state is V.APPROVED), 0]
    await turn.decide("t1.2", V.APPROVED)
    (last,) = await run.run_tools(asks("pay", "post", "pay")[2:])
    assert (last.state, await turn.dispatched("t1.2")) == (S.DONE, 1)


async def test_calls_of_the_graph_run_once_and_return_in_order(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    own = [PlannedAsk(tool="look", args={}), PlannedAsk(tool="look", args={"mode": "refuse"})]
    outcomes = await (await turn.run(step=4)).make_calls(*own)
    assert [(each.call_id, each.state) for each in outcomes] == [("t5.0", S.DONE), ("t5.1", S.FAILED)]
    assert outcomes[0].output == {"done": "/look", "number": 0}
    refused = outcomes[1].output
    assert isinstance(refused, dict) and refused["status"] == "error" and "says no" in str(refused["message"])
    assert await (await turn.run(step=4)).make_calls(*own) == outcomes, "for every worker"
    assert [await turn.dispatched(call) for call in ("t5.0", "t5.1")] == [1, 1]


async def test_a_graph_makes_no_call_that_needs_approval_or_is_unknown(new_turn: NewTurn) -> None:
    turn = await new_turn(line())
    run = await turn.run(step=4)
    outcomes = await run.make_calls(PlannedAsk(tool="pay", args={}), PlannedAsk(tool="nobodys", args={}))
    assert [(each.state, problem(each)) for each in outcomes] == [(S.PLANNED, "call_not_planned")] * 2
    assert await turn.dispatched("t5.0") == 0


def calls(reply: ModelReply) -> list[tuple[str, str, bool]]:
    assert reply.message is not None
    return [(call.call_id, call.tool, call.settled) for call in reply.message.calls]


async def test_a_reply_is_a_stored_message_with_its_usage(new_turn: NewTurn) -> None:
    reply = await (await (await new_turn(Line("hello there"))).run()).complete(ASK)
    assert reply.message is not None and reply.problem is None and not reply.partial
    assert reply.message.id
    assert (reply.message.role, reply.message.text, reply.message.calls) == (Role.ASSISTANT, "hello there", ())
    assert (reply.usage.tokens, reply.usage.cost_microusd) == (10, 10)


async def test_calls_are_named_by_step_and_position_and_an_invalid_one_is_settled(new_turn: NewTurn) -> None:
    run = await (
        await new_turn(line(("look", {}), ("nobodys", {}), ("pay", {})), line(("look", {}), ("pay", {})))
    ).run()
    reply = await run.complete(ASK)
    assert calls(reply) == [("t1.0", "look", False), ("t1.1", "nobodys", True), ("t1.2", "pay", False)]
    (_, outcome, _) = await run.run_tools(asks("look", "nobodys", "pay"))
    assert reply.message is not None and outcome.message is not None and outcome.message.id
    assert [call.answer_id for call in reply.message.calls] == ["", outcome.message.id, ""], "it names its answer"
    not_offered = await run.complete(ASK.model_copy(update={"tools": ("look",)}))
    assert calls(not_offered) == [("t2.0", "look", False), ("t2.1", "pay", True)], (
        "a tool that is not offered does not exist"
    )


async def test_equal_arguments_have_equal_digests(new_turn: NewTurn) -> None:
    run = await (await new_turn(line(("pay", {"amount": 1}), ("pay", {"amount": 1}), ("pay", {"amount": 2})))).run()
    reply = await run.complete(ASK)
    assert reply.message is not None
    one, same, other = (call.digest for call in reply.message.calls)
    assert one == same != other


async def test_a_later_run_that_repeats_a_step_gets_its_stored_reply(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})), Line("well"))
    run = await turn.run()
    first = await run.complete(ASK)
    again = await turn.run()
    assert await again.complete(ASK) == first
    second = await again.complete(ASK)
    assert second.message is not None and second.message.text == "well"
    assert await run.complete(ASK) == second, "for every caller"


async def test_a_pattern_extracts_its_matches_from_the_whole_answer(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("x " * 300 + "PICK:one PICK:two"))).run()
    reply = await run.complete(ASK.model_copy(update={"extract_pattern": r"PICK:(\w+)"}))
    assert reply.extracted == ("one", "two")
    assert reply.message is not None and len(reply.message.text) <= 400, "the reference carries the start of it"


async def test_a_stopped_turn_reads_settled_replies_and_sends_no_request(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("first"), Line("second"))
    first = await (await turn.run()).complete(ASK)
    later = await turn.run()
    await turn.stop()
    assert await later.complete(ASK) == first
    reply = await later.complete(ASK)
    assert (reply.message, problem(reply)) == (None, "stopped")


async def test_an_object_that_fits_is_returned_and_any_other_is_a_fault(new_turn: NewTurn) -> None:
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
