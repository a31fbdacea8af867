"""What a model is sent: system messages first, then the past, then this turn's own messages, in OpenAI form.

The base message (persona and user block) is at index 0 and does not change within a turn (S0-19); memory and the
context templates of loaded skills follow it; notes of the graph's own come where they fell. Wire ids of calls are our
own keys: providers repeat theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Role

PLATFORM_DEFAULT_PERSONA = (
    "You are a careful assistant. Use the tools that you are offered and say plainly what you did and what you could "
    "not do. Never claim that something happened unless a tool result says so."
)
"""The persona of an agent that brings none; it names no domain (S0-21)."""

WireMessage = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Said:
    """A message with its body, ready to be put on the wire."""

    role: Role
    content: str
    calls: Sequence[Mapping[str, JsonValue]] = ()
    """{key, tool, arguments} for each call of an assistant message."""
    answers: str = ""
    """For a tool message: the key of the call that it answers."""


def skill_message(name: str, description: str, body: str) -> str:
    """The system message of an injected skill (S0-63)."""
    return f"=== Skill Activated: {name} ===\n## Description\n{description}\n\n{body}"


def skill_list(skills: Sequence[tuple[str, str]]) -> str:
    """The skills that a model may ask for ((id, description)), for the base message; empty where there are none."""
    if not skills:
        return ""
    lines = "\n".join(f"- {skill_id}: {description}" for skill_id, description in skills)
    return f"\n\n=== Skills ===\nTo use one, write SKILL_SELECT:<id> in your answer.\n{lines}"


def base_message(persona: str, user_name: str, user_role: str, override: str | None) -> str:
    """Persona and user block (S0-18), or the caller's own system prompt in their place (S0-22)."""
    if override:
        return override
    who = f"Name: {user_name or 'user'}" + (f"\nRole: {user_role}" if user_role else "")
    return f"{persona or PLATFORM_DEFAULT_PERSONA}\n\n=== User ===\n{who}"


def wire(base: str, memory: str, messages: Sequence[Said], templates: Sequence[str] = ()) -> list[WireMessage]:
    """The messages of one request; `templates` are those of the loaded skills, a system message each (S0-19)."""
    sent: list[WireMessage] = [{"role": "system", "content": base}]
    sent.extend({"role": "system", "content": text} for text in (memory, *templates) if text)
    sent.extend(_wire_one(message) for message in messages)
    return sent


def _wire_one(message: Said) -> WireMessage:
    one: WireMessage = {"role": message.role.value, "content": message.content}
    if message.calls:
        one["tool_calls"] = [
            {
                "id": call["key"],
                "type": "function",
                "function": {"name": call["tool"], "arguments": call["arguments"]},
            }
            for call in message.calls
        ]
    if message.role is Role.TOOL:
        one["tool_call_id"] = message.answers
    return one
