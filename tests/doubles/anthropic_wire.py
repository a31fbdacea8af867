"""Anthropic's messages format: what arrives, put in OpenAI's shape, and a step as it is streamed."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from tests.doubles.provider_steps import Call, Step
from tests.doubles.provider_wire import counted_usage, words

NOTE = "Operator note (not from the user): the following was originally a mid-conversation system-role reminder."
"""How LiteLLM marks a system message that has become a user's, for models without system messages in between."""


def openai_shape(body: dict[str, Any]) -> dict[str, Any]:
    """The messages and tools of a request in OpenAI's shape; of one that has it, as they are."""
    if "system" not in body:
        return {"messages": body["messages"], "tools": body.get("tools") or []}
    messages: list[dict[str, Any]] = [{"role": "system", "content": part["text"]} for part in body["system"]]
    for message in body["messages"]:
        said = message["content"]
        parts = [{"type": "text", "text": said}] if isinstance(said, str) else said
        messages += _asked(parts) if message["role"] == "assistant" else _told(parts)
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
        for tool in body.get("tools") or []
    ]
    return {"messages": messages, "tools": tools}


def _asked(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [
        {"id": part["id"], "function": {"name": part["name"], "arguments": json.dumps(part["input"])}}
        for part in parts
        if part["type"] == "tool_use"
    ]
    said = "".join(part["text"] for part in parts if part["type"] == "text")
    return [{"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})}]


def _told(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    note = False
    for part in parts:
        if part["type"] == "tool_result":
            content = part["content"]
            text = content if isinstance(content, str) else "".join(each["text"] for each in content)
            yield {"role": "tool", "tool_call_id": part["tool_use_id"], "content": text}
        elif part["text"].startswith(NOTE):
            rest = part["text"].removeprefix(NOTE).strip()
            note = not rest
            if rest:
                yield {"role": "system", "content": rest}
        else:
            yield {"role": "system" if note else "user", "content": part["text"]}
            note = False


def message_lines(step: Step, body: dict[str, Any]) -> Iterator[bytes]:
    """A good answer as Anthropic streams it: a message, its blocks one after another, its end."""
    usage: Any = counted_usage(step, body)
    message: dict[str, JsonValue] = {
        "id": "msg_double",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model")),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": 1,
            **{name: count for name, count in usage.items() if name.startswith("cache_")},
        },
    }
    yield _event("message_start", message=message)
    if step.thinking:
        yield from _block_lines(0, "thinking", "thinking_delta", step.thinking, signature(step.thinking))
    place = bool(step.thinking)
    if step.text:
        yield from _block_lines(place, "text", "text_delta", step.text)
    for number, call in enumerate(step.calls, start=place + bool(step.text)):
        yield from _call_lines(call, number)
    reason = step.finish_reason or ("tool_use" if step.calls else "end_turn")
    delta: JsonValue = {"stop_reason": reason, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": usage["completion_tokens"]})
    yield _event("message_stop")


def signature(thinking: str) -> str:
    """The double's signature of a thinking block."""
    return f"signed-{len(thinking)}"


def _block_lines(place: int, kind: str, delta: str, text: str, signed: str = "") -> Iterator[bytes]:
    """A block of text or thinking, word by word; the signature of thinking comes last."""
    yield _event("content_block_start", index=place, content_block={"type": kind, kind: ""})
    for word in words(text):
        yield _event("content_block_delta", index=place, delta={"type": delta, kind: word})
    if signed:
        yield _event("content_block_delta", index=place, delta={"type": "signature_delta", "signature": signed})
    yield _event("content_block_stop", index=place)


def _call_lines(call: Call, place: int) -> Iterator[bytes]:
    block: JsonValue = {"type": "tool_use", "id": call.id or f"toolu_double_{place}", "name": call.name, "input": {}}
    yield _event("content_block_start", index=place, content_block=block)
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    for start in range(0, len(text), 20):
        piece = text[start : start + 20]
        yield _event("content_block_delta", index=place, delta={"type": "input_json_delta", "partial_json": piece})
    yield _event("content_block_stop", index=place)


def _event(kind: str, **data: JsonValue) -> bytes:
    text = json.dumps({"type": kind, **data}, ensure_ascii=False)  # as Anthropic sends it
    return f"event: {kind}\ndata: {text}\n\n".encode()
