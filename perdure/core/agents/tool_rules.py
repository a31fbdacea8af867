"""The rules of model providers for the tools of a request, by provider family, and the form in which tools are sent.

A provider refuses a whole request because of one tool. So a tool that breaks a rule is sent in a mended form, or it is
left out and reported (`UnsentTool`). Rules that need no choice between families apply to all of them: the schema
(perdure/core/agents/tool_schemas.py) and the characters of a tool's name.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import SCRIPTED, PublishedAgent, ToolCard
from perdure.contracts.calls import OutputAsk
from perdure.contracts.values import sha256_hex
from perdure.core.agents.models import is_claude
from perdure.core.agents.tool_schemas import (
    NOT_AN_OBJECT,
    UNREADABLE_SCHEMA,
    UNRESOLVED_REFERENCE,
    Unsendable,
    replaced_properties,
    sendable_schema,
    with_sent_properties,
)
from perdure.core.agents.toolsets import offered_cards

ToolFunction = dict[str, JsonValue]
"""A tool in OpenAI's format: {"type": "function", "function": {"name", "description", "parameters"}}."""
TOO_MANY_TOOLS: Final = "too_many_tools"
_ROUTES: Final = {
    "text-completion-openai": "openai",
    "azure_ai": "azure",
    "azure_text": "azure",
    "codestral": "mistral",
    "ollama_chat": "ollama",
}
"""Other names by which LiteLLM reaches a family."""
_RULE_TEXTS: Final = {
    NOT_AN_OBJECT: "its parameters are not an object",
    UNRESOLVED_REFERENCE: "the schema of its parameters refers to something that it does not contain",
    UNREADABLE_SCHEMA: "the schema of its parameters is not valid, or too deep",
    TOO_MANY_TOOLS: "a request can have {} tools, and the agent offers more",
}
_MAX_NAMED_TOOLS: Final = 5
"""Maximum number of tools that one sentence names."""
_TOOL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""OpenAI and Anthropic accept a digit at the beginning too; Gemini does not."""
_DIGEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The rules of one provider family, as far as families differ."""

    family: str
    max_tools: int | None = None
    """Maximum number of tools in a request; None if there is no limit."""
    max_description: int | None = None
    """Maximum length of a tool's description; the rest is sent as the description of its parameters."""


_OPENAI: Final = ToolRules("openai", max_tools=128, max_description=1024)
_RULES: Final[Mapping[str, ToolRules]] = {
    "openai": _OPENAI,
    "azure": ToolRules("azure", max_tools=128, max_description=1024),
    "anthropic": ToolRules("anthropic"),
    "mistral": ToolRules("mistral"),
    "gemini": ToolRules("gemini", max_tools=512),
    "ollama": ToolRules("ollama"),
}
_OTHER: Final = ToolRules("other", max_tools=128, max_description=1024)
"""The strictest rule of all families: the name can be a router that passes the request on to any of them."""


def tool_rules(model: str) -> ToolRules:
    """Returns the rules for tools of the provider that a LiteLLM name such as `gemini/gemini-2.5-pro` routes to."""
    if is_claude(model):
        return _RULES["anthropic"]
    prefix, separator, name = model.partition("/")
    if prefix == "vertex_ai" and "gemini" in name:
        return _RULES["gemini"]
    return _RULES.get(_ROUTES.get(prefix, prefix), _OTHER) if separator else _OTHER


@dataclass(frozen=True, slots=True)
class UnsentTool:
    """A tool that a model is not sent, and the rule that prevents it."""

    tool: str
    model: str
    rule: str
    """`too_many_tools`, `not_an_object`, `unresolved_reference` or `unreadable_schema`."""

    @property
    def reason(self) -> str:
        """The rule in words that follow "is"."""
        return f"not sent to {self.model}: {_RULE_TEXTS[self.rule].format(tool_rules(self.model).max_tools)}"


class Unsent(Protocol):
    """The fields that `UnsentTool` and its form in the API share."""

    @property
    def tool(self) -> str: ...

    @property
    def reason(self) -> str: ...


def unsent_sentences(unsent: Iterable[Unsent]) -> list[str]:
    """Returns a sentence for each model and rule, with the tools that are not sent."""
    by_reason: dict[str, list[str]] = {}
    for each in unsent:
        by_reason.setdefault(each.reason, []).append(each.tool)
    return [f"{_listed(tools)} {'is' if len(tools) == 1 else 'are'} {reason}" for reason, tools in by_reason.items()]


def unavailable_sentences(names: Sequence[str], unreached: Sequence[str]) -> list[str]:
    """Returns a sentence for each reason why no server offered names in an agent's tools; `unreached` are those whose
    server could not be used."""
    unlisted = [name for name in names if name not in unreached]
    reasons = (
        (unreached, "the server was unavailable; start again when it answers"),
        (
            unlisted,
            "its server lists no such tool, or it is left out with a warning at the start; correct the agent's tools "
            "or the server's toolsets, or lock again",
        ),
    )
    return [f"degraded: no MCP server offers {', '.join(each)}: {why}" for each, why in reasons if each]


def _listed(tools: Sequence[str]) -> str:
    named = ", ".join(tools[:_MAX_NAMED_TOOLS])
    subject = f"the tool {named}" if len(tools) == 1 else f"the tools {named}"
    return subject + (f" and {len(tools) - _MAX_NAMED_TOOLS} more" if len(tools) > _MAX_NAMED_TOOLS else "")


@dataclass(frozen=True, slots=True)
class SentTools:
    """The tools of a request."""

    tools: tuple[ToolFunction, ...]
    left_out: tuple[UnsentTool, ...] = ()


def tool_function(card: ToolCard) -> ToolFunction:
    """Returns the tool as its author wrote it, in the form of a request."""
    return function_of(card.name, card.description, card.parameters)


def function_of(name: str, description: str, parameters: dict[str, JsonValue]) -> ToolFunction:
    """Returns a function in OpenAI's format."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def sent_tools(tools: Sequence[ToolFunction], model: str) -> SentTools:
    """Returns the tools that `model` can be sent, each in a form that its provider accepts, in their order."""
    if model == SCRIPTED:
        return SentTools(tuple(tools))
    rules = tool_rules(model)
    sent: list[ToolFunction] = []
    left_out: list[UnsentTool] = []
    for tool in tools:
        function: Any = tool["function"]
        try:
            mended = _mended_function(function, rules)
        except Unsendable as error:
            left_out.append(UnsentTool(function["name"], model, error.rule))
            continue
        if rules.max_tools is not None and len(sent) >= rules.max_tools:
            left_out.append(UnsentTool(function["name"], model, TOO_MANY_TOOLS))
        else:
            sent.append({**tool, "function": mended})
    return SentTools(tuple(sent), tuple(left_out))


def _mended_function(function: Mapping[str, Any], rules: ToolRules) -> dict[str, JsonValue]:
    parameters = sendable_schema(function["parameters"])
    description, rest = _cut(function.get("description") or "", rules.max_description)
    if rest:
        own = parameters.get("description")
        parameters["description"] = f"{rest}\n{own}" if own else rest
    return {**function, "name": sent_name(function["name"]), "description": description, "parameters": parameters}


def _cut(text: str, limit: int | None) -> tuple[str, str]:
    """Returns the beginning of `text` that fits into `limit` characters, if possible up to a space, and the rest."""
    if limit is None or len(text) <= limit:
        return text, ""
    end = text.rfind(" ", limit // 2, limit)
    end = end if end > 0 else limit - 1
    return text[:end] + "…", text[end:].strip()


def sent_name(name: str) -> str:
    """Returns the form in which a tool's name is sent; an accepted name is unchanged."""
    if _TOOL_NAME.fullmatch(name):
        return name
    readable = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[: 64 - _DIGEST_CHARACTERS - 2]
    return f"_{readable}_{sha256_hex(name)[:_DIGEST_CHARACTERS]}"


def own_name(sent: str, offered: Iterable[str]) -> str:
    """Returns the offered tool that was sent under the name `sent`; `sent` itself if there is none."""
    return next((name for name in offered if sent_name(name) == sent), sent)


def sent_output(output: OutputAsk | None, model: str) -> OutputAsk | None:
    """Returns the requested object in a form that the provider of `model` accepts. A schema that cannot be mended is
    sent as it is, because without it there is no answer."""
    if output is None or model == SCRIPTED:
        return output
    try:
        schema = sendable_schema(output.fits)
    except Unsendable:
        schema = output.fits
    return output.model_copy(update={"name": sent_name(output.name), "fits": schema})


def sent_messages(
    messages: Sequence[dict[str, JsonValue]], model: str, tools: Sequence[ToolFunction] = ()
) -> tuple[dict[str, JsonValue], ...]:
    """Returns the messages with the names of earlier calls, and of their arguments, in the form in which tools are
    sent. `tools` are the offered tools as they are written."""
    if model == SCRIPTED:
        return tuple(messages)
    functions: list[Any] = [tool["function"] for tool in tools]
    replaced = {function["name"]: replaced_properties(function["parameters"]) for function in functions}
    sent_names = {name: {own: sent for sent, own in each.items()} for name, each in replaced.items() if each}
    return tuple(_sent_message(message, sent_names) for message in messages)


def _sent_message(message: dict[str, JsonValue], sent_names: Mapping[str, Mapping[str, str]]) -> dict[str, JsonValue]:
    calls: Any = message.get("tool_calls")
    if not calls:
        return message
    renamed: list[JsonValue] = [{**call, "function": _sent_call(call["function"], sent_names)} for call in calls]
    return {**message, "tool_calls": renamed}


def _sent_call(function: Mapping[str, Any], sent_names: Mapping[str, Mapping[str, str]]) -> dict[str, JsonValue]:
    name = function["name"]
    sent: dict[str, JsonValue] = {**function, "name": sent_name(name)}
    if name in sent_names:
        sent["arguments"] = with_sent_properties(function["arguments"], sent_names[name])
    return sent


def unsent_tools(agent: PublishedAgent, *, loads_toolsets: bool) -> list[UnsentTool]:
    """Returns the tools of an agent that its models are not sent, with the rule for each.

    `loads_toolsets` is whether its topology offers the tools of a toolset only if that is loaded. Otherwise a request
    can contain all its tools.
    """
    definition = agent.definition
    assembled = {config.name for config in definition.assembly.registry} if definition.assembly else set[str]()
    cards = [card for card in agent.cards if card.name not in assembled or card.name in definition.tools]
    together = set(offered_cards(cards, definition.toolsets)) if loads_toolsets else {card.name for card in cards}
    unsent: list[UnsentTool] = []
    for model in dict.fromkeys((definition.model, definition.second_model)):
        if model:
            unsent += _unsent_by(model, cards, together)
    return unsent


def _unsent_by(model: str, cards: Sequence[ToolCard], together: Collection[str]) -> list[UnsentTool]:
    """Returns the tools that `model` is not sent, of those that are always offered together and of each toolset, if it
    is the only one that is loaded."""
    always = [tool_function(card) for card in cards if card.name in together]
    left_out = dict.fromkeys(sent_tools(always, model).left_out)
    by_toolset: dict[str, list[dict[str, JsonValue]]] = {}
    for card in cards:
        if card.name not in together:
            by_toolset.setdefault(card.toolset or card.name, []).append(tool_function(card))
    for functions in by_toolset.values():
        left_out |= dict.fromkeys(sent_tools([*always, *functions], model).left_out)
    return list(left_out)
