"""The formats in which vendors answer: of OpenAI, Azure and Mistral, Anthropic, Google, and Ollama's /api/chat.

A wire writes a step as a stream, in two parts, since faults follow its text, or as one JSON object.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from tests.doubles.providers.script import Body, Call, Fault, Step

Json = dict[str, JsonValue]
SIGNATURE = "c2lnbmVkLWJ5LXRoZS1kb3VibGU="
SKIPPED = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""`skip_thought_signature_validator`, which Google documents for calls that another model made."""


@dataclass(frozen=True, slots=True)
class Wire:
    text: Callable[[Step, str, Body], Iterator[bytes]]
    """The words of a step's thinking and text, a piece each, after the head of the stream."""
    end: Callable[[Step, str, Body], Iterator[bytes]]
    """All that follows in a good answer."""
    whole: Callable[[Step, str, Body], Json]
    media: str = "text/event-stream"


def words(text: str) -> list[str]:
    """`text` cut into words that keep the space behind them."""
    return re.findall(r"\s*\S+\s*|\s+", text) if text else []


def encoded(value: JsonValue) -> bytes:
    """JSON as servers write it, in UTF-8; escaped if it has lone surrogates."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def line(value: JsonValue) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


def arguments_of(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def counted_usage(step: Step, body: Body) -> JsonValue:
    """What the double says was used: what the step says, else words."""
    if step.usage is not None:
        return step.usage or None
    asked = len(words(json.dumps(body.get("messages") or body.get("contents"))))
    answered = len(words(step.text)) + sum(len(words(arguments_of(call))) + 1 for call in step.calls)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def signature_of(thinking: str) -> str:
    """The signature of a thinking block of Anthropic's."""
    return f"signed-{len(thinking)}"


def _event(kind: str, **data: JsonValue) -> bytes:
    return f"event: {kind}\n".encode() + line({"type": kind, **data})


def _anthropic_whole(step: Step, model: str, body: Body) -> Json:
    content: list[JsonValue] = []
    if step.thinking:
        content.append({"type": "thinking", "thinking": step.thinking, "signature": signature_of(step.thinking)})
    if step.text:
        content.append({"type": "text", "text": step.text})
    for place, call in enumerate(step.calls, start=len(content)):
        given = json.loads(arguments_of(call))
        content.append(
            {"type": "tool_use", "id": call.id or f"toolu_double_{place}", "name": call.name, "input": given}
        )
    reason = step.finish_reason or ("tool_use" if step.calls else "end_turn")
    usage = _anthropic_usage(step, body)
    head: Json = {"id": "msg_double", "type": "message", "role": "assistant", "model": model, "content": content}
    return {**head, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _anthropic_usage(step: Step, body: Body) -> Json:
    usage = counted_usage(step, body)
    assert isinstance(usage, dict)
    cached = {name: count for name, count in usage.items() if name.startswith("cache_")}
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"], **cached}


def _anthropic_text(step: Step, model: str, body: Body) -> Iterator[bytes]:
    message = _anthropic_whole(step.model_copy(update={"calls": ()}), model, body)
    usage = {**_anthropic_usage(step, body), "output_tokens": 1}
    yield _event("message_start", message={**message, "content": [], "stop_reason": None, "usage": usage})
    if step.thinking:
        yield from _block(0, "thinking", "thinking_delta", step.thinking, signature_of(step.thinking))
    if step.text:
        yield from _block(bool(step.thinking), "text", "text_delta", step.text)


def _block(place: int, kind: str, delta: str, text: str, signed: str = "") -> Iterator[bytes]:
    """A block of text or thinking, word by word; the signature of thinking comes last."""
    yield _event("content_block_start", index=place, content_block={"type": kind, kind: ""})
    for word in words(text):
        yield _event("content_block_delta", index=place, delta={"type": delta, kind: word})
    if signed:
        yield _event("content_block_delta", index=place, delta={"type": "signature_delta", "signature": signed})
    yield _event("content_block_stop", index=place)


def _anthropic_end(step: Step, model: str, body: Body) -> Iterator[bytes]:
    for place, call in enumerate(step.calls, start=bool(step.thinking) + bool(step.text)):
        block: JsonValue = {
            "type": "server_tool_use" if (call.id or "").startswith("srvtoolu_") else "tool_use",
            "id": call.id or f"toolu_double_{place}",
            "name": call.name,
            "input": {},
        }
        yield _event("content_block_start", index=place, content_block=block)
        text = arguments_of(call)
        for start in range(0, len(text), 20):
            piece: JsonValue = {"type": "input_json_delta", "partial_json": text[start : start + 20]}
            yield _event("content_block_delta", index=place, delta=piece)
        yield _event("content_block_stop", index=place)
    reason = step.finish_reason or ("tool_use" if step.calls else "end_turn")
    delta: JsonValue = {"stop_reason": reason, "stop_sequence": None}
    usage: JsonValue = {"output_tokens": _anthropic_usage(step, body)["output_tokens"]}
    yield _event("message_delta", delta=delta, usage=usage)
    yield _event("message_stop")


def _gemini(step: Step, model: str, body: Body, parts: list[JsonValue], reason: str = "") -> Json:
    end: Json = {"finishReason": reason} if reason else {}
    candidate: Json = {"content": {"role": "model", "parts": parts} if parts else {}, "index": 0, **end}
    counted = counted_usage(step, body)
    names = {"promptTokenCount": "prompt", "candidatesTokenCount": "completion", "totalTokenCount": "total"}
    assert isinstance(counted, dict)
    usage: JsonValue = {name: counted[f"{own}_tokens"] for name, own in names.items()}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}


def _gemini_calls(step: Step) -> list[JsonValue]:
    """All calls, of which the first is signed."""
    return [
        {
            "functionCall": {"id": call.id, "name": call.name, "args": call.arguments},
            **({} if number else {"thoughtSignature": SIGNATURE}),
        }
        for number, call in enumerate(step.calls)
    ]


def _gemini_text(step: Step, model: str, body: Body) -> Iterator[bytes]:
    for word in words(step.text):
        yield line(_gemini(step, model, body, [{"text": word}]))


def _gemini_end(step: Step, model: str, body: Body) -> Iterator[bytes]:
    if step.calls:
        yield line(_gemini(step, model, body, _gemini_calls(step)))
    yield line(_gemini(step, model, body, [], step.finish_reason or "STOP"))


def _gemini_whole(step: Step, model: str, body: Body) -> Json:
    text: list[JsonValue] = [{"text": step.text}] if step.text else []
    return _gemini(step, model, body, [*text, *_gemini_calls(step)], step.finish_reason or "STOP")


def _ollama(model: str, content: str, calls: list[JsonValue], **end: JsonValue) -> Json:
    said: JsonValue = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    return {"model": model, "created_at": "2025-05-24T02:12:05.859654Z", "message": said, "done": False, **end}


def _ollama_calls(step: Step) -> list[JsonValue]:
    return [
        {"function": {"index": number, "name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(step.calls)
    ]


def _ollama_text(step: Step, model: str, _: Body) -> Iterator[bytes]:
    for word in words(step.text):
        yield encoded(_ollama(model, word, [])) + b"\n"


def _ollama_end(step: Step, model: str, body: Body) -> Iterator[bytes]:
    for call in _ollama_calls(step):
        yield encoded(_ollama(model, "", [call])) + b"\n"
    end: Json = {**_ollama_whole(step, model, body), "message": {"role": "assistant", "content": ""}}
    yield encoded(end) + b"\n"


def _ollama_whole(step: Step, model: str, body: Body) -> Json:
    usage = counted_usage(step, body)
    assert isinstance(usage, dict)
    counts = {"prompt_eval_count": usage["prompt_tokens"], "eval_count": usage["completion_tokens"]}
    reason = step.finish_reason or "stop"
    return _ollama(model, step.text, _ollama_calls(step), done=True, done_reason=reason, **counts)


ANTHROPIC = Wire(_anthropic_text, _anthropic_end, _anthropic_whole)
GEMINI = Wire(_gemini_text, _gemini_end, _gemini_whole)
OLLAMA = Wire(_ollama_text, _ollama_end, _ollama_whole, "application/x-ndjson")


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
