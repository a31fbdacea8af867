"""The OpenAI chat-completions wire format, as the provider double writes it."""

import json
import re
from collections.abc import Iterator

from pydantic import JsonValue

from tests.doubles.provider_steps import Call, Fault, Step

DONE = b"data: [DONE]\n\n"


def words(text: str) -> list[str]:
    """`text` cut into words that keep the space behind them."""
    return re.findall(r"\s*\S+\s*|\s+", text) if text else []


def line(value: JsonValue) -> bytes:
    """One server-sent event with `value` as JSON; lone surrogates stay escaped."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(model: str, delta: JsonValue, finish_reason: JsonValue = None) -> dict[str, JsonValue]:
    return {
        "id": "chatcmpl-double",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def counted_usage(step: Step, body: dict[str, JsonValue]) -> JsonValue:
    """What the double says was used: what the step says, else words."""
    if step.usage is not None:
        return step.usage or None
    asked = len(words(json.dumps(body.get("messages"))))
    answered = len(words(step.text)) + sum(len(words(_arguments(call))) + 1 for call in step.calls)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _arguments(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _call_deltas(call: Call, place: int) -> Iterator[JsonValue]:
    """A call as OpenAI streams it: first its id and name, then its arguments in pieces."""
    index = place if call.index is None else call.index
    first: dict[str, JsonValue] = {"index": index, "type": "function", "function": {"name": call.name, "arguments": ""}}
    if call.id != "":
        first["id"] = call.id or f"call_double_{place}"
    yield {"tool_calls": [first]}
    text = _arguments(call)
    size = max(1, len(text) // 3)
    for start in range(0, len(text), size):
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + size]}}]}


def text_lines(step: Step, model: str) -> Iterator[bytes]:
    """The words of a step's thinking and text, a line each."""
    yield line(chunk(model, {"role": "assistant", "content": ""}))
    for word in words(step.thinking):
        yield line(chunk(model, {"reasoning_content": word}))
    for word in words(step.text):
        yield line(chunk(model, {"content": word}))


def closing_lines(step: Step, model: str, body: dict[str, JsonValue]) -> Iterator[bytes]:
    """Refusal, calls, finish reason, usage and [DONE] of a good answer."""
    if step.refusal:
        yield line(chunk(model, {"refusal": step.refusal}))
    for given in step.deltas:
        yield line(chunk(model, given))
    for place, call in enumerate(step.calls):
        for delta in _call_deltas(call, place):
            yield line(chunk(model, delta))
    yield line(chunk(model, {}, step.finish_reason or ("tool_calls" if step.calls else "stop")))
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        usage = counted_usage(step, body)
        if usage is not None:
            yield line({**chunk(model, {}), "choices": [], "usage": usage})
    yield DONE


def whole_body(step: Step, model: str, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """A good answer to a request without `stream`."""
    calls: list[JsonValue] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for call in step.calls
    ]
    said: JsonValue = {"role": "assistant", "content": step.text or None, **({"tool_calls": calls} if calls else {})}
    reason = step.finish_reason or ("tool_calls" if calls else "stop")
    choices: JsonValue = [{"index": 0, "message": said, "finish_reason": reason}]
    answer = {**chunk(model, {}), "object": "chat.completion", "choices": choices}
    return answer | {"usage": counted_usage(step, body)}


def fault_lines(fault: Fault, model: str) -> Iterator[bytes]:
    """What follows a step's text where the fault is in what the stream says."""
    stop, calls = (line(chunk(model, {}, reason)) + DONE for reason in ("stop", "tool_calls"))
    nameless: JsonValue = {"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": "{}"}}]}
    broke_off: JsonValue = {"message": "the engine stopped", "type": "server_error", "code": "server_error"}
    odd = line({**chunk(model, {}), "choices": {"0": "none"}, "usage": [1, 2]})
    said = {
        Fault.NO_FINISH: DONE,
        Fault.GARBAGE: b"data: <<<<< \xff\xfe not json at all\n\n" + stop,
        Fault.TRUNCATED_JSON: line(chunk(model, {"content": "and so"}))[:60],
        Fault.DEEP_JSON: b"data: " + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n\n" + stop,
        Fault.EMPTY: stop,
        Fault.WRONG_TYPES: line(chunk(model, {"content": 42})) + line(chunk(model, {"tool_calls": "yes"})) + odd + stop,
        Fault.UNKNOWN_FINISH: line(chunk(model, {}, "meltdown")) + DONE,
        Fault.NO_CALLS: calls,
        Fault.NAMELESS_CALL: line(chunk(model, nameless)) + calls,
        Fault.ERROR_IN_STREAM: line({"error": broke_off}) + DONE,
        Fault.LONE_SURROGATES: line(chunk(model, {"content": "half a \ud83d face and a \x00."})) + stop,
    }
    if fault in said:
        yield said[fault]
    elif fault is Fault.HUGE_ARGUMENTS:
        function: JsonValue = {"name": "store", "arguments": '{"a": "'}
        first: JsonValue = {"index": 0, "id": "c", "type": "function", "function": function}
        yield line(chunk(model, {"tool_calls": [first]}))
        piece = line(chunk(model, {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 50_000}}]}))
        yield from (piece for _ in range(5_000_000 // 50_000))
        yield line(chunk(model, {"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}))
        yield calls


ERROR_TYPES = {401: "invalid_request_error", 402: "billing_error", 403: "permission_error", 429: "rate_limit_exceeded"}
"""The `type` that a real provider sends with a status; LiteLLM classifies by it before it looks at the status."""


def error_body(step: Step) -> dict[str, JsonValue]:
    kind = ERROR_TYPES.get(step.status, "server_error" if step.status >= 500 else "invalid_request_error")
    if step.code == "insufficient_quota":
        kind = step.code
    return {"error": {"message": step.message, "type": kind, "param": None, "code": step.code}}
