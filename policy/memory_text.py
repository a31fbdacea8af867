"""The memory that a turn injects: one system message after the base message, with labelled parts (S0-26).

It is made once a turn and stays as it is; the next turn makes its own, so nothing accumulates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

ENTITY_FIELDS = ("extracted_entities", "recent_entity_context")
"""Working-memory fields that are entities; every other one is scratchpad."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """An episode that comes near to what the user says now."""

    summary: str
    similarity: float
    by: str
    """`cosine`, or `full_text` where nothing embeds: then the number only orders."""


def memory_message(working: Mapping[str, JsonValue], episodes: Sequence[Recalled] = ()) -> str:
    """The memory text of a turn; empty where there is nothing to say."""
    scratchpad = [_field(name, value) for name, value in sorted(working.items()) if name not in ENTITY_FIELDS]
    entities = [_field(name, working[name]) for name in ENTITY_FIELDS if name in working]
    recalled = [f"- ({_nearness(each)}) {_indented(each.summary)}" for each in episodes]
    parts = (
        ("[Working Memory -- Scratchpad]", scratchpad),
        ("[Working Memory -- Extracted Entities]", entities),
        ("[Episodic Memory -- Relevant Past Conversations]", recalled),
    )
    said = [line for label, lines in parts if lines for line in (label, *lines)]
    return "\n".join(["=== Memory Context ===", *said]) if said else ""


def _field(name: str, value: JsonValue) -> str:
    return f"- {name}: {', '.join(str(each) for each in value) if isinstance(value, list) else str(value)}"


def _nearness(episode: Recalled) -> str:
    if episode.by == "cosine":
        return f"similarity {episode.similarity:.2f}"
    return f"{episode.by} rank {episode.similarity:.2f}"


def _indented(summary: str) -> str:
    return "\n  ".join(summary.splitlines())
