"""What a provider's server sends, adapted to its client."""

import json
from typing import Any

import pytest

from perdure.activities.providers.wire import LineEnds, StreamAdapter, WholeAnswer, as_stream

TEXT = "a\u2028b\u2029\u0085é\u2027\u20ac\u0086 \U0001f600"
RAW = json.dumps({"a": TEXT}, ensure_ascii=False).encode()


def test_line_ends_are_escaped_wherever_the_stream_is_cut() -> None:
    for pieces in ([RAW[:cut], RAW[cut:]] for cut in range(len(RAW))):
        ends = LineEnds()
        read = b"".join(map(ends.add, pieces)) + ends.end()
        assert json.loads(read) == {"a": TEXT} and len(read.decode().splitlines()) == 1
    one_by_one = LineEnds()
    assert b"".join(one_by_one.add(bytes([each])) for each in RAW) + one_by_one.end() == read
    assert (ends.add(b"x\xe2\x80"), ends.end(), ends.end()) == (b"x", b"\xe2\x80", b"")


def test_a_stream_that_is_labelled_as_json_stays_one_and_a_whole_answer_becomes_one() -> None:
    event = b'data: {"a": "\xe2\x80\xa8"}\n\n'
    labelled = WholeAnswer()
    read = [labelled.add(piece) for piece in (b"", b"\n", event[:-5], event[-5:])]
    assert (b"".join(read) + labelled.end()).strip() == event.replace(b"\xe2\x80\xa8", b"\\u2028").strip() and all(
        read[2:]
    )
    whole = WholeAnswer()
    assert [whole.add(piece) for piece in (b" ", b'{"error": ', b"{}}")] == [b""] * 3
    assert whole.end() == b'data: {"error": {}}\n\n'


STREAMS = b'{"stream": true}'


@pytest.mark.parametrize(("content_type", "request_body", "kind"), [
    *((kind, STREAMS, LineEnds) for kind in ("text/event-stream; charset=utf-8", "application/x-ndjson", "")),
    ("application/json", STREAMS, WholeAnswer),
    ("application/json", b"{}", LineEnds),
    ("application/vnd.amazon.eventstream", STREAMS, type(None)),
    ("text/event-stream; charset=latin-1", STREAMS, type(None)),
])  # fmt: skip
def test_only_text_is_rewritten(content_type: str, request_body: bytes, kind: type) -> None:
    assert type(StreamAdapter().rewriter(request_body, content_type)) is kind


ASKED = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(("refusal", "left"), [
    ({"error": {"message": "Unrecognized request argument supplied: stream_options"}}, {"model", "stream"}),
    ({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs", "input": {}}]}, {"model", "stream"}),
    ({"error": {"message": "You must be verified to stream this model.", "param": "stream"}}, {"model"}),
    ("Streaming is not supported", {"model"}),
    ({"detail": [{"loc": ["body", "top_k"], "input": "stream"}]}, None),
    ({"error": {"message": "max_tokens is too large"}}, None),
])  # fmt: skip
def test_a_refusal_that_names_the_stream_is_asked_again_without_it(refusal: Any, left: set[str] | None) -> None:
    again = StreamAdapter().request_again(json.dumps(ASKED).encode(), json.dumps(refusal).encode())
    assert (set(json.loads(again)) if again else None) == left
    assert StreamAdapter().request_again(b'{"model": "m"}', json.dumps(refusal).encode()) is None


def test_a_message_of_anthropic_becomes_its_stream_and_another_body_stays() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "id": "i", "name": "look", "input": {"k": 1}},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    message = {"type": "message", "content": blocks, "stop_reason": "tool_use", "usage": usage}
    lines = as_stream(json.dumps(message).encode()).decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [each["type"] for each in deltas] == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert (events[-2]["delta"]["stop_reason"], events[-2]["usage"]) == ("tool_use", usage)
    error = as_stream(b'{"error": {"message": "down"}}')
    assert error == b'data: {"error": {"message": "down"}}\n\n'
    for other in (b"", b"[]", b"{", b'{"choices": []}', b"<html>"):
        assert as_stream(other) == other
