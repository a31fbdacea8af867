"""What a pause keeps for its reviewer and for a turn that is started again over its records (S0-67, S0-27)."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from contracts.messages import MessageRef
from graph.spec import State

RESTORED: Final = (
    "messages",
    "llm_phase",
    "injected_skill_ids",
    "injected_entity_ids",
    "active_skills",
    "skill_injection_done",
    "iteration",
    "consecutive_failed_resolves",
    "recent_entity_context",
)
"""Fields of a whole snapshot that a cold resume takes its state from; the rest is in the records themselves."""


def snapshot(state: State, messages: Sequence[MessageRef], *, whole: bool = False) -> dict[str, JsonValue]:
    """Usage, skills and entities; whole, also all that a cold resume needs. Messages by id: their texts stay in
    Postgres. A gate in a turn that has loaded no skill finds everything in the ledger, so nothing more is kept."""
    kept: dict[str, JsonValue] = {
        "tokens_used": state["tokens_used"],
        "cost_microusd": state["cost_microusd"],
        "injected_skill_ids": state.get("injected_skill_ids", []),
        "recent_entity_context": state["recent_entity_context"],
    }
    if whole or kept["injected_skill_ids"] or state["consecutive_failed_resolves"]:
        kept |= {name: state[name] for name in RESTORED if name in state}
        kept["messages"] = [_by_id(message) for message in messages]
    return kept


def restored(kept: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The state that a snapshot holds; empty where it is not a whole one."""
    if "messages" not in kept:
        return {}
    return {name: kept[name] for name in RESTORED if name in kept}


def _by_id(message: MessageRef) -> JsonValue:
    shown = MessageRef(id=message.id, role=message.role) if message.id else message
    return shown.model_dump(mode="json", exclude_defaults=True)
