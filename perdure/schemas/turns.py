"""Responses about conversations, turns and files."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from perdure.contracts.turns import ENDED
from perdure.schemas.base import Answer, Page
from perdure.schemas.calls import KnownOfEffect

_ENDED = frozenset(status.value for status in ENDED)
_AWAITING = "awaiting_"


class File(Answer):
    """A file of a conversation: uploaded by its user or created by a turn."""

    id: str
    conversation_id: str
    turn_id: str | None = None
    name: str
    media_type: str
    size_bytes: int
    sha256: str = ""
    created_at: datetime | None = None


class Usage(Answer):
    """The storage that a scope uses, and its quota."""

    scope: str
    """`conversation`, `user` or `tenant`."""
    used_bytes: int
    limit_bytes: int | None = None
    """The quota in bytes, or None if there is no quota."""
    variable: str = ""
    """The environment variable with which the operator sets the quota."""


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
    finish_reason: str | None = None
    """The reason with which the model ended the message, as in a turn. None if no model wrote it, or if
    its end is unknown."""
    heard: bool = True
    """False if the message's turn ended before it began, so that no model received the message."""
    approval: str | None = None
    """Set if a reviewer has not approved the message: the result of a call, the call itself, or the answer. `rejected`,
    `responded`, `expired` or `withdrawn`; `pending` or `cancelled` if a checkpoint requires a review and has no
    decision."""
    approval_comment: str = ""
    """The reviewer's comment about it."""


class Failure(Answer):
    """The reason why a turn did not complete."""

    code: str
    message: str
    details: Mapping[str, Any] = {}
    """If a model's provider refused: `model`, and of its answer `status`, `vendor_code`, `param` and `sentence`
    without content. If a fallback model failed too: `first`, with these fields, `code` and `message` of the agent's own
    model."""
    retry_after_seconds: float | None = None
    """The wait that the provider named, from the end of the turn."""

    @property
    def provider_answers(self) -> list[str]:
        """A line for each model whose provider refused, the agent's own model first."""
        first = self.details.get("first")
        tried = [each for each in (first, self.details) if isinstance(each, Mapping)]
        return [line for line in map(_provider_line, tried) if line]


def _provider_line(details: Mapping[str, Any]) -> str:
    short = [str(details[name]) for name in ("status", "vendor_code", "param") if details.get(name)]
    parts = [" ".join(short), str(details.get("sentence", ""))]
    said = ": ".join(part for part in parts if part)
    return f"{details.get('model', 'the model')}: {said}" if said else ""


class Waiting(Answer):
    """The requests that a turn waits for, or the calls whose tool no worker has in their version."""

    kind: str
    """`worker` for such calls."""
    ids: list[str] = []
    since: datetime | None = None
    expires_at: datetime | None = None


class Stuck(Answer):
    """The workflow task of a turn that does not continue, because the task fails at every attempt."""

    failures: int
    """The failed attempts so far."""
    since: datetime
    message: str
    """The type of the failure and the first line of its message."""


class TurnUsage(Answer):
    """The tokens and the cost that a turn has used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens_used: int = 0
    cost_usd: float = 0.0


class Turn(Answer):
    """A turn. The response to a start has only its ids, its status and `events`."""

    turn_id: str
    conversation_id: str
    status: str
    agent: str = ""
    topology: str = ""
    answer: str | None = None
    finish_reason: str | None = None
    """The reason with which the model ended the answer: `stop`, `tool_calls`, `length`, `content_filter`, `refusal` or
    `pause_turn`. None while the turn runs, if no model wrote the answer, or if its end is unknown."""
    truncated: bool = False
    """True if the answer is cut: at the model's output limit, by the provider's filter, or because the turn failed or
    was stopped while the model wrote it."""
    output: Mapping[str, Any] | None = None
    """The structured output of the turn, in addition to its answer."""
    error: Failure | None = None
    usage: TurnUsage = TurnUsage()
    waiting_for: Waiting | None = None
    stuck: Stuck | None = None
    """Set if the open turn does not continue because of an error in its workflow. The relay ends it with the code
    `turn_stuck` after `PERDURE_STUCK_AFTER` seconds."""
    ttft_seconds: float | None = None
    """Seconds from the start of the turn to the first token that is shown to the user."""
    ttr_seconds: float | None = None
    """Seconds from the start of the turn to its end."""
    nodes: list[str] = []
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stop_requested_at: datetime | None = None
    events: str | None = None
    links: Mapping[str, str] = {}
    message_id: str | None = None
    joined: bool = False
    """True if the message, sent with `on_busy="steer"`, was added to the open turn. The turn's next model call receives
    it. If there is no further call, a new turn starts with it; `done` names that turn."""
    replaces: str | None = None
    """The turn that ends because this one was started with `on_busy="replace"`."""
    replaced_by: str | None = None
    left_over: str | None = None
    """The turn that starts with messages that were added to this one and that no model call received before its end."""

    @property
    def has_ended(self) -> bool:
        """Returns whether the turn has its final status."""
        return self.status in _ENDED

    @property
    def is_paused(self) -> bool:
        """Returns whether the turn waits for a person."""
        return self.status.startswith(_AWAITING)


class Question(Answer):
    """A request of a turn to its own user."""

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
    """A part of a turn in the conversation view: thinking, text, a tool call, a question, or a message that the user
    sent while it ran."""

    kind: str
    """`thinking`, `text`, `tool`, `message` or `question`."""
    call_id: str = ""
    state: str = ""
    text: str = ""
    """The text of a `text` or a `message`, or the stored part of a `thinking`. The fields from `tool` to `approval_id`
    are set for a `tool` only."""
    tool: str = ""
    arguments: Any = None
    result: Any = None
    approval_id: str | None = None
    approval: str | None = None
    """Set if a `tool` call, its result or a `text` is not approved; as in a message. `approval_comment` is the
    reviewer's comment."""
    approval_comment: str = ""
    failure: str | None = None
    """The error that a `tool` raised and its place: `KeyError: 'id' at tools/desk.py:41`."""
    known: KnownOfEffect | None = None
    """The end of a `tool` whose outcome is or was unknown, as far as it is known."""
    continued_by: list[str] = []
    """The model calls that continued a `text` that was cut; `text` has all parts."""
    asks_for: str = ""
    """The kind of a `question`: `clarification` or `client_run`. `asked` and `answer` are for a `question` only."""
    asked: Mapping[str, Any] = {}
    answer: Mapping[str, Any] | None = None


class ModelUse(Answer):
    """The tokens, the cost and the duration of one model call."""

    call_id: str
    label: str = ""
    number: int = 1
    """The position among calls with the same label."""
    model: str = ""
    attempts: int = 0
    seconds: float | None = None
    """The duration, or None while the call runs."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    refused: str | None = None
    """The reason why the model's answer was rejected."""


class TurnCall(Answer):
    """One call of a turn."""

    call_id: str
    kind: str
    """`model`, `tool`, or `context` for a tool that assembles the context."""
    name: str = ""
    """The name of the model or of the tool."""
    label: str = ""
    """The purpose of a model call, if it has a single one."""
    effect: str | None = None
    state: str = ""
    code: str | None = None
    """The reason why the call failed or its answer was rejected."""
    finish_reason: str | None = None
    """The reason with which the model ended its answer, for a model call that has settled."""
    attempts: int = 0
    errors: int = 0
    planned_at: datetime | None = None
    started_at: datetime | None = None
    """The start, or None if the call has not begun or was answered when it was planned."""
    settled_at: datetime | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    approval_id: str | None = None


class Metrics(Answer):
    """The metrics of each model call of a turn."""

    calls: list[ModelUse] = []


class TranscriptMessage(Answer):
    """A message of a turn's user that started the turn, or that waits for one of its model calls."""

    id: str
    content: str = ""
    waits: bool = False
    """True if the message was sent to the open turn and no model call has received it yet."""


class ConversationTurn(Turn):
    """A turn with everything that the conversation view shows."""

    said: list[TranscriptMessage] = []
    segments: list[Segment] = []
    files: list[File] = []
    """The files that the turn made."""


class ConversationView(Page[ConversationTurn]):
    """A snapshot of the turns of a conversation, newest first."""

    seq: int = 0
    """The number of the last event in the snapshot. A stream that is read after it misses no event."""
    own: bool = False
    """True if the conversation belongs to the caller."""
