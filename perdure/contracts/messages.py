"""Messages as a workflow carries them: references. Content stays in Postgres."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, JsonValue

from perdure.contracts.skills import is_empty
from perdure.contracts.values import Tolerant

PREVIEW_CHARACTERS = 400
"""Maximum length of a reference's text in characters, so that a turn's history stays small."""


class Role(StrEnum):
    """The roles of the OpenAI message form."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CallRef(Tolerant):
    """A tool call that a model requested. Its arguments are in Postgres under (turn, call id)."""

    call_id: str
    tool: str
    digest: str
    """Digest of the canonical arguments."""
    settled: bool = False
    """True if the call cannot run (unknown tool, unreadable arguments). Its error is already in the ledger."""
    answer_id: str = Field(default="", exclude_if=lambda value: not value)
    """The id of a settled call's tool message. Left out if there is none, because calls are part of the state."""
    args: dict[str, JsonValue] = Field(default={}, exclude_if=is_empty)
    """Arguments of a call that the graph itself handles (`load_toolset`), which are small and already validated."""


class MessageRef(Tolerant):
    """A message of this turn, by id. A note that a node wrote has no id. It carries its whole text, or
    refers to records."""

    id: str = ""
    role: Role
    text: str = ""
    """The start of the text, at most PREVIEW_CHARACTERS characters; the whole text if `id` is empty."""
    tokens: int = 0
    calls: tuple[CallRef, ...] = ()
    call_id: str = ""
    """The call that a tool message answers."""
    quotes: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The requests whose reviewers' comments are cut in a note's text, in order. The model gets them in full."""
    rounds: tuple[tuple[int, int], ...] = Field(default=(), exclude_if=is_empty)
    """Ranges of steps, each with its first and its last step. The reference then stands for every settled round of
    these steps, the calls and their answers, and has no id (perdure/core/calls/rounds.py)."""
    refused: tuple[tuple[int, int], ...] = Field(default=(), exclude_if=is_empty)
    """Ranges of steps, as in `rounds`. The note then stands for the decisions about the calls of these steps, of which
    none has run. Its text is made from the decisions' records."""
    skill_id: str = ""
    """Id of the skill whose text a system message represents."""
    entities: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """`attribute=value` of each entity that this skill receives."""
    carried: bool = Field(default=False, exclude_if=is_empty)
    """True if an earlier turn of the conversation loaded the skill, so that this turn began with it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Messages of the user that a model call receives in addition to those from the graph."""

    refs: tuple[MessageRef, ...]
    """The messages, in the order in which they were sent."""
    fresh: tuple[str, ...]
    """Ids of the messages that no attempt has received yet."""


NO_JOINED_MESSAGES = Joined((), ())


WINDOW_TOKENS = 32_000
"""Default of the maximum tokens of earlier turns that a model call receives."""


class WindowPolicy(Tolerant):
    """Limits on the history that a model call receives. Applies to a copy, never to what is stored."""

    max_messages: int | None = None
    max_tokens: int | None = None
    keep_first_user: bool = True


Patch = dict[str, JsonValue]
"""A partial update of a graph's state."""
