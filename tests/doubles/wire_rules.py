"""What providers document about the messages of a request, and reject. The doubles answer such a request with 400."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.doubles.anthropic_wire import openai_shape, signature

CALL_ID = {"mistral": r"[A-Za-z0-9]{9}", "claude": r"[A-Za-z0-9_-]+", "": r".{1,40}"}
"""The ids that a vendor takes, by a part of the model's name."""
NO_PREFILL = re.compile(r"claude-[a-z]+-(4-[6-9]|[5-9])")
INVENTED = "[System: "
"""The beginning of what LiteLLM puts in the place of a text without words."""


def fault_of(body: dict[str, Any]) -> str:
    """Why a provider rejects the messages of `body`; empty if it takes them or if they have another vendor's form."""
    return next(_faults(body), "") if "messages" in body else ""


def _thinking_faults(body: dict[str, Any]) -> Iterator[str]:
    """Anthropic: thinking goes back unchanged, and a round that is continued with thinking begins with it."""
    thinks = (body.get("thinking") or {}).get("type") == "enabled"
    if thinks and (body.get("tool_choice") or {}).get("type") in ("tool", "any"):
        yield "thinking before a call that is forced"
    began = unsigned = False
    for message in body["messages"]:
        parts = message["content"] if isinstance(message["content"], list) else []
        if message["role"] == "user":
            began = began and any(part["type"] == "tool_result" for part in parts)
        elif message["role"] == "assistant":
            signed = [part for part in parts if part["type"] == "thinking"]
            if any(part["signature"] != signature(part["thinking"]) for part in signed):
                yield "thinking that was changed"
            unsigned = unsigned if began else not signed
            began = True
    if thinks and began and unsigned:
        yield "a round that does not begin with its thinking"


def _faults(body: dict[str, Any]) -> Iterator[str]:
    if "system" in body:
        yield from _thinking_faults(body)
    if "mistral" in str(body.get("model")):
        yield from _mistral_faults([message["role"] for message in body["messages"]])
    if NO_PREFILL.search(str(body.get("model"))) and body["messages"][-1]["role"] == "assistant":
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    waiting: list[str] = []
    seen: set[str] = set()
    pattern = next(each for name, each in CALL_ID.items() if name in str(body.get("model")))
    for message in openai_shape(body)["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield "a result without its call"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield "a call without its result"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if message["role"] == "assistant":
            yield from _text_faults(message)
        if len({*waiting} | seen) < len(waiting) + len(seen):
            yield "two calls with one id"
        seen |= {*waiting}
        for call in message.get("tool_calls") or ():
            if not re.fullmatch(pattern, call["id"]):
                yield "an id that the vendor does not take"
            if not _is_object(call["function"]["arguments"]):
                yield "arguments that are not a JSON object"


MISTRAL_FOLLOWS = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool"),
}
"""The roles that can follow a role, by the validator that Mistral publishes and serves with."""


def _mistral_faults(roles: list[str]) -> Iterator[str]:
    for before, role in pairwise(roles):
        if role not in MISTRAL_FOLLOWS[before]:
            yield f"Unexpected role '{role}' after role '{before}'"
    if len(roles) > 1 and roles[-1] == "assistant":
        yield "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"


def _text_faults(message: dict[str, Any]) -> Iterator[str]:
    text = message.get("content")
    if INVENTED in str(text) or ((text or not message.get("tool_calls")) and not str(text or "").strip()):
        yield "a text without words"


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False
