"""The tools that a model is offered, and the result of loading another toolset or skill.

A server's tools are grouped in toolsets, so that a request does not include the schemas of all of them. The loaded
toolsets are a value, `{toolset: with write tools}`, that only grows: access is never revoked. Loading changes only
which tools a model is offered; the gate decides whether a call runs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.skills import Skill
from perdure.contracts.values import digest_of

LOAD_TOOLSET: Final = "load_toolset"
MEMORY: Final = "memory"
"""The toolset of the tools that write document memory. Those that read it are in no toolset and so always offered."""
LOADED_TOOLSETS: Final = "loaded_toolsets"
"""The working-memory field with the loaded toolsets of a conversation, and the field of the turn's state."""
WRITE_FLAG: Final = "include_write_tools"
LOAD_ARGUMENTS: Final = ("toolset", WRITE_FLAG)
"""The arguments of `load_toolset`. A model may send others, of any size."""

_MEMORY_CAPABILITIES: Final = frozenset({"memory_read", "memory_write"})

LoadedToolsets = Mapping[str, bool]


class Card(Protocol):
    """The fields that full cards and cards of a plan share."""

    @property
    def name(self) -> str: ...

    @property
    def effect(self) -> EffectClass: ...

    @property
    def capability(self) -> str: ...

    @property
    def toolset(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a call to `load_toolset`."""

    loaded: dict[str, bool]
    """The toolsets that are loaded afterwards."""
    result: dict[str, JsonValue]
    """The result for the model."""
    done: bool
    """False if nothing changed because the arguments are invalid."""


def known_toolsets(cards: Sequence[Card]) -> tuple[str, ...]:
    """Returns the names of the toolsets of an agent's tools, each once, in the order of the cards."""
    return tuple(dict.fromkeys(card.toolset for card in cards if card.toolset))


def offered_cards(cards: Sequence[Card], loaded: LoadedToolsets) -> tuple[str, ...]:
    """Returns the names of the offered tools: those without a toolset, and those of loaded toolsets that the access
    allows.

    Without write access, these are only tools that change nothing, as far as the server is trusted.
    """
    return tuple(card.name for card in cards if not card.toolset or _is_offered(card, loaded))


def _is_offered(card: Card, loaded: LoadedToolsets) -> bool:
    if card.effect is EffectClass.READ:
        return card.toolset in loaded
    return loaded.get(card.toolset, False)


def is_memory_tool(card: Card) -> bool:
    """Returns whether a tool works on document memory: one of the engine's own tools, which have their own events.

    It checks the capability, which a server cannot set. A server could name a toolset `memory`.
    """
    return card.capability in _MEMORY_CAPABILITIES


def loader_card(cards: Sequence[Card]) -> ToolCard:
    """Returns the card of `load_toolset` for an agent with these cards."""
    names = known_toolsets(cards)
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"toolset": {"type": "string", "enum": [*names]}, WRITE_FLAG: {"type": "boolean"}},
        "required": ["toolset", WRITE_FLAG],
        "additionalProperties": False,
    }
    description = (
        f"Get more tools, from your next step on: {', '.join(names)}. Set {WRITE_FLAG} only if something is to be "
        "changed; without it you get the tools that read."
    )
    return engine_card(LOAD_TOOLSET, description, parameters)


def engine_card(name: str, description: str, parameters: dict[str, JsonValue]) -> ToolCard:
    """Returns the card of a tool that the engine itself answers, with no effect and no approval. Its version is that of
    its content."""
    card = ToolCard(
        name=name,
        description=description,
        parameters=parameters,
        effect=EffectClass.READ,
        needs_approval=False,
        risk="low",
        version="",
    )
    return card.model_copy(update={"version": digest_of(card.model_dump(mode="json"))})


def requested_cards(cards: Sequence[ToolCard], names: Collection[str], loaded: LoadedToolsets) -> list[ToolCard]:
    """Returns the cards of the offered tools `names` in the order of a request: `load_toolset`, tools without a
    toolset, then the toolsets in the order in which they were loaded.

    If a provider accepts fewer tools, those at the end are left out. A model so keeps the tools that it has, and does
    not receive all of a toolset that it loads.
    """
    places = {toolset: place for place, toolset in enumerate(loaded)}
    offered = sorted((card for card in cards if card.name in names), key=lambda card: places.get(card.toolset, -1))
    return [loader_card(cards), *offered] if LOAD_TOOLSET in names else offered


def load(args: Mapping[str, JsonValue], cards: Sequence[Card], loaded: LoadedToolsets) -> LoadResult:
    """Loads a toolset for a call with these arguments. The result of invalid arguments names the valid ones."""
    names, toolset, writes = known_toolsets(cards), args.get("toolset"), args.get(WRITE_FLAG)
    if not isinstance(toolset, str) or toolset not in names:
        requested = toolset[:64] if isinstance(toolset, str) else toolset if toolset is None else type(toolset).__name__
        return _refuse_load(loaded, f"there is no toolset {requested!r}; available toolsets: {', '.join(names)}")
    if not isinstance(writes, bool):
        return _refuse_load(loaded, f"{WRITE_FLAG} must be true or false; set true only if the task changes something")
    before = loaded.get(toolset)
    after = {**loaded, toolset: writes or bool(before)}
    new = set(offered_cards(cards, after)) - set(offered_cards(cards, loaded))
    result: dict[str, JsonValue] = {
        "status": "loaded",
        "toolset": toolset,
        "write_tools": after[toolset],
        "new_tools": [card.name for card in cards if card.name in new],
    }
    return LoadResult(after, result, done=True)


def initial_toolsets(value: JsonValue, cards: Sequence[Card], initial: LoadedToolsets) -> dict[str, bool]:
    """Returns what is loaded when a turn starts: the agent's initial toolsets and those stored by its conversation
    (`value`).

    Every user who can write the conversation's working memory may have written the value, so unknown names are ignored.
    """
    names = known_toolsets(cards)
    stored = value if isinstance(value, dict) else {}
    toolsets: dict[str, bool] = {}
    for name in names:
        if name in initial or isinstance(stored.get(name), bool):
            toolsets[name] = initial.get(name, False) or stored.get(name) is True
    return toolsets


def _refuse_load(loaded: LoadedToolsets, why: str) -> LoadResult:
    return LoadResult(dict(loaded), {"status": "error", "message": why}, done=False)


def loaded_skills(agent: AgentDefinition, injected: Iterable[str]) -> tuple[Skill, ...]:
    """Returns the root skill and the injected ones with all their dependencies, in the agent's order. They determine
    the tools that the agent's model is offered."""
    loaded = _reachable_skills(
        {skill.id: skill.dependencies for skill in agent.skills}, agent.root_skill or "", injected
    )
    return tuple(skill for skill in agent.skills if skill.id in loaded)


def loaded_ids(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """Returns the ids of a plan's loaded skills, as `loaded_skills` does for an agent."""
    dependencies = dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}
    loaded = _reachable_skills(dependencies, plan.root_skill, injected)
    return tuple(skill_id for skill_id in plan.skill_ids if skill_id in loaded)


def offered_tools(plan: TurnPlan, injected: Iterable[str]) -> tuple[str, ...]:
    """Returns the tools of a model call, in the plan's order: all except the blocks of skills that are not loaded."""
    loaded = loaded_ids(plan, injected)
    blocks = {name for skill in plan.skills for name in skill.tools}
    visible = {name for skill in plan.skills if skill.id in loaded for name in skill.tools}
    return tuple(card.name for card in plan.cards if card.name not in blocks or card.name in visible)


def with_dependencies(plan: TurnPlan, selected: Iterable[str]) -> tuple[str, ...]:
    """Returns the selected skills and all their dependencies, a dependency before its dependents."""
    return ordered_skills(
        dict.fromkeys(plan.skill_ids, ()) | {skill.id: skill.dependencies for skill in plan.skills}, selected
    )


def ordered_skills(dependencies: Mapping[str, Sequence[str]], selected: Iterable[str]) -> tuple[str, ...]:
    """Returns the selected skills and all their dependencies, a dependency before its dependents. Ids that
    `dependencies` does not have are ignored."""
    ordered: dict[str, None] = {}
    visited: set[str] = set()

    def add_skill(skill_id: str) -> None:
        if skill_id not in dependencies or skill_id in visited:
            return
        visited.add(skill_id)
        for each in dependencies[skill_id]:
            add_skill(each)
        ordered[skill_id] = None

    for skill_id in selected:
        add_skill(skill_id)
    return tuple(ordered)


def _reachable_skills(dependencies: Mapping[str, Sequence[str]], root: str, injected: Iterable[str]) -> set[str]:
    """Returns these skills and all their dependencies; ids that the agent does not have are ignored."""
    reached: set[str] = set()
    pending = [root, *injected]
    while pending:
        skill_id = pending.pop()
        if skill_id in dependencies and skill_id not in reached:
            reached.add(skill_id)
            pending += dependencies[skill_id]
    return reached
