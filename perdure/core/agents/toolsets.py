"""Toolsets: which tools a model is offered, and what loading another one answers (S2-19, S2-32, S2-33).

A server's tools come in toolsets, so that the schemas of a whole cluster do not ride in every request (S2-75). What is
loaded is a value, `{toolset: whether with the tools that write}`, that only grows: access is never taken back. It
widens what a model sees and nothing else; whether a call runs is for the gate.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.mcp import McpServer, McpToolListing, McpToolSettings
from perdure.contracts.skills import Skill
from perdure.contracts.values import digest_of
from perdure.core.approvals.gates import tool_needs_approval

LOAD_TOOLSET: Final = "load_toolset"
MEMORY: Final = "memory"
"""The toolset of what writes document memory; the tools that read it are in none, and so always offered (S2-19)."""
LOADED_TOOLSETS: Final = "loaded_toolsets"
"""The working-memory field in which a conversation keeps what it has loaded, and a state too."""
_FLAG: Final = "include_write_tools"

_OF_MEMORY: Final = frozenset({"memory_read", "memory_write"})

Loaded = Mapping[str, bool]


class Card(Protocol):
    """What is asked of a card, whole or in a plan."""

    @property
    def name(self) -> str: ...

    @property
    def effect(self) -> EffectClass: ...

    @property
    def capability(self) -> str: ...

    @property
    def toolset(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Loading:
    """What a call to `load_toolset` came to."""

    loaded: dict[str, bool]
    """What is loaded after it."""
    told: dict[str, JsonValue]
    """The result, for the model."""
    done: bool
    """False where it changed nothing because its arguments mean nothing."""


def known_toolsets(cards: Sequence[Card]) -> tuple[str, ...]:
    """The toolsets of an agent, in the order of its cards."""
    return tuple(dict.fromkeys(card.toolset for card in cards if card.toolset))


def offered_cards(cards: Sequence[Card], loaded: Loaded) -> tuple[str, ...]:
    """The names of the tools that are offered: those of no toolset, and of loaded toolsets what the access allows.

    Without write access only tools that change nothing, as far as that is believed (S2-33).
    """
    return tuple(card.name for card in cards if not card.toolset or _is_open(card, loaded))


def _is_open(card: Card, loaded: Loaded) -> bool:
    if card.effect is EffectClass.READ:
        return card.toolset in loaded
    return loaded.get(card.toolset, False)


def is_of_memory(card: Card) -> bool:
    """Whether a tool works on document memory: the engine's own, announced by events of its own (S2-35).

    By the capability, which no server can say of its tools; it could well call a toolset `memory`.
    """
    return card.capability in _OF_MEMORY


def load_card(cards: Sequence[Card]) -> ToolCard:
    """The card of `load_toolset` for an agent with these cards."""
    names = known_toolsets(cards)
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"toolset": {"type": "string", "enum": [*names]}, _FLAG: {"type": "boolean"}},
        "required": ["toolset", _FLAG],
        "additionalProperties": False,
    }
    description = (
        f"Get more tools, from your next step on: {', '.join(names)}. Set {_FLAG} only if something is to be changed; "
        "without it you get the tools that read."
    )
    card = ToolCard(
        name=LOAD_TOOLSET,
        description=description,
        parameters=parameters,
        effect=EffectClass.READ,
        needs_approval=False,
        risk="low",
        version="",
    )
    return card.model_copy(update={"version": digest_of(card.model_dump(mode="json"))})


def load(args: Mapping[str, JsonValue], cards: Sequence[Card], loaded: Loaded) -> Loading:
    """Answer a call with these arguments; those that mean nothing get a result that says what would (S2-32)."""
    names, toolset, writes = known_toolsets(cards), args.get("toolset"), args.get(_FLAG)
    if not isinstance(toolset, str) or toolset not in names:
        asked = toolset[:64] if isinstance(toolset, str) else toolset if toolset is None else type(toolset).__name__
        return _refused(loaded, f"there is no toolset {asked!r}; there are: {', '.join(names)}")
    if not isinstance(writes, bool):
        return _refused(loaded, f"{_FLAG} must be true or false; true only if something is to be changed")
    before = loaded.get(toolset)
    after = {**loaded, toolset: writes or bool(before)}
    new = set(offered_cards(cards, after)) - set(offered_cards(cards, loaded))
    told: dict[str, JsonValue] = {
        "status": "loaded",
        "toolset": toolset,
        "write_tools": after[toolset],
        "new_tools": [card.name for card in cards if card.name in new],
    }
    return Loading(after, told, done=True)


def held(value: JsonValue, cards: Sequence[Card], begins_with: Loaded) -> dict[str, bool]:
    """What is loaded when a turn begins: the agent's own start with what its conversation has kept, `value`.

    Anybody who may write the conversation's working memory may have written it: what is no toolset is passed over.
    """
    names = known_toolsets(cards)
    kept = value if isinstance(value, dict) else {}
    found: dict[str, bool] = {}
    for name in names:
        if name in begins_with or isinstance(kept.get(name), bool):
            found[name] = begins_with.get(name, False) or kept.get(name) is True
    return found


def _refused(loaded: Loaded, why: str) -> Loading:
    return Loading(dict(loaded), {"status": "error", "message": why}, done=False)


# --- Which skills of an agent are loaded, and so which tools its model is offered (S0-41).


def loaded_skills(agent: AgentDefinition, injected: Iterable[str]) -> tuple[Skill, ...]:
    """The root skill and the injected ones, each with all that it depends on, in the agent's order."""
    loaded = _reached({skill.id: skill.dependencies for skill in agent.skills}, agent.root_skill or "", injected)
    return tuple(skill for skill in agent.skills if skill.id in loaded)


def loaded_ids(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """The same for a plan, by id."""
    dependencies = dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}
    loaded = _reached(dependencies, plan.root_skill, injected)
    return tuple(skill_id for skill_id in plan.skill_ids if skill_id in loaded)


def offered_tools(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """The tools of a model call, in the plan's order: all but the blocks of skills that are not loaded."""
    loaded = loaded_ids(plan, injected)
    blocks = {name for skill in plan.skills for name in skill.tools}
    visible = {name for skill in plan.skills if skill.id in loaded for name in skill.tools}
    return tuple(card.name for card in plan.cards if card.name not in blocks or card.name in visible)


def brought_by(plan: TurnPlan, selected: Iterable[str]) -> tuple[str, ...]:
    """The selected skills and all that they depend on, a dependency before what needs it."""
    dependencies = dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}
    ordered: dict[str, None] = {}
    under_way: set[str] = set()

    def bring(skill_id: str) -> None:
        if skill_id not in dependencies or skill_id in under_way:
            return
        under_way.add(skill_id)
        for each in dependencies[skill_id]:
            bring(each)
        ordered[skill_id] = None

    for skill_id in selected:
        bring(skill_id)
    return tuple(ordered)


def _reached(dependencies: Mapping[str, Sequence[str]], root: str, injected: Iterable[str]) -> set[str]:
    """The skills that one comes to from these; an id that the agent has not is passed over."""
    reached: set[str] = set()
    waiting = [root, *injected]
    while waiting:
        skill_id = waiting.pop()
        if skill_id in dependencies and skill_id not in reached:
            reached.add(skill_id)
            waiting += dependencies[skill_id]
    return reached


# --- How far the word of an MCP server goes: from a tool's hints to its effect, approval and risk (S2-34).
#
# | who speaks                                  | says            | effect | approval |
# |---------------------------------------------|-----------------|--------|----------|
# | the app's author, for this tool             | effect: x       | x      | unless x is read |
# | a trusted server                            | read-only       | read   | no       |
# | a trusted server                            | read-only and destructive | opaque | yes |
# | a trusted server, tool honours keys         | not read-only   | keyed  | yes      |
# | a trusted server                            | not read-only, or nothing | opaque | yes |
# | a server that is not trusted                | anything        | opaque | yes      |
#
# A hint can make a tool stricter or more open, but none makes a change run without an approval. That repeating a call
# is harmless (`idempotentHint`) is not the same as honouring a key: the second call may undo what came in between.

_NOTHING_SAID = McpToolSettings()
_TAG = re.compile(r"\w[\w .:/-]{0,63}")
"""What counts as a tag: models are told it as a toolset's name, and anything may stand there."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the engine takes a server's tool for."""

    effect: EffectClass
    needs_approval: bool
    risk: str
    key_ttl_seconds: float | None = None
    """`keyed` only."""
    key_argument: str = ""
    """`keyed` only: the argument for the key; empty: `_meta`."""


def standing(server: McpServer, tool: McpToolListing) -> Standing:
    """What `tool` of `server` counts as, by the table above."""
    said = server.tools.get(tool.name, _NOTHING_SAID)
    if said.effect is not None:
        effect, ttl = said.effect, said.key_ttl_seconds
    elif not server.trust_annotations:
        effect, ttl = EffectClass.OPAQUE, None
    elif tool.hints.read_only and not tool.hints.destructive:
        effect, ttl = EffectClass.READ, None
    elif tool.key_ttl_seconds is not None and not tool.hints.read_only:
        effect, ttl = EffectClass.KEYED, tool.key_ttl_seconds
    else:
        effect, ttl = EffectClass.OPAQUE, None
    risk = said.risk or _risk(server, tool, effect)
    return Standing(effect, tool_needs_approval(effect, None), risk, ttl, said.key_argument)


def _risk(server: McpServer, tool: McpToolListing, effect: EffectClass) -> str:
    """Shown to the reviewer; what nobody vouches for is high, as the protocol's own default is (destructive)."""
    if effect is EffectClass.READ:
        return "low"
    return "medium" if server.trust_annotations and tool.hints.destructive is False else "high"


def toolset_of(server: McpServer, tool: McpToolListing) -> str:
    """The toolset that a tool belongs to; empty where it is not offered (S2-33).

    By its first tag, else by the part of its name before the first `_`. A server that names no toolsets offers all.
    """
    tag = tool.tags[0] if tool.tags and _TAG.fullmatch(tool.tags[0]) else ""
    if not server.toolsets:
        return tag or server.name
    if tag:
        return tag if tag in server.toolsets else ""
    prefix = tool.name.partition("_")[0]
    return prefix if prefix in server.toolsets else ""
