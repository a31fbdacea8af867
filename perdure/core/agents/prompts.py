"""Builds the messages of a model request in OpenAI form: system messages, then the transcript, then the turn's
messages.

The base message (persona and user block) is at index 0 and does not change within a turn. Memory and the context
templates of loaded skills follow it. Notes of the graph keep their position among the messages. Messages of the model
are sent as the model wrote them (ids: perdure/core/agents/wire_ids.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import Role, WindowPolicy
from perdure.contracts.skills import Skill
from perdure.core.agents.models import is_claude, is_gemini, is_mistral, round_start
from perdure.core.agents.templates import fill_variables
from perdure.core.agents.wire_ids import signature_for, wire_ids
from perdure.core.text import estimated_tokens

PLATFORM_DEFAULT_PERSONA = (
    "You are a careful assistant. Use the tools that you are offered and say plainly what you did and what you could "
    "not do. Never claim that something happened unless a tool result says so."
)
"""The persona of an agent without its own; it names no domain."""

WireMessage = dict[str, JsonValue]
AGENT_PERSONA: Final = "agent"
ROOT_SKILL_PERSONA: Final = "root_skill"
PLATFORM_PERSONA: Final = "platform_default"
ENTITY_FIELDS = ("extracted_entities", "recent_entity_context")
"""Working-memory fields that contain entities; all others are scratchpad."""
CHANGED_BY_REVIEWER: Final = (
    "A reviewer changed the arguments of this call and it has run as changed. Do not issue it again."
)
ALREADY_RAN: Final = "The call has run and its effect stands; do not repeat it."


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message with its body, ready for the wire."""

    role: Role
    content: str
    calls: Sequence[Mapping[str, JsonValue]] = ()
    """{key, tool, arguments} for each call of an assistant message. Optional: `provider_id`; `sent_arguments` if the
    model's own differ from those that are stored; on the first call, `thinking` ({model, blocks}) before the calls."""
    answers: str = ""
    """The key of the call that a tool message answers."""


def base_message(persona: str, user_name: str, user_role: str, override: str | None) -> str:
    """Returns the persona and the user block, or the caller's own system prompt instead of both."""
    if override:
        return override
    user = f"Name: {user_name or 'user'}" + (f"\nRole: {user_role}" if user_role else "")
    return f"{persona or PLATFORM_DEFAULT_PERSONA}\n\n=== User ===\n{user}"


def wire_messages(
    base: str, memory: str, messages: Sequence[PromptMessage], templates: Sequence[str] = (), model: str = ""
) -> list[WireMessage]:
    """Returns the messages of one request to `model`. Each text of `templates` (those of the loaded skills) is a system
    message. A message of the model that has neither words nor calls is left out."""
    sent: list[WireMessage] = [{"role": "system", "content": base}]
    sent.extend({"role": "system", "content": text} for text in (memory, *templates) if text)
    calls = [call for message in messages for call in message.calls]
    ids = wire_ids([(str(call["key"]), _provider_id(call)) for call in calls], model)
    spoken = [message for message in messages if not _is_silent(message)]
    start = round_start([message.role.value for message in spoken])
    for index, message in enumerate(spoken):
        thinking = _thinking_blocks(message, model) if index >= start else []
        sent.append(_wire_message(message, ids, model) | ({"thinking_blocks": thinking} if thinking else {}))
    if is_mistral(model):
        sent = _in_mistrals_order(sent)
    if is_claude(model) or is_gemini(model):
        sent = _from_a_user(sent)
    return [*sent, {"role": "user", "content": _CONTINUE}] if _must_not_end_so(sent, model) else sent


LEFT_OUT: Final = "[Earlier messages are left out]"
"""The text of a user message in the place of messages that a window leaves out."""
_RECEIVED: Final = "I have the results."
_CONTINUE: Final = "Please continue."


def _from_a_user(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Returns the messages with a user's before the first of the model's. A window can begin with the model's, which
    Claude and Gemini reject."""
    start = next((place for place, each in enumerate(messages) if each["role"] != "system"), len(messages))
    if start == len(messages) or messages[start]["role"] == "user":
        return [*messages]
    return [*messages[:start], {"role": "user", "content": LEFT_OUT}, *messages[start:]]


def _in_mistrals_order(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Returns the messages in an order that Mistral accepts. Only the model can follow results. A system message can
    follow only the beginning or a user message; elsewhere it is sent as a marked user message."""
    ordered: list[WireMessage] = []
    for message in messages:
        before = ordered[-1]["role"] if ordered else "system"
        if message["role"] == "system" and before not in ("system", "user"):
            message = {"role": "user", "content": f"[A note of the system, not of the user]\n{message['content']}"}
        if message["role"] == "user" and before == "tool":
            ordered.append({"role": "assistant", "content": _RECEIVED})
        ordered.append(message)
    return ordered


def _must_not_end_so(messages: Sequence[WireMessage], model: str) -> bool:
    """Returns whether the last message is the model's, which Mistral, Gemini and Claude from 4.6 on reject. Gemini
    receives system messages apart from the others."""
    if not (is_mistral(model) or is_gemini(model) or is_claude(model)):
        return False
    roles = [each["role"] for each in messages if each["role"] != "system" or not is_gemini(model)]
    return roles[-1:] == ["assistant"]


def _is_silent(message: PromptMessage) -> bool:
    return message.role is Role.ASSISTANT and not message.calls and not message.content.strip()


def _provider_id(call: Mapping[str, JsonValue]) -> str:
    return str(call.get("provider_id") or "")


def _thinking_blocks(message: PromptMessage, model: str) -> list[JsonValue]:
    """Returns the signed thinking before the calls of a message; empty if another model wrote it. Anthropic needs it
    only within its round."""
    thinking = message.calls[0].get("thinking") if message.calls else None
    if not isinstance(thinking, dict) or thinking.get("model") != model:
        return []
    blocks = thinking.get("blocks")
    return blocks if isinstance(blocks, list) else []


def _wire_message(message: PromptMessage, ids: Mapping[str, str], model: str) -> WireMessage:
    wire: WireMessage = {"role": message.role.value, "content": message.content}
    if message.calls:
        # LiteLLM replaces a text without words by an invented sentence, and models begin to repeat it.
        wire["content"] = message.content if message.content.strip() else None
        wire["tool_calls"] = [_wire_call(call, ids, model) for call in message.calls]
    if message.role is Role.TOOL:
        wire["tool_call_id"] = ids.get(message.answers, message.answers)
    return wire


def _wire_call(call: Mapping[str, JsonValue], ids: Mapping[str, str], model: str) -> dict[str, JsonValue]:
    arguments = call.get("sent_arguments") or call["arguments"]
    wire: dict[str, JsonValue] = {
        "id": ids[str(call["key"])],
        "type": "function",
        "function": {"name": call["tool"], "arguments": arguments},
    }
    signature = signature_for(model, _provider_id(call))
    return {**wire, "provider_specific_fields": {"thought_signature": signature}} if signature else wire


GENERAL_PERSONA = (
    f"{PLATFORM_DEFAULT_PERSONA} You have no special knowledge of any field. Where a request needs the knowledge, the "
    "data or the procedures of a particular field, say that this is not yours to do and that an agent for that field "
    "is needed, and do not attempt it."
)
"""The persona of a general agent: it names no domain and declines tasks that need one."""


@dataclass(frozen=True, slots=True)
class Persona:
    """The persona of a turn, and its source."""

    key: str
    source: Literal["agent", "root_skill", "platform_default"]
    text: str


@dataclass(frozen=True, slots=True)
class User:
    """The user in the prompt; fields are empty if unknown."""

    name: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """The attributes of the span `prompt.assemble`."""

    persona_key: str
    persona_source: str
    context_template_count: int
    user_identity_injected: bool
    token_estimate: int
    """Estimated tokens of the prefix and the templates."""
    left_out_count: int
    """Messages of the conversation's earlier turns that the window leaves out."""


def persona_of(agent: AgentDefinition) -> Persona:
    """Returns the agent's own persona, else that of its root skill, else the platform's. Other skills do not contribute
    one."""
    if agent.persona:
        return Persona(agent.persona_key or AGENT_PERSONA, AGENT_PERSONA, agent.persona)
    root = next((skill for skill in agent.skills if skill.id == agent.root_skill), None)
    if root is not None and root.persona:
        return Persona(root.persona_key or root.id, ROOT_SKILL_PERSONA, root.persona)
    general = agent.root_skill is None and not agent.skills and not agent.tools
    return Persona(PLATFORM_PERSONA, PLATFORM_PERSONA, GENERAL_PERSONA if general else PLATFORM_DEFAULT_PERSONA)


def manifest_entry(skill: Skill) -> str:
    """Returns the manifest's text about a skill, without its id (tier 1)."""
    entry = f"{skill.name}. {skill.description}"
    if skill.triggers:
        entry += f" Triggers: {', '.join(skill.triggers)}."
    if skill.domain_tags:
        entry += f" Tags: {', '.join(skill.domain_tags)}."
    return entry


def skill_manifest(skills: Sequence[Skill]) -> str:
    """Returns the list of the agent's skills that the model can select, for the base message; empty if there are
    none."""
    if not skills:
        return ""
    lines = "\n".join(f"- {skill.id}: {manifest_entry(skill)}" for skill in skills)
    return f"\n\n=== Skills ===\nTo use one, write SKILL_SELECT:<id> in your answer.\n{lines}"


def system_prefix(agent: AgentDefinition, persona: Persona, user: User, override: str | None = None) -> str:
    """Returns the message at index 0. The caller's own system prompt replaces all of it. Otherwise it contains the
    persona, the user block and the manifest of all the agent's skills. It does not depend on what is loaded, so that a
    provider's cache of it stays valid. The texts of loaded skills follow after it."""
    base = base_message(persona.text, user.name, user.role, override)
    return base if override else base + skill_manifest(agent.skills)


def template_messages(agent: AgentDefinition, loaded: Sequence[Skill], user: User) -> list[str]:
    """Returns the context templates of the loaded skills, one system message each, for the end of the system
    messages."""
    who = {"user_name": user.name or "user", "user_role": user.role, "agent_title": agent.title}
    return [
        fill_variables(template.text, {**who, "skill_name": skill.name})
        for skill in loaded
        for template in skill.templates
    ]


def skill_activation(skill: Skill, entity_context: str = "") -> str:
    """Returns the single system message of an injected skill: its definition, its artifacts and the entity context."""
    head = f"=== Skill Activated: {skill.name} ===\n## Description\n{skill.description}"
    parts = [head, skill.body.strip()]
    parts += [f"## Artifact: {artifact.name}\n{artifact.text.strip()}" for artifact in skill.artifacts]
    if entity_context:
        parts.append(f"## Entity Context\n{entity_context}")
    return "\n\n".join(parts)


def skill_tier(skill: Skill) -> int:
    """Returns the highest tier that injecting the skill adds: 3 with artifacts, else 2."""
    return 3 if skill.artifacts else 2


def prompt_facts(
    persona: Persona, base: str, templates: Sequence[str], *, overridden: bool, left_out_count: int
) -> PromptFacts:
    """Returns the span attributes of a prompt with the prefix `base`; `overridden` if that is the caller's own
    prompt."""
    return PromptFacts(
        persona_key="" if overridden else persona.key,
        persona_source="caller" if overridden else persona.source,
        context_template_count=len(templates),
        user_identity_injected=not overridden,
        token_estimate=sum(map(estimated_tokens, [base, *templates])),
        left_out_count=left_out_count,
    )


def with_cache_breakpoint(messages: Sequence[WireMessage], model: str) -> list[WireMessage]:
    """Returns `messages` with a cache breakpoint at the end of the prefix for a Claude model, else unchanged."""
    if not is_claude(model) or not messages or messages[0]["role"] != "system" or not messages[0]["content"]:
        return [*messages]  # Anthropic rejects a breakpoint on an empty text
    part: dict[str, JsonValue] = {
        "type": "text",
        "text": messages[0]["content"],
        "cache_control": {"type": "ephemeral"},
    }
    return [{**messages[0], "content": [part]}, *messages[1:]]


@dataclass(frozen=True, slots=True)
class WindowedMessage:
    """The fields of a message that windowing needs."""

    index: int
    role: Role
    tokens: int
    call_ids: tuple[str, ...] = ()
    """The calls of an assistant message."""
    answers: str = ""
    """The call that a tool message answers."""


def select_messages(messages: Sequence[WindowedMessage], policy: WindowPolicy) -> list[int]:
    """Returns the indexes of the messages to send, in order. Results directly follow their calls, as providers require.
    The policy is applied to a copy, never to stored messages. A round of calls and all its results are kept or dropped
    together. Providers reject a tool result without its call and a call without all its results. The newest round or
    message is always kept."""
    rounds = _group_rounds(messages)
    if policy.max_messages is None and policy.max_tokens is None:
        return [message.index for each in rounds for message in each]
    anchors = {each[0].index for each in rounds if each[0].role is Role.SYSTEM}
    if policy.keep_first_user:
        first = next((each[0] for each in rounds if each[0].role is Role.USER), None)
        anchors |= {first.index} if first else set()
    selected = set(anchors)
    messages_left = policy.max_messages
    tokens_left = policy.max_tokens
    others = [each for each in rounds if each[0].index not in anchors]
    for each in reversed(others):
        size, round_tokens = len(each), sum(message.tokens for message in each)
        newest = each is others[-1]
        if not newest and (
            (messages_left is not None and messages_left < size)
            or (tokens_left is not None and tokens_left < round_tokens)
        ):
            break
        selected |= {message.index for message in each}
        messages_left = None if messages_left is None else messages_left - size
        tokens_left = None if tokens_left is None else tokens_left - round_tokens
    return [message.index for each in rounds for message in each if message.index in selected]


def tokens_left_out(past_tokens: int, budget: int) -> int:
    """Returns how many of the oldest tokens of a conversation a prompt leaves out, so that `budget` is enough for the
    rest.

    The number grows in steps of half the budget. The prompt then starts with the same messages for many turns, and a
    provider's cache of it stays valid.
    """
    step = max(budget // 2, 1)
    return max(-(-(past_tokens - budget) // step) * step, 0)


def halve_window(messages: Sequence[WindowedMessage], policy: WindowPolicy) -> WindowPolicy:
    """Returns the policy with half the tokens that it would send, for a request that was too long for the model."""
    kept = set(select_messages(messages, policy))
    tokens = sum(message.tokens for message in messages if message.index in kept)
    return policy.model_copy(update={"max_tokens": tokens // 2})


def _group_rounds(messages: Sequence[WindowedMessage]) -> list[list[WindowedMessage]]:
    """Groups messages that are kept or dropped together: a single message, or calls with all their results. Orphans are
    omitted."""
    rounds: list[list[WindowedMessage]] = []
    round_by_call: dict[str, list[WindowedMessage]] = {}
    for message in messages:
        if message.role is Role.TOOL:
            round_by_call.get(message.answers, []).append(message)
            continue
        rounds.append([message])
        round_by_call |= dict.fromkeys(message.call_ids, rounds[-1])
    return [each for each in rounds if set(each[0].call_ids) <= {message.answers for message in each[1:]}]


@dataclass(frozen=True, slots=True)
class RecalledEpisode:
    """An episode that is similar to the user's message."""

    summary: str
    similarity: float
    by: str
    """`cosine`, or `full_text` if no embedding model is configured; then the number is only a rank."""


def memory_message(working: Mapping[str, JsonValue], episodes: Sequence[RecalledEpisode] = ()) -> str:
    """Returns the memory text of a turn; empty if there is none. It is one system message after the base message, with
    labeled parts. It is built once per turn and does not change; the next turn builds its own, so that nothing
    accumulates."""
    scratchpad = [_format_field(name, value) for name, value in sorted(working.items()) if name not in ENTITY_FIELDS]
    entities = [_format_field(name, working[name]) for name in ENTITY_FIELDS if name in working]
    recalled = [f"- ({_format_nearness(each)}) {_indent_summary(each.summary)}" for each in episodes]
    parts = (
        ("[Working Memory -- Scratchpad]", scratchpad),
        ("[Working Memory -- Extracted Entities]", entities),
        ("[Episodic Memory -- Relevant Past Conversations]", recalled),
    )
    body = [line for label, lines in parts if lines for line in (label, *lines)]
    return "\n".join(["=== Memory Context ===", *body]) if body else ""


def _format_field(name: str, value: JsonValue) -> str:
    return f"- {name}: {', '.join(str(each) for each in value) if isinstance(value, list) else str(value)}"


def _format_nearness(episode: RecalledEpisode) -> str:
    if episode.by == "cosine":
        return f"similarity {episode.similarity:.2f}"
    return f"{episode.by} rank {episode.similarity:.2f}"


def _indent_summary(summary: str) -> str:
    return "\n  ".join(summary.splitlines())


@dataclass(frozen=True, slots=True)
class PlainResult:
    """A result without its note."""

    result: JsonValue
    """The tool's own result."""
    edited: bool = False
    """True if a reviewer changed the call before it ran."""


def with_changed_arguments(arguments: Mapping[str, JsonValue], result: JsonValue) -> dict[str, JsonValue]:
    """Returns the result of a call that a reviewer edited, with a note and the arguments that ran."""
    return {"note": CHANGED_BY_REVIEWER, "arguments": {**arguments}, "result": result}


def with_memory_error(code: str, reason: str, result: JsonValue) -> dict[str, JsonValue]:
    """Returns the result of a call that ran but whose memory updates were rejected."""
    return {"status": "error", "code": code, "message": f"{ALREADY_RAN} {reason}", "result": result}


def unwrap_result(value: JsonValue) -> PlainResult:
    """Returns the tool's own result without any note around it."""
    if not isinstance(value, dict):
        return PlainResult(value)
    if value.keys() == {"note", "arguments", "result"} and value["note"] == CHANGED_BY_REVIEWER:
        return PlainResult(unwrap_result(value["result"]).result, edited=True)
    if value.keys() == {"status", "code", "message", "result"} and str(value["message"]).startswith(ALREADY_RAN):
        return PlainResult(value["result"])
    return PlainResult(value)
