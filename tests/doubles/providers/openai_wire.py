"""The chat-completions format of OpenAI, Azure and Mistral, and its faults."""

from collections.abc import Iterator

from pydantic import JsonValue

from tests.doubles.providers.refusal import Body
from tests.doubles.providers.script import Call, Fault, Step
from tests.doubles.providers.wires import Wire, arguments_of, counted_usage, line, words

DONE = b"data: [DONE]\n\n"
SAFE: JsonValue = {"hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": False, "severity": "safe"}}


def chunk(model: str, delta: JsonValue, finish_reason: JsonValue = None) -> dict[str, JsonValue]:
    return {
        "id": "chatcmpl-double",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def _call_deltas(call: Call, place: int) -> Iterator[JsonValue]:
    """A call as OpenAI streams it: first its id and name, then its arguments in pieces."""
    index = place if call.index is None else call.index
    first: dict[str, JsonValue] = {"index": index, "type": "function", "function": {"name": call.name, "arguments": ""}}
    if call.id != "":
        first["id"] = call.id or f"call_double_{place}"
    yield {"tool_calls": [first]}
    text = arguments_of(call)
    size = max(1, len(text) // 3)
    for start in range(0, len(text), size):
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + size]}}]}


def _text(step: Step, model: str, _: Body) -> Iterator[bytes]:
    yield line(chunk(model, {"role": "assistant", "content": ""}))
    for word in words(step.thinking):
        yield line(chunk(model, {"reasoning_content": word}))
    for word in words(step.text):
        yield line(chunk(model, {"content": word}))


def _end(step: Step, model: str, body: Body) -> Iterator[bytes]:
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


def _whole(step: Step, model: str, body: Body) -> dict[str, JsonValue]:
    calls: list[JsonValue] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_of(call)}}
        for call in step.calls
    ]
    said: JsonValue = {"role": "assistant", "content": step.text or None, **({"tool_calls": calls} if calls else {})}
    reason = step.finish_reason or ("tool_calls" if calls else "stop")
    choices: JsonValue = [{"index": 0, "message": said, "finish_reason": reason}]
    answer = {**chunk(model, {}), "object": "chat.completion", "choices": choices}
    return answer | {"usage": counted_usage(step, body)}


def _azure_text(step: Step, model: str, body: Body) -> Iterator[bytes]:
    """Azure begins with a chunk without choices, for the filter's results of the prompt."""
    prompt: JsonValue = [{"prompt_index": 0, "content_filter_results": SAFE}]
    yield line({**chunk("", {}), "id": "", "object": "", "choices": [], "prompt_filter_results": prompt})
    yield from _text(step, model, body)


def _mistral_end(step: Step, model: str, body: Body) -> Iterator[bytes]:
    """Mistral sends whole calls in one chunk, with the finish reason and the usage."""
    calls: list[JsonValue] = [
        {"id": call.id, "function": {"name": call.name, "arguments": arguments_of(call)}, "index": index}
        for index, call in enumerate(step.calls)
    ]
    delta: JsonValue = {"content": "", **({"tool_calls": calls} if calls else {})}
    reason = step.finish_reason or ("tool_calls" if calls else "stop")
    yield line({**chunk(model, delta, reason), "usage": counted_usage(step, body)}) + DONE


OPENAI, AZURE, MISTRAL = Wire(_text, _end, _whole), Wire(_azure_text, _end, _whole), Wire(_text, _mistral_end, _whole)


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
