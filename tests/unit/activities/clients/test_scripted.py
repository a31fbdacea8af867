"""The scripted model: which rule answers, what it says and calls, at what pace and price."""

import asyncio
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import ScriptedProvider, read_script, split_words
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.turns import Usage

BOOKING = yaml.safe_load(
    r"""
    tokens_per_second: 0
    rules:
      - name: changed
        note: 'changed by (?P<who>\w+)'
        say: '{who} changed my call.'
      - name: refused
        note: 'rejected'
        say: 'I did not do it. The note says: {note}'
      - name: failed
        after: {tool: book, status: error}
        say: 'That failed: {result.message}'
      - name: both
        when: ' and '
        after: {tool: book, contains: {ok: true}}
        say: 'Rooms {results.0.room} and {results.1.room}, first guest {result.guests.0.name}.'
      - name: full
        after: {tool: book, contains: full}
        say: 'Full.'
      - name: booked
        after: {tool: book, contains: {ok: true, where.floor: 2}}
        say: 'Room {result.room} is yours; {{really}}, {result.where}.'
      - name: pair
        when: '^Book (?P<a>\d+) and (?P<b>\d+)$'
        offers: [book]
        say: 'Booking two.'
        call:
          - {tool: book, args: {room: '{a:int}'}}
          - {tool: book, args: {room: '{b:int}'}}
      - name: one
        when: '^Book (?P<room>\d+)( for (?P<price>[\d.]+))?$'
        offers: book
        call:
          tool: book
          args: {room: '{room:int}', label: 'room {room}', price: '{price:float}', who: {names: ['{message}', 3, null]}}
      - name: not_offered
        when: '^Book'
        say: 'I have no way to book.'
    fallback: 'I can book a {room}.'
    """
)
BOOK: dict[str, Any] = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def note(text: str) -> Message:
    return {"role": "system", "content": text}


def asked(*ids: str) -> Message:
    calls = [{"id": id_, "type": "function", "function": {"name": "book", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answered(id_: str, content: Any) -> Message:
    return {
        "role": "tool",
        "tool_call_id": id_,
        "content": content if isinstance(content, str) else json.dumps(content),
    }


async def hear(*messages: Message, tools: tuple[Any, ...] = (BOOK,), script: Any = None) -> tuple[str, Complete]:
    provider = ScriptedProvider(read_script(BOOKING if script is None else script))
    chunks = [chunk async for chunk in provider.stream(ProviderRequest("scripted", messages, tools))]
    last = chunks.pop()
    assert isinstance(last, Complete)
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)), last


PERSONA = note("You are a clerk. Anything rejected stays rejected.")


async def test_groups_become_typed_arguments_and_an_absent_group_is_left_out() -> None:
    _, last = await hear(PERSONA, user("Book 0042"))
    (call,) = last.tool_calls
    assert json.loads(call.raw_arguments) == {
        "room": 42,
        "label": "room 0042",
        "who": {"names": ["Book 0042", 3, None]},
    }
    _, last = await hear(user("Book 7 for 12.50"))
    assert json.loads(last.tool_calls[0].raw_arguments)["price"] == 12.5


async def test_a_rule_may_say_and_call_several_things() -> None:
    text, last = await hear(user("Book 1 and 2"))
    assert text == "Booking two." and last.finish_reason == "tool_calls"
    assert [call.raw_arguments for call in last.tool_calls] == ['{"room":1}', '{"room":2}']


async def test_a_tool_that_is_not_offered_is_not_called() -> None:
    text, last = await hear(user("Book 7"), tools=())
    assert text == "I have no way to book." and last.tool_calls == ()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"ok": True, "room": 7, "where": {"floor": 2}}, 'Room 7 is yours; {really}, {"floor": 2}.'),
        ({"ok": True, "room": 7, "where": {"floor": 3}}, "I can book a {room}."),
        ({"status": "error", "message": "no key"}, "That failed: no key"),
        ("the house is full today", "Full."),
        ("[" * 100_000, "I can book a {room}."),
        ({"ok": None}, "I can book a {room}."),
    ],
)
async def test_the_newest_result_chooses_the_rule(result: Any, text: str) -> None:
    said, last = await hear(user("Book 7"), asked("c1"), answered("c1", result))
    assert said == text and last.tool_calls == ()


async def test_every_result_of_a_round_can_be_named() -> None:
    two = [{"ok": True, "room": room, "guests": [{"name": f"guest of {room}"}]} for room in (1, 2)]
    said, _ = await hear(user("Book 1 and 2"), asked("c1", "c2"), answered("c1", two[0]), answered("c2", two[1]))
    assert said == "Rooms 1 and 2, first guest guest of 2."


async def test_a_result_that_no_rule_expects_never_repeats_the_call() -> None:
    said, last = await hear(user("Book 7"), asked("c1"), answered("c1", {"ok": "perhaps"}))
    assert said == "I can book a {room}." and last.tool_calls == ()


async def test_a_note_after_a_stripped_round_is_answered_and_the_call_is_not_made_again() -> None:
    said, last = await hear(PERSONA, user("Book 7"), note("Your call was rejected: too dear"))
    assert said == "I did not do it. The note says: Your call was rejected: too dear" and last.tool_calls == ()
    said, last = await hear(PERSONA, user("Book 7"), note("The request expired."))
    assert said == "I can book a {room}." and last.tool_calls == ()


async def test_a_note_from_before_the_user_spoke_is_history() -> None:
    _, last = await hear(user("Book 7"), note("rejected"), {"role": "assistant", "content": "Well."}, user("Book 8"))
    assert json.loads(last.tool_calls[0].raw_arguments)["room"] == 8


async def test_a_note_beside_a_result_can_be_answered_by_either_rule() -> None:
    result = answered("c1", {"ok": True, "room": 9, "where": {"floor": 2}})
    said, _ = await hear(user("Book 7"), asked("c1"), result, note("The call was changed by Ada."))
    assert said == "Ada changed my call."
    said, _ = await hear(user("Book 7"), asked("c1"), result, note("Something else."))
    assert said.startswith("Room 9 is yours")


async def test_the_newest_user_message_counts_after_a_finished_round() -> None:
    done = [user("Book 7"), asked("c1"), answered("c1", {"ok": True}), {"role": "assistant", "content": "Done."}]
    _, last = await hear(*done, user("Book 8"))
    assert json.loads(last.tool_calls[0].raw_arguments)["room"] == 8


async def test_ids_that_come_again_mean_the_latest_call() -> None:
    other = asked("c1")
    other["tool_calls"][0]["function"]["name"] = "something_else"
    full = answered("c1", "full")
    assert (await hear(user("x"), other, full, asked("c1"), full))[0] == "Full."
    assert (await hear(user("x"), asked("c1"), full, other, full))[0] == "I can book a {room}."


async def test_parts_of_a_user_message_are_read_as_one_text() -> None:
    parts = [{"type": "text", "text": "Book "}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "7"}]
    _, last = await hear({"role": "user", "content": parts})
    assert len(last.tool_calls) == 1


@pytest.mark.parametrize(
    ("say", "args", "name"),
    [
        ("{result.nothing}", {}, "nothing"),
        ("", {"n": "{result.name:int}"}, "r"),
        ("", {"n": "{result.huge:float}"}, "r"),
        ("{results.5}", {}, "5"),
    ],
)
async def test_a_template_that_cannot_be_filled_is_an_error_with_the_rules_name(say: str, args: Any, name: str) -> None:
    script = {"rules": [{"name": "r", "after": "book", "say": say, "call": [{"tool": "book", "args": args}]}]}
    result = answered("c1", {"name": "Ada", "huge": "1e999"})
    with pytest.raises(InvariantBroken) as raised:
        await hear(user("x"), asked("c1"), result, script=script)
    assert raised.value.code == "bad_script"
    assert "'r'" in raised.value.message and name in raised.value.message


@pytest.mark.parametrize("text", ["one", "one two three", "  spaced   out \n\n lines\t", "naïve 日本 word"])
async def test_echo_answers_with_the_rest_a_token_a_word(text: str) -> None:
    provider = ScriptedProvider(read_script(BOOKING))
    request = ProviderRequest("scripted", (PERSONA, user("/echo " + text), asked("c"), answered("c", "full")))
    *tokens, last = [chunk async for chunk in provider.stream(request)]
    assert "".join(token.text for token in tokens if isinstance(token, TextDelta)) == text
    assert isinstance(last, Complete) and last.usage.output_tokens == len(tokens) == len(text.split())


@given(st.text())
def test_words_joined_are_the_text_and_as_many_as_it_has(text: str) -> None:
    words = split_words(text)
    assert "".join(words) == (text if text.strip() else "")
    assert len(words) == len(text.split())


async def test_only_the_prefix_with_its_space_echoes() -> None:
    assert (await hear(user("/echoes of it")))[0] == "I can book a {room}."


async def test_usage_and_price_are_the_same_every_time() -> None:
    script = {**BOOKING, "price_per_million": {"input": 2.5, "output": 10.0}}
    first, second = [await hear(PERSONA, user("Book 1 and 2"), script=script) for _ in range(2)]
    assert first == second
    usage = first[1].usage
    # Two words and two calls of 14 characters, four characters a token.
    assert usage.output_tokens == 2 + 4 + 4
    assert usage.input_tokens == -(-len(json.dumps([PERSONA, user("Book 1 and 2"), BOOK])) // 4)
    assert usage.cost_microusd == -(-(usage.input_tokens * 5 + usage.output_tokens * 20) // 2)


async def test_it_costs_nothing_unless_the_script_says_so() -> None:
    _, last = await hear(user("Book 7"))
    assert last.usage == Usage(input_tokens=last.usage.input_tokens, output_tokens=last.usage.output_tokens)


async def test_the_pace_is_what_the_script_says() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await hear(user("/echo " + "word " * 20), script={"tokens_per_second": 100})
    assert 0.2 <= loop.time() - began < 10


async def test_a_pace_of_zero_never_waits() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await hear(user("/echo " + "word " * 5000))
    assert loop.time() - began < 20, "at the default pace it would be 100 s"
