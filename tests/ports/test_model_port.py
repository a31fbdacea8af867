"""What the model port promises, of the double and of real model calls behind a real run alike."""

from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.messages import Role
from tests.doubles.spoken import Line
from tests.ports.contract import OFFERED, NewTurn, asks, line

ASK = ModelCallRequest(messages=(), tools=OFFERED)


def calls(reply: ModelReply) -> list[tuple[str, str, bool]]:
    assert reply.message is not None
    return [(call.call_id, call.tool, call.settled) for call in reply.message.calls]


async def test_a_reply_is_a_stored_message_with_its_usage(new_turn: NewTurn) -> None:
    reply = await (await (await new_turn(Line("hello there"))).run()).complete(ASK)
    assert reply.message is not None and reply.problem is None and not reply.partial
    assert reply.message.id
    assert (reply.message.role, reply.message.text, reply.message.calls) == (Role.ASSISTANT, "hello there", ())
    assert (reply.usage.tokens, reply.usage.cost_microusd) == (10, 10)


async def test_calls_are_named_by_step_and_place_and_one_that_cannot_run_is_settled(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {}), ("nobodys", {}), ("pay", {})), line(("look", {})))
    run = await turn.run()
    assert calls(await run.complete(ASK)) == [
        ("t1.0", "look", False),
        ("t1.1", "nobodys", True),
        ("t1.2", "pay", False),
    ]
    assert calls(await run.complete(ASK)) == [("t2.0", "look", False)]


async def test_a_call_that_cannot_run_names_the_message_that_answers_it(new_turn: NewTurn) -> None:
    run = await (await new_turn(line(("nobodys", {}), ("look", {})))).run()
    reply = await run.complete(ASK)
    assert reply.message is not None
    refused, look = reply.message.calls
    (outcome, _) = await run.run_tools(asks("nobodys", "look"))
    assert outcome.message is not None and refused.answer_id == outcome.message.id != ""
    assert look.answer_id == ""


async def test_a_tool_that_was_not_offered_is_one_that_nobody_has(new_turn: NewTurn) -> None:
    run = await (await new_turn(line(("look", {}), ("pay", {})))).run()
    reply = await run.complete(ASK.model_copy(update={"tools": ("look",)}))
    assert [settled for _, _, settled in calls(reply)] == [False, True]


async def test_equal_arguments_have_equal_digests(new_turn: NewTurn) -> None:
    run = await (await new_turn(line(("pay", {"amount": 1}), ("pay", {"amount": 1}), ("pay", {"amount": 2})))).run()
    reply = await run.complete(ASK)
    assert reply.message is not None
    one, same, other = (call.digest for call in reply.message.calls)
    assert one == same != other


async def test_a_step_asked_for_again_by_a_later_run_answers_with_its_stored_reply(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {})), Line("well"))
    run = await turn.run()
    first = await run.complete(ASK)
    again = await turn.run()
    assert await again.complete(ASK) == first
    second = await again.complete(ASK)
    assert second.message is not None and second.message.text == "well"
    assert await run.complete(ASK) == second, "whoever asks for it"


async def test_what_a_pattern_finds_in_the_whole_answer_is_extracted(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("x " * 300 + "PICK:one PICK:two"))).run()
    reply = await run.complete(ASK.model_copy(update={"extract_pattern": r"PICK:(\w+)"}))
    assert reply.extracted == ("one", "two")
    assert reply.message is not None and len(reply.message.text) <= 400, "the reference carries the start of it"


async def test_a_stopped_turn_is_told_what_is_settled_and_asks_nothing_new(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("first"), Line("second"))
    first = await (await turn.run()).complete(ASK)
    later = await turn.run()
    await turn.stop()
    assert await later.complete(ASK) == first
    reply = await later.complete(ASK)
    assert reply.message is None
    assert reply.problem is not None and reply.problem.code == "stopped"


async def test_a_run_that_has_heard_of_the_stop_asks_nothing_at_all(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("first"))).run()
    await run.wake_stop()
    reply = await run.complete(ASK)
    assert reply.problem is not None and reply.problem.code == "stopped"


async def test_work_that_cannot_be_done_is_a_problem_and_raises_nothing(new_turn: NewTurn) -> None:
    reply = await (await (await new_turn(Line("first"))).run(gone=True)).complete(ASK)
    assert reply.message is None
    assert reply.problem is not None and reply.problem.code == "agent_version_not_found"
