"""What the API answers about conversations and turns."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from contracts.turns import ENDED
from perdure.client.answers import Answer, Page
from perdure.client.file_calls import File

_ENDED = frozenset(status.value for status in ENDED)
_AWAITING = "awaiting_"


class Conversation(Answer):
    """A conversation with one agent."""

    id: str
    agent: str
    title: str = ""
    metadata: Mapping[str, Any] = {}
    updated_at: datetime | None = None


class Message(Answer):
    """A message of the transcript."""

    id: str
    role: str
    content: str = ""
    turn_id: str | None = None
    turn_status: str = ""
    heard: bool = True
    """False where its turn ended before it began: no model was told of it."""


class Failure(Answer):
    """Why a turn did not complete."""

    code: str
    message: str


class Waiting(Answer):
    """What a turn waits for."""

    kind: str
    ids: list[str] = []
    since: datetime | None = None
    expires_at: datetime | None = None


class TurnUsage(Answer):
    """What a turn used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens_used: int = 0
    cost_usd: float = 0.0


class Turn(Answer):
    """A turn; just started, it has its ids, status and `events` only."""

    turn_id: str
    conversation_id: str
    status: str
    agent: str = ""
    topology: str = ""
    answer: str | None = None
    output: Mapping[str, Any] | None = None
    """What the turn hands out beside its answer."""
    error: Failure | None = None
    usage: TurnUsage = TurnUsage()
    waiting_for: Waiting | None = None
    ttft_seconds: float | None = None
    """From the start of the turn to the first token that its reader sees."""
    ttr_seconds: float | None = None
    """From the start of the turn to its end."""
    nodes: list[str] = []
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stop_requested_at: datetime | None = None
    events: str | None = None
    links: Mapping[str, str] = {}
    message_id: str | None = None
    joined: bool = False
    """Of an answer to a message with `on_busy="steer"`: the turn was under way, and hears it at its next model call, or
    leaves it to a turn of its own (`done` names it)."""
    replaces: str | None = None
    """Of an answer to one with `on_busy="replace"`: the turn that ends for this one."""
    replaced_by: str | None = None
    left_over: str | None = None
    """The turn that goes on with messages which joined this one and were not heard by its end."""

    @property
    def has_ended(self) -> bool:
        """No status follows this one."""
        return self.status in _ENDED

    @property
    def is_paused(self) -> bool:
        """It waits for a person."""
        return self.status.startswith(_AWAITING)


class Question(Answer):
    """What a turn asks of its own user."""

    id: str
    turn_id: str
    kind: str
    asked: Mapping[str, Any] = {}
    answer_schema: Mapping[str, Any] = {}
    status: str
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    answered_at: datetime | None = None


class Segment(Answer):
    """A part of a turn's story: what it thought, said or did, or heard of its user while it ran."""

    kind: str
    """`thinking`, `text`, `tool`, `message` or `question`."""
    call_id: str = ""
    state: str = ""
    text: str = ""
    """Of a `text` or a `message`, or as much of a `thinking` as is kept; the rest is of a `tool`."""
    tool: str = ""
    arguments: Any = None
    result: Any = None
    approval_id: str | None = None
    asks_for: str = ""
    """Of a `question`: `clarification` or `client_run`, what was asked, and the answer once it is there."""
    asked: Mapping[str, Any] = {}
    answer: Mapping[str, Any] | None = None


class ModelUse(Answer):
    """What one model call took and used."""

    call_id: str
    label: str = ""
    number: int = 1
    """Among those of its label."""
    model: str = ""
    attempts: int = 0
    seconds: float | None = None
    """None while it runs."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    refused: str | None = None
    """Why its answer did not count."""


class TurnCall(Answer):
    """One call of a turn."""

    call_id: str
    kind: str
    """`model`, `tool`, or `context`: a tool that puts the context together."""
    name: str = ""
    """The model's or the tool's."""
    label: str = ""
    """What the model was asked for, where it was for one thing."""
    effect: str | None = None
    state: str = ""
    code: str | None = None
    """Why it failed, or its answer did not count."""
    attempts: int = 0
    errors: int = 0
    planned_at: datetime | None = None
    started_at: datetime | None = None
    """None of a call that was not begun, or was answered as it was planned."""
    settled_at: datetime | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    approval_id: str | None = None


class Metrics(Answer):
    """A turn's model calls, one by one."""

    calls: list[ModelUse] = []


class Said(Answer):
    """What a turn's user said, by which it was asked for or which waits to be heard."""

    id: str
    content: str = ""
    waits: bool = False
    """It was sent into the turn, and no model call has heard it yet."""


class ToldTurn(Turn):
    """A turn with all that a reader of its conversation is shown."""

    said: list[Said] = []
    segments: list[Segment] = []
    files: list[File] = []
    """What it made."""


class Story(Page[ToldTurn]):
    """A conversation's turns, newest first, as they are at one moment."""

    seq: int = 0
    """The number of the last event by then: whoever follows the stream after it misses nothing."""
    own: bool = False
    """Whether it is the caller's conversation."""
