"""Lines that are too long are passed over, and it is told whose answers they were. Those of one message are joined."""

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.toolbox.mcp import lines as mcp_lines
from perdure.activities.toolbox.mcp.answers import UnmatchedLine
from perdure.activities.toolbox.mcp.lines import SkippedLine, joined_lines

LIMIT_BYTES = 600
LONG = "x" * 2_000
VERSION, LATER = {"jsonrpc": "2.0"}, '"id": 99}'
"""The latter in a result must not be taken for the number."""
ASKED = {"method": "sampling/createMessage", "params": LONG}
SIZES = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 9), st.booleans()), max_size=6)
PLAIN = b'{"jsonrpc": "2.0", "id": 8, "result": {"a": [1,\n'
WHOLE = b'{"jsonrpc": "2.0", "id": 9, "result": {}}\n'
BROKEN = b'{"jsonrpc": "2.0", "id": 9, "result": {"content": pressed}}\n'


async def lines_of(text: bytes, cuts: tuple[int, ...] = ()) -> list[bytes | SkippedLine]:
    stream = asyncio.StreamReader(limit=LIMIT_BYTES)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})

    async def feed() -> None:
        for start, stop in pairwise(places):
            stream.feed_data(text[start:stop])
            await asyncio.sleep(0)
        stream.feed_eof()

    feeding = asyncio.create_task(feed())
    try:
        return [line async for line in joined_lines(stream)]
    finally:
        await feeding


@pytest.mark.parametrize("message", [
    *(VERSION | {"id": 7, "result": LONG}, VERSION | {"id": 7, "error": {"id": 8, "message": LONG}}),
    *({"id": 7, "result": LONG} | VERSION, {"id": 7} | VERSION | {"result": LONG}),
    {"result": {"id": 8, "text": LONG}, "id": 7} | VERSION,
    {"result": [LONG, LATER]} | VERSION | {"id": 7},
    VERSION | {"result": LONG + LATER, "id": 7},
])  # fmt: skip
@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : ")])
async def test_the_id_of_an_answer_is_read_in_each_form(message: Any, separators: tuple[str, str]) -> None:
    text = json.dumps(message, separators=separators).encode()
    assert await lines_of(b"one\n" + text + b"\ntwo\n") == [b"one\n", SkippedLine(7), b"two\n"]


@pytest.mark.parametrize("message", [
    *(VERSION | {"id": 7} | ASKED, ASKED | VERSION | {"id": 7}, VERSION | {"result": {"text": LONG, "id": 7}}),
    *(VERSION | {"result": LONG, "id": 7, "more": {"id": 8}}, VERSION | {"result": LONG, "id": None}),
    "x" * 2_000,
])  # fmt: skip
async def test_any_other_line_is_unreadable(message: Any) -> None:
    with pytest.raises(UnmatchedLine):
        await lines_of(json.dumps(message).encode() + b"\ntwo\n")


async def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_lines, "MAX_SKIPPED_BYTES", 4_000)
    begun = b'{"id": 7, "result": "'
    assert await lines_of(begun + b"x" * 3_000 + b"\n") == [SkippedLine(7)]
    assert await lines_of(begun + b"x" * 3_000) == [], "the connection broke off in it, which says enough"
    for endless in (begun + b"x" * 6_000, b"x" * 6_000 + b"\n"):
        with pytest.raises(UnmatchedLine):
            await lines_of(endless, (3_000,))


@given(SIZES, st.lists(st.integers(0, 12_000), max_size=8))
async def test_lines_stay_whole_and_in_order_however_their_bytes_arrive(sizes: Any, cuts: list[int]) -> None:
    texts, wanted = list[bytes](), list[bytes | SkippedLine]()
    for size, number, first in sizes:
        message = {"id": number, "result": "x" * size} if first else {"result": "x" * size, "id": number}
        texts.append(json.dumps(message).encode() + b"\n")
        wanted.append(SkippedLine(number) if len(texts[-1]) > LIMIT_BYTES + 1 else texts[-1])
    assert await lines_of(b"".join(texts), tuple(cuts)) == wanted


@pytest.mark.parametrize("parts", [
    *([b"\xef\xbb\xbf{\r\n", b'"id": 7}\r\n'], [PLAIN, b"{\n", b"}]}}\n"]),
    *([PLAIN], [PLAIN, b"  'a\"b', 'x'\n"], [PLAIN, b"  " + WHOLE, b"]}}\n"]),
])  # fmt: skip
@pytest.mark.parametrize("after", [WHOLE, BROKEN, b'{"id": 7, "result": "' + b"x" * 2_000 + b'"}\n'])
async def test_lines_of_one_message_are_joined_until_its_end_or_another(parts: list[bytes], after: bytes) -> None:
    after_joined = SkippedLine(7) if len(after) > LIMIT_BYTES else after
    assert await lines_of(b"".join([WHOLE, *parts, after, WHOLE])) == [WHOLE, b"".join(parts), after_joined, WHOLE]


@pytest.mark.parametrize("line", [
    *(BROKEN, b'{"id": 7, "result": "Dear all,\n', b'{"id": 7},\n', b"[{\n", b"{}}\n"),
    *(b"{starting,\n", b"{ user: [\n", b'{"result": "' + b'\\"' * 250 + b",\n"),
])  # fmt: skip
async def test_a_broken_line_is_not_held(line: bytes) -> None:
    assert await lines_of(line + b"x\n") == [line, b"x\n"]


async def test_a_joined_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_lines, "MAX_MESSAGE_BYTES", 2_000)
    monkeypatch.setattr(mcp_lines, "MAX_SKIPPED_BYTES", 8_000)
    many = b'{\n"id": 7,\n"result": [\n' + b"1,\n" * 1_000
    assert await lines_of(many + b"1]\n}\nx\n") == [SkippedLine(7), b"x\n"]
    assert await lines_of(PLAIN) == [PLAIN.rstrip()], "the stream ended in it"
    for endless in (many + b"1,\n" * 4_000, b"{\n" * 1_500 + WHOLE):
        with pytest.raises(UnmatchedLine):
            await lines_of(endless)


async def test_a_string_without_an_end_is_read_in_linear_time() -> None:
    began = time.process_time()
    assert not mcp_lines._continues(b'{"result": "' + b'\\"' * 500_000 + b",")
    assert time.process_time() - began < 2


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.text(max_size=9) | st.integers(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=9), each, max_size=3),
)


@given(VALUES, st.integers(0, 3), st.booleans())
async def test_a_message_with_indentation_is_read_whole(value: Any, indent: int, ascii_only: bool) -> None:
    message = json.dumps({"id": 7, "result": value}, indent=indent, ensure_ascii=ascii_only) + "\n"
    text = message.encode(errors="replace")
    assert await lines_of(text + WHOLE) == [text, WHOLE]
