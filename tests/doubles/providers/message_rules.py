"""What vendors document about the messages of a request, or their servers say about them: whatever breaks it is
rejected."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from tests.doubles.providers.refusal import Body, Refusal
from tests.doubles.providers.requests import openai_messages
from tests.doubles.providers.wires import SIGNATURE, SKIPPED, signature_of

CALL_IDS = {"mistral": r"[A-Za-z0-9]{9}", "anthropic": r"[A-Za-z0-9_-]+", "": r".{1,40}"}
"""The ids of calls that a vendor takes."""
NO_PREFILL = re.compile(r"claude-[a-z]+-(4-[6-9]|[5-9])")
INVENTED = "[System: "
"""The beginning of what LiteLLM puts in the place of a text without words."""
MISTRAL_FOLLOWS = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool"),
}
"""The roles that can follow a role, by the validator that Mistral publishes and serves with."""
ORDER, CALL = "3230", "3280"
"""Mistral's codes."""
UNEQUAL = "The number of function response parts must be equal to the number of function call parts."


def message_refusals(vendor: str, body: Body, url: str) -> Iterator[Refusal]:
    """The rules that the messages break. A Mistral model has its own ones on every host."""
    if vendor == "gemini":
        yield from map(Refusal, _gemini_faults(body["contents"], url) if "contents" in body else ())
        return
    messages, model = body.get("messages") or [], str(body.get("model"))
    if vendor == "ollama":
        yield from map(Refusal, _ollama_faults(messages))
        return
    if vendor == "anthropic":
        yield from map(Refusal, _anthropic_faults(body, messages, model))
    if "mistral" in model:
        yield from (Refusal(fault, ORDER) for fault in _mistral_faults([each["role"] for each in messages]))
        vendor = "mistral"
    pattern = CALL_IDS.get(vendor, CALL_IDS[""])
    for fault, code in _call_faults(openai_messages(body), pattern):
        yield Refusal(fault, code if vendor == "mistral" else "", "messages")


def _call_faults(messages: Iterable[dict[str, Any]], pattern: str) -> Iterator[tuple[str, str]]:
    """Each call has one result right after it, and each message of the model has words or calls."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield "a result without its call", ORDER
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield "a call without its result", ORDER
        calls = message.get("tool_calls") or ()
        waiting = [call["id"] for call in calls]
        text = str(message.get("content") or "")
        if message["role"] == "assistant" and (INVENTED in text or ((text or not calls) and not text.strip())):
            yield "a text without words", ORDER
        if len({*waiting} | seen) < len(waiting) + len(seen):
            yield "two calls with one id", CALL
        seen |= {*waiting}
        for call in calls:
            if not re.fullmatch(pattern, call["id"]):
                yield "an id that the vendor does not take", CALL
            if not _is_object(call["function"].get("arguments", "{}")):
                yield "arguments that are not a JSON object", CALL
    if waiting:
        yield "a call without its result", ORDER


def _is_object(arguments: object) -> bool:
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _anthropic_faults(body: Body, messages: list[Any], model: str) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if roles[:1] == ["assistant"]:
        yield 'messages: first message must use the "user" role'
    for before, role in pairwise(roles):
        if before == role:
            yield f'messages: roles must alternate between "user" and "assistant", but found multiple "{role}" roles'
    parts = [_parts(message) for message in messages]
    if any(part.get("text", "x") == "" for each in parts for part in each):
        yield "messages: text content blocks must be non-empty"
    if roles[-1:] == ["assistant"]:
        if NO_PREFILL.search(model):
            yield "This model does not support assistant message prefill. It must end with a user message."
        text = "".join(part.get("text", "") for part in parts[-1])
        if text != text.rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
    yield from _thinking_faults(body, list(zip(roles, parts, strict=True)))


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _thinking_faults(body: Body, messages: list[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """Thinking goes back unchanged, and a round that is continued with thinking begins with it."""
    thinks = (body.get("thinking") or {}).get("type") == "enabled"
    if thinks and (body.get("tool_choice") or {}).get("type") in ("tool", "any"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    began = unsigned = False
    for role, parts in messages:
        if role == "user":
            began = began and any(part["type"] == "tool_result" for part in parts)
            continue
        signed = [part for part in parts if part["type"] == "thinking"]
        if any(part["signature"] != signature_of(part["thinking"]) for part in signed):
            yield "thinking blocks in the latest assistant message cannot be modified"
        unsigned = unsigned if began else not signed
        began = True
    if thinks and began and unsigned:
        yield "Expected `thinking` or `redacted_thinking`, but found `tool_use`."


def _mistral_faults(roles: list[str]) -> Iterator[str]:
    for before, role in pairwise(roles):
        if role not in MISTRAL_FOLLOWS[before]:
            yield f"Unexpected role '{role}' after role '{before}'"
    if len(roles) > 1 and roles[-1] == "assistant":
        yield "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"


def _gemini_faults(turns: list[dict[str, Any]], url: str) -> Iterator[str]:
    def of(turn: dict[str, Any], kind: str) -> list[Any]:
        return [part[kind] for part in turn["parts"] if kind in part]

    spoken = [number for number, turn in enumerate(turns) if turn["role"] == "user" and of(turn, "text")]
    asked: list[Any] = []
    for number, turn in enumerate(turns):
        calls, results = of(turn, "function_call"), of(turn, "function_response")
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
        if calls and unsigned and "gemini-3" in url and number > max(spoken, default=-1):
            yield "Function call is missing a thought_signature in functionCall parts."
        asked = calls
    if asked:
        yield UNEQUAL
    if turns[-1]["role"] != "user":
        yield "Please ensure that multiturn requests end with a user role or a function response."


def _ollama_faults(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Its server reads the JSON into Go types."""
    into = "json: cannot unmarshal {} into Go struct field ChatRequest.messages.{} of type {}"
    for message in messages:
        if not isinstance(message.get("content", ""), str):
            yield into.format("array", "content", "string")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], dict):
                yield into.format("string", "tool_calls.function.arguments", "api.ToolCallFunctionArguments")
