"""The formats of Google's generateContent and of Ollama's /api/chat: what they refuse, and a step as it is streamed.

The rules are those of the vendors' documentation of function calling, and of the errors that their servers return.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from tests.doubles.provider_steps import Call, Step
from tests.doubles.provider_wire import line, words

SIGNATURE = "c2lnbmVkLWJ5LXRoZS1kb3VibGU="
SKIPPED = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""`skip_thought_signature_validator`, which Google documents for calls that another model made."""
UNEQUAL = "The number of function response parts must be equal to the number of function call parts."
FUNCTION = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


def gemini_fault(body: dict[str, Any], model: str) -> str:
    """Why Google rejects a request; empty if it takes it."""
    return next(_gemini_faults(body, model), "")


def _gemini_faults(body: dict[str, Any], model: str) -> Iterator[str]:
    for number, each in enumerate(f for tool in body.get("tools") or () for f in tool["function_declarations"]):
        if not FUNCTION.fullmatch(each["name"]):
            yield f"* GenerateContentRequest.tools[0].function_declarations[{number}].name: Invalid function name."
    turns = body["contents"]
    spoken = [number for number, turn in enumerate(turns) if turn["role"] == "user" and _parts(turn, "text")]
    asked: list[Any] = []
    for number, turn in enumerate(turns):
        calls, results = _parts(turn, "function_call"), _parts(turn, "function_response")
        if not turn["parts"] or any("text" in part and not part["text"] for part in turn["parts"]):
            yield f"* GenerateContentRequest.contents[{number}].parts: contents.parts must not be empty."
        if results and not asked:
            yield "Please ensure that function response turn comes immediately after a function call turn."
        if len(results) != len(asked) or {each["name"] for each in results} - {each["name"] for each in asked}:
            yield UNEQUAL
        if calls and (not number or turns[number - 1]["role"] != "user"):
            yield "Please ensure that function call turn comes immediately after a user turn"
        if not all(isinstance(each["response"], dict) for each in results):
            yield "Invalid value at 'function_response.response' (type.googleapis.com/google.protobuf.Struct)"
        first: dict[str, Any] = next((part for part in turn["parts"] if "function_call" in part), {})
        unsigned = first.get("thoughtSignature") not in (SIGNATURE, SKIPPED)
        if calls and unsigned and "gemini-3" in model and number > max(spoken, default=-1):
            yield "Function call is missing a thought_signature in functionCall parts."
        asked = calls
    if asked:
        yield UNEQUAL
    if turns[-1]["role"] != "user":
        yield "Please ensure that multiturn requests end with a user role or a function response."


def _parts(turn: dict[str, Any], kind: str) -> list[Any]:
    return [part[kind] for part in turn["parts"] if kind in part]


def gemini_lines(step: Step, model: str) -> Iterator[bytes]:
    """A good answer: a chunk for each word, one for all calls, of which the first is signed, and one for the end."""
    for word in words(step.text):
        yield _gemini(model, [{"text": word}])
    parts: list[JsonValue] = [
        {
            "functionCall": {"id": call.id, "name": call.name, "args": call.arguments},
            **({} if number else {"thoughtSignature": SIGNATURE}),
        }
        for number, call in enumerate(step.calls)
    ]
    if parts:
        yield _gemini(model, parts)
    yield _gemini(model, [], step.finish_reason or "STOP")


def _gemini(model: str, parts: list[JsonValue], reason: str = "") -> bytes:
    candidate: dict[str, JsonValue] = {"content": {"role": "model", "parts": parts} if parts else {}, "index": 0}
    usage: JsonValue = {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}
    end: dict[str, JsonValue] = {"finishReason": reason} if reason else {}
    return line({"candidates": [{**candidate, **end}], "usageMetadata": usage, "modelVersion": model})


def ollama_fault(body: dict[str, Any]) -> str:
    """Why Ollama rejects a request; empty if it takes it. Its server reads the JSON into Go types."""
    into = "json: cannot unmarshal {} into Go struct field ChatRequest.messages.{} of type {}"
    for message in body["messages"]:
        if not isinstance(message.get("content", ""), str):
            return into.format("array", "content", "string")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], dict):
                return into.format("string", "tool_calls.function.arguments", "api.ToolCallFunctionArguments")
    return ""


def ollama_lines(step: Step, model: str) -> Iterator[bytes]:
    """A good answer: a line for each word and each call, and one for the end."""
    for word in words(step.text):
        yield _ollama(model, {"content": word})
    for number, call in enumerate(step.calls):
        yield _ollama(model, {"content": "", "tool_calls": [_ollama_call(call, number)]})
    counts: dict[str, JsonValue] = {"prompt_eval_count": 9, "eval_count": 5}
    yield _ollama(model, {"content": ""}, done=True, done_reason=step.finish_reason or "stop", **counts)


def _ollama_call(call: Call, number: int) -> JsonValue:
    return {"function": {"index": number, "name": call.name, "arguments": call.arguments}}


def _ollama(model: str, message: dict[str, JsonValue], *, done: bool = False, **end: JsonValue) -> bytes:
    said: JsonValue = {"role": "assistant", **message}
    head: dict[str, JsonValue] = {"model": model, "created_at": "2025-05-24T02:12:05.859654Z", "message": said}
    return json.dumps({**head, "done": done, **end}).encode() + b"\n"
