"""The scripted model: which scripts are refused, which rule answers, what it says and calls, at what pace and price."""

import asyncio
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import perdure.activities.providers.scripted as module
from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import Rule, Script, ScriptedProvider, read_script, split_words
from perdure.contracts.errors import CallerError, InvariantBroken


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "book", "when": "^Book (?P<room>.+)", "say": "ok", **fields}]}


@pytest.mark.parametrize(("script", "names"), [
    *((rule(when="("), "book"), (rule(say="{rom}"), "book {rom} room"), (rule(say="{room"), "book {room")),
    *((rule(say="{}"), "book {}"), (rule(say="{room:date}"), "book {room:date}")),
    *((rule(say="{room.floor}"), "book {room}"), (rule(say="{result.x}"), "book {result} message")),
    *((rule(say="{note}"), "book {note} message"), (rule(say=""), "book say call"), (rule(say=3), "book say")),
    (rule(call={"tool": "t", "args": {"a": [{"b": "{nope}"}]}}), "book {nope}"),
    *((rule(when=None), "book when note after"), (rule(note="(?P<room>x)"), "book room")),
    *((rule(when="(?P<result>x)"), "book result"), (rule(wen="x"), "book wen")),
    *((rule(call={"args": {}}), "book call.0.tool"), (rule(after={"tool": 3}), "book after.tool")),
    *(({"rules": [{"when": "x", "say": "y"}]}, "1 name"), ({"rules": ["x"]}, "1"), ({"ruels": []}, "ruels")),
    ({"rules": [{"name": "a", "when": "x", "say": "y"}] * 2}, "'a'"),
    *(({"tokens_per_second": pace}, "tokens_per_second") for pace in (-1, "fast")),
    ({"price_per_million": {"input": 1}}, "price_per_million.output"),
    # Every fault is told at once.
    ({"rules": [{"name": "a", "say": "x"}, {"name": "b", "when": "["}], "fallback": ""}, "'a' 'b' fallback"),
])  # fmt: skip
def test_a_wrong_script_is_refused_with_the_names_of_its_rule_and_field(script: dict[str, Any], names: str) -> None:
    with pytest.raises(CallerError) as raised:
        read_script(script)
    assert raised.value.code == "bad_script" and all(name in raised.value.message for name in names.split())


def test_the_short_forms_of_a_script_mean_the_long_ones() -> None:
    assert read_script(None) == read_script({}) == Script()
    assert Script().tokens_per_second == 50
    short = yaml.safe_load("{name: r, after: book, offers: pay, call: {tool: pay}}")
    long = yaml.safe_load("{name: r, after: {tool: book}, offers: [pay], call: [{tool: pay, args: {}}]}")
    assert read_script({"rules": [short]}) == read_script({"rules": [long]})
    assert isinstance(read_script({"rules": [short]}).rules[0], Rule)
    example = "\n".join(line for line in (module.__doc__ or "").splitlines() if line.startswith("    "))
    assert len(read_script(yaml.safe_load(example)).rules) == 4


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


def call_message(*ids: str, tool: str = "book") -> Message:
    calls = [{"id": id_, "type": "function", "function": {"name": tool, "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def tool_message(id_: str, content: Any) -> Message:
    told = content if isinstance(content, str) else json.dumps(content)
    return {"role": "tool", "tool_call_id": id_, "content": told}


async def hear(*messages: Message, tools: tuple[Any, ...] = (BOOK,), script: Any = None) -> tuple[str, Complete]:
    provider = ScriptedProvider(read_script(BOOKING if script is None else script))
    chunks = [chunk async for chunk in provider.stream(ProviderRequest("scripted", messages, tools))]
    last = chunks.pop()
    assert isinstance(last, Complete)
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)), last


async def arguments(*messages: Message) -> list[Any]:
    return [json.loads(call.raw_arguments) for call in (await hear(*messages))[1].tool_calls]


PERSONA = note("You are a clerk. Anything rejected stays rejected.")
BOOK_7, FALLBACK = user("Book 7"), "I can book a {room}."
ROOM_9 = {"ok": True, "room": 9, "where": {"floor": 2}}


async def test_groups_become_typed_arguments_and_an_absent_group_is_left_out() -> None:
    who = {"names": ["Book 0042", 3, None]}
    assert await arguments(PERSONA, user("Book 0042")) == [{"room": 42, "label": "room 0042", "who": who}]
    (made,) = await arguments(user("Book 7 for 12.50"))
    assert made["price"] == 12.5
    parts = [{"type": "text", "text": "Book "}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "7"}]
    assert len(await arguments({"role": "user", "content": parts})) == 1, "parts are read as one text"


async def test_a_rule_can_answer_and_call_several_tools_but_none_that_is_not_offered() -> None:
    text, last = await hear(user("Book 1 and 2"))
    assert text == "Booking two." and last.finish_reason == "tool_calls"
    assert [call.raw_arguments for call in last.tool_calls] == ['{"room":1}', '{"room":2}']
    text, last = await hear(BOOK_7, tools=())
    assert text == "I have no way to book." and last.tool_calls == ()


@pytest.mark.parametrize(("result", "text"), [
    (ROOM_9, 'Room 9 is yours; {really}, {"floor": 2}.'),
    ({**ROOM_9, "where": {"floor": 3}}, FALLBACK),
    ({"status": "error", "message": "no key"}, "That failed: no key"),
    *(("the house is full today", "Full."), ("[" * 100_000, FALLBACK), ({"ok": None}, FALLBACK)),
    ({"ok": "perhaps"}, FALLBACK),
])  # fmt: skip
async def test_the_newest_result_selects_the_rule_and_a_call_is_not_repeated(result: Any, text: str) -> None:
    said, last = await hear(BOOK_7, call_message("c1"), tool_message("c1", result))
    assert said == text and last.tool_calls == ()


TWO = [{"ok": True, "room": room, "guests": [{"name": f"guest of {room}"}]} for room in (1, 2)]
ANSWERED, FULL = (BOOK_7, call_message("c1"), tool_message("c1", ROOM_9)), tool_message("c1", "full")


@pytest.mark.parametrize(("messages", "text"), [
    # The round is not shown to the model, and its call is not made again.
    ((PERSONA, BOOK_7, note("It was rejected: no")), "I did not do it. The note says: It was rejected: no"),
    ((PERSONA, BOOK_7, note("The request expired.")), FALLBACK),
    ((*ANSWERED, note("The call was changed by Ada.")), "Ada changed my call."),
    ((*ANSWERED, note("Something else.")), 'Room 9 is yours; {really}, {"floor": 2}.'),
    ((user("Book 1 and 2"), call_message("c1", "c2"), tool_message("c1", TWO[0]), tool_message("c2", TWO[1])),
     "Rooms 1 and 2, first guest guest of 2."),
    ((user("x"), call_message("c1", tool="something_else"), FULL, call_message("c1"), FULL), "Full."),
    ((user("x"), call_message("c1"), FULL, call_message("c1", tool="something_else"), FULL), FALLBACK),
])  # fmt: skip
async def test_notes_and_named_results_select_the_answer(messages: tuple[Message, ...], text: str) -> None:
    said, last = await hear(*messages)
    assert said == text and last.tool_calls == ()


async def test_a_note_and_a_round_from_before_the_user_spoke_are_history() -> None:
    done, before = {"role": "assistant", "content": "Well."}, (call_message("c1"), tool_message("c1", {"ok": True}))
    for history in ((note("rejected"), done), (*before, done)):
        assert [made["room"] for made in await arguments(BOOK_7, *history, user("Book 8"))] == [8]


@pytest.mark.parametrize(("say", "args", "name"), [
    *(("{result.nothing}", {}, "nothing"), ("{results.5}", {}, "5")),
    *(("", {"n": "{result.name:int}"}, "r"), ("", {"n": "{result.huge:float}"}, "r")),
])  # fmt: skip
async def test_a_template_that_cannot_be_filled_is_an_error_with_the_rules_name(say: str, args: Any, name: str) -> None:
    script = {"rules": [{"name": "r", "after": "book", "say": say, "call": [{"tool": "book", "args": args}]}]}
    with pytest.raises(InvariantBroken) as raised:
        await hear(user("x"), call_message("c1"), tool_message("c1", {"name": "Ada", "huge": "1e999"}), script=script)
    assert raised.value.code == "bad_script"
    assert "'r'" in raised.value.message and name in raised.value.message


@pytest.mark.parametrize("text", ["one", "one two three", "  spaced   out \n\n lines\t", "naïve 日本 word"])
async def test_echo_streams_the_rest_of_the_message_word_by_word(text: str) -> None:
    said, last = await hear(PERSONA, user("/echo " + text), call_message("c"), tool_message("c", "full"))
    assert said == text and last.usage.output_tokens == len(text.split())
    assert (await hear(user("/echoes of it")))[0] == FALLBACK, "only the prefix with its space"


@given(st.text())
def test_the_joined_words_equal_the_text(text: str) -> None:
    words = split_words(text)
    assert "".join(words) == (text if text.strip() else "")
    assert len(words) == len(text.split())


async def test_usage_and_price_are_deterministic_and_zero_unless_the_script_sets_them() -> None:
    script = {**BOOKING, "price_per_million": {"input": 2.5, "output": 10.0}}
    first, second = [await hear(PERSONA, user("Book 1 and 2"), script=script) for _ in range(2)]
    assert first == second
    usage = first[1].usage
    # Two words and two calls of 14 characters, four characters a token.
    assert usage.output_tokens == 2 + 4 + 4
    assert usage.input_tokens == -(-len(json.dumps([PERSONA, user("Book 1 and 2"), BOOK])) // 4)
    assert usage.cost_microusd == -(-(usage.input_tokens * 5 + usage.output_tokens * 20) // 2)
    assert (await hear(BOOK_7))[1].usage.cost_microusd == 0


async def test_the_pace_is_set_by_the_script_and_zero_never_waits() -> None:
    # At the default pace the second would take 100 s.
    for words, script, least, most in ((20, {"tokens_per_second": 100}, 0.2, 10), (5_000, None, 0, 20)):
        began = asyncio.get_running_loop().time()
        await hear(user("/echo " + "word " * words), script=script)
        assert least <= asyncio.get_running_loop().time() - began < most
