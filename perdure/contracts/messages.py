"""Messages as a workflow carries them: references. Bodies live in Postgres."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, JsonValue

from perdure.contracts.skills import is_empty
from perdure.contracts.values import Tolerant

PREVIEW_CHARACTERS = 400
"""A reference's text is cut here, so that a turn's history stays small."""


class Role(StrEnum):
    """The roles of the OpenAI message form."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CallRef(Tolerant):
    """A tool call that a model asked for. Its arguments are in Postgres under (turn, call id)."""

    call_id: str
    tool: str
    digest: str
    """Of the canonical arguments."""
    settled: bool = False
    """True for a call that cannot run (unknown tool, unreadable arguments): its error is already in the ledger."""
    answer_id: str = Field(default="", exclude_if=lambda value: not value)
    """Of a settled call: the id of the tool message that says so. Left out where there is none: calls ride in state."""
    args: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """Of a call that the graph itself takes up (`load_toolset`): its arguments, which are small and known to fit."""


class MessageRef(Tolerant):
    """A message of this turn, by id; a note of a node's own has no id and carries its whole text."""

    id: str = ""
    role: Role
    text: str = ""
    """The start of the text, at most PREVIEW_CHARACTERS; all of it where `id` is empty."""
    tokens: int = 0
    calls: tuple[CallRef, ...] = ()
    call_id: str = ""
    """For a tool message: the call that it answers."""
    quotes: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """For a note: the requests whose deciders' words its text has cut, in their order; the model gets them whole."""
    skill_id: str = ""
    """For a system message that stands for a skill of the agent: its text is the skill's."""
    entities: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """For such a message: `attribute=value` of each entity that the skill is told of."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a model call hears of its user beside what the graph hands it."""

    refs: tuple[MessageRef, ...]
    """In the order in which they were sent."""
    fresh: tuple[str, ...]
    """Ids of those that no attempt has taken yet."""


NOBODY = Joined((), ())


class WindowPolicy(Tolerant):
    """How much of the past a model call sees; applied to a copy, never to what is stored (O-1)."""

    max_messages: int | None = None
    max_tokens: int | None = None
    keep_first_user: bool = True


Patch = dict[str, JsonValue]
"""A partial update of a graph's state."""
