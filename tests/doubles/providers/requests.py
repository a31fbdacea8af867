"""The requests that arrive at the provider double, in OpenAI's form."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

NOTE = "Operator note (not from the user): the following was originally a mid-conversation system-role reminder."
"""How LiteLLM marks a system message that has become a user's, for models without system messages in between."""


@dataclass(slots=True)
class Seen:
    idempotency_key: str
    model: str
    user_text: str
    tools: list[str]
    body: dict[str, JsonValue]
    received_at: float  # seconds since the epoch
    authorized: bool
    outcome: str = "running"  # `answered`, an error status, a fault, `client_gone`, or `no_step`
    spoke_at: float | None = None  # when the first word of its text or thinking left


def latest_user_text(body: dict[str, Any]) -> str:
    for message in reversed(body.get("messages") or []):
        if message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else json.dumps(content)
    return ""


def openai_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request in OpenAI's or Anthropic's form, in OpenAI's."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": part["text"]} for part in body.get("system") or ()]
    for message in body.get("messages") or ():
        content = message.get("content")
        if message["role"] == "user":
            messages += _told(content if isinstance(content, list) else [{"type": "text", "text": content}])
        elif message["role"] == "assistant" and isinstance(content, list):
            messages += _asked(content)
        else:
            messages.append(message)
    return messages


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
        elif part["type"] == "text" and part["text"].startswith(NOTE):
            rest = part["text"].removeprefix(NOTE).strip()
            note = not rest
            if rest:
                yield {"role": "system", "content": rest}
        else:
            yield {"role": "system" if note else "user", "content": part.get("text", "")}
            note = False
