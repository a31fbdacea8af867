"""Toolsets: which tools a model is offered, and what loading another one answers (S2-19, S2-32, S2-33).

A server's tools come in toolsets, so that the schemas of a whole cluster do not ride in every request (S2-75). What is
loaded is a value, `{toolset: whether with the tools that write}`, that only grows: access is never taken back. It
widens what a model sees and nothing else; whether a call runs is for the gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import JsonValue

from contracts.agents import EffectClass, ToolCard
from contracts.digests import digest_of

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
