"""What the model port promises, of the double and of real model calls behind a real run alike."""

import json

from perdure.contracts.calls import ModelCallRequest, ModelReply, OutputAsk
from perdure.contracts.messages import Role
from tests.doubles.message_script import Line
from tests.ports.contract import ASK, SCHEMA, NewTurn, asks, line, problem


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
