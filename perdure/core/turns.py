"""Whether a new message starts a turn, waits, joins or replaces the one under way, or is refused (O-15, O-16).

A conversation has one active turn. Nothing admitted is lost: what joins a turn and is not heard by it becomes a queued
turn when that one ends (perdure/store/turns/steer.py), and a turn that is replaced ends on record.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.calls import CallState
from perdure.contracts.errors import CallerError
from perdure.contracts.events import (
    CLARIFICATION_REQUESTED,
    CLIENT_RUN_REQUESTED,
    GENERATION_COMPLETE,
    MESSAGE_JOINED,
    THINKING_COMPLETE,
    TOOL_APPROVED,
    TOOL_AWAITING_APPROVAL,
    TOOL_DENIED,
    TOOL_ERROR,
    TOOL_EXECUTING,
    TOOL_RESULT,
    TOOLS_PENDING,
)
from perdure.contracts.ids import trace_id
from perdure.core.budgets import Quotas, Used, exceeded
from perdure.core.text import clean, is_blank

_SOON_SECONDS, _LATER_SECONDS = 5, 60


class OnBusy(StrEnum):
    """What a caller wants where the conversation has an open turn."""

    REJECT = "reject"
    QUEUE = "queue"
    STEER = "steer"
    """The message joins the open turn at its next model call."""
    REPLACE = "replace"
    """The open turn is stopped, then this one is the next."""


class Admission(StrEnum):
    """What becomes of a new message."""

    START = "start"
    QUEUE = "queue"
    JOIN = "join"
    REPLACE = "replace"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    TOO_MANY = "too_many"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Load:
    """What is open now."""

    busy: bool
    """The conversation has an active turn."""
    queued: int
    """Turns that wait in this conversation, and messages that have joined its active turn and were not heard yet."""
    open_of_user: int
    """Live turns of this user in all conversations."""
    waiting_of_user: int = 0
    """Those of them that wait for a person."""
    stopping: bool = False
    """The active turn was asked to stop: it will hear nothing more."""
    gives_way: int = 0
    """Those of the user's live turns that end for one which replaces."""
    used: Used = field(default_factory=Used)
    """The bytes that are kept already."""
    message_bytes: int = 0
    """Those that the message adds."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The deployment's caps."""

    queue_depth: int = 20
    turns_a_user: int = 50
    quotas: Quotas = field(default_factory=Quotas)


def admit(load: Load, caps: Caps, on_busy: OnBusy) -> Admission:
    """The one answer for a new message.

    One that joins opens no turn: where it is left over, its turn takes the place of the one that has ended. One that
    replaces takes the place of the turn under way, so the queue is as long as before.
    """
    if exceeded(load.used, caps.quotas, load.message_bytes) is not None:
        return Admission.QUOTA
    has_room = load.queued < caps.queue_depth
    if on_busy is OnBusy.STEER and load.busy and not load.stopping:
        return Admission.JOIN if has_room else Admission.QUEUE_FULL
    replaces = load.busy and on_busy is OnBusy.REPLACE
    if load.open_of_user - (load.gives_way if replaces else 0) >= caps.turns_a_user:
        return Admission.TOO_MANY
    if not load.busy:
        return Admission.START
    if on_busy is OnBusy.REJECT:
        return Admission.BUSY
    if replaces:
        return Admission.REPLACE
    return Admission.QUEUE if has_room else Admission.QUEUE_FULL


def too_many(load: Load, caps: Caps) -> CallerError:
    """What the user is told who has as many open turns as one may: 429 `too_many_turns`."""
    said = (
        f"you have {load.open_of_user} open turns, and the limit is {caps.turns_a_user} a user "
        f"(PERDURE_LIVE_TURNS_PER_USER); turns that wait for approval count too, and {load.waiting_of_user} of yours do"
    )
    only_waiting = load.waiting_of_user >= load.open_of_user
    do = "have some decided on, or withdraw or stop them" if only_waiting else "wait for one to end"
    details: dict[str, object] = {
        "open": load.open_of_user,
        "limit": caps.turns_a_user,
        "variable": "PERDURE_LIVE_TURNS_PER_USER",
        "waiting": load.waiting_of_user,
        # No turn that waits for a person ends within seconds.
        "retry_after_seconds": _LATER_SECONDS if only_waiting else _SOON_SECONDS,
    }
    return CallerError("too_many_turns", f"{said}: {do}", details, status=429)


# --- What a request's metadata may say of its input: a turn that could only end as failed is refused at the door.

INPUT_TYPES: Final = ("text", "audio", "image")
"""Of `decision_hub` (S3-15), which stands in for the last two."""
_TAKEN: Final[Mapping[str, tuple[str, ...]]] = {"decision_hub": INPUT_TYPES, "context_assembly": INPUT_TYPES[:1]}
"""By topology. To others `input_type` is a caller's own word."""


def unfit(topology: str, metadata: Mapping[str, JsonValue]) -> CallerError | None:
    """Why a turn of the topology cannot begin with these: 422 `bad_input_type`, or `bad_trace_id` where the id could
    not be kept as it was given (S3-14)."""
    taken = _TAKEN.get(topology)
    if taken is None:
        return None
    if "input_type" in metadata and metadata["input_type"] not in taken:
        why = (
            f"metadata.input_type must be one of {', '.join(taken)}" if len(taken) > 1 else "only text can be read here"
        )
        return CallerError("bad_input_type", why, {"input_types": [*taken]})
    given = metadata.get("trace_id")
    if topology == "decision_hub" and given is not None and trace_id(given, "") != given:
        return CallerError("bad_trace_id", "metadata.trace_id must be 1 to 128 letters, digits and signs of _.:-")
    return None


# --- What of a turn that broke off stays in its conversation.
# A round whose calls did something must be remembered, or the next turn does it again. The round that was open as the
# turn broke off stays too, as its reader has seen it: what was asked for, and that it was not run. Of an earlier round
# that did nothing only what the model said with it stays: it was answered in words, and an answer made now would come
# behind them. No call is left without an answer, since providers refuse that.

DID_SOMETHING = frozenset({CallState.DONE, CallState.FAILED, CallState.RESERVED, CallState.OUTCOME_UNKNOWN})
"""States of a call that has, or may have, reached its tool."""


@dataclass(frozen=True, slots=True)
class Round:
    """An assistant message that made calls, and the tool messages that answer them."""

    message_id: str
    calls: tuple[str, ...]
    answers: Mapping[str, str]
    """Call id to the id of its tool message."""
    has_text: bool = False
    is_open: bool = False
    """Nothing has been said since but its calls' answers."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A round that stays: its messages, and the calls that need an answer made for them."""

    message_ids: tuple[str, ...]
    unanswered: tuple[str, ...]


def words_only(rounds: Sequence[Round], kept: Sequence[Kept]) -> tuple[str, ...]:
    """The messages of the rounds that do not stay but said something: they stay without their calls."""
    whole = {each.message_ids[0] for each in kept}
    return tuple(each.message_id for each in rounds if each.has_text and each.message_id not in whole)


def keep_rounds(rounds: Sequence[Round], states: Mapping[str, CallState]) -> tuple[Kept, ...]:
    """The rounds that stay with their calls, in order."""
    return tuple(
        Kept(
            (each.message_id, *(each.answers[call] for call in each.calls if call in each.answers)),
            tuple(call for call in each.calls if call not in each.answers),
        )
        for each in rounds
        if each.is_open
        or all(call in each.answers for call in each.calls)
        or any(states.get(call) in DID_SOMETHING for call in each.calls)
    )


def told_of(state: CallState | None, refused: str | None = None) -> tuple[str, str]:
    """(status, sentence) that a conversation is told of a call that has no result; `refused` says who did not allow it,
    where that is so."""
    if state in (CallState.RESERVED, CallState.OUTCOME_UNKNOWN):
        return "not_known", "the turn ended while this call was under way; whether it happened is not known"
    if refused is not None:
        return "denied", refused
    return "not_run", "the turn ended before this call ran"


# --- A turn's story in segments, folded from its events: what was thought, said and done, in order (S2-64), with what
# its user said into it where a model call first heard it, and what it asked of its user. A tool's segment goes pending,
# awaiting_approval, approved, executing, then completed, error or denied. Events are facts in their order, so a segment
# says what the last of them says; one that has ended does not begin again by a late one.

STATES: Final[Mapping[str, str]] = {
    TOOL_AWAITING_APPROVAL: "awaiting_approval",
    TOOL_APPROVED: "approved",
    TOOL_EXECUTING: "executing",
    TOOL_RESULT: "completed",
    TOOL_ERROR: "error",
    TOOL_DENIED: "denied",
}
"""What a tool's event makes of its segment."""
ENDED: Final = frozenset({"completed", "denied"})
ASKED: Final = (CLARIFICATION_REQUESTED, CLIENT_RUN_REQUESTED)
"""What a turn asks of its own user."""
KINDS: Final = (THINKING_COMPLETE, GENERATION_COMPLETE, MESSAGE_JOINED, TOOLS_PENDING, *ASKED, *STATES)
"""The events that a story is made of."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the turn."""

    kind: str
    call_id: str | None
    data: Mapping[str, JsonValue]


@dataclass(slots=True)
class Segment:
    """A part of the story."""

    kind: str
    """`thinking`, `text`, `tool`, `message` (what the user said into the turn), or `question` (what it asked of the
    user)."""
    call_id: str
    """The model call that thought, said or heard it, the tool call, or the question's id."""
    state: str = "completed"
    tool: str = ""
    message_id: str = ""
    """Where the text is, or the tool's result."""
    facts: dict[str, JsonValue] = field(default_factory=dict)


def segments_of(events: Iterable[Told]) -> list[Segment]:
    """The segments, in the order in which they began."""
    story: list[Segment] = []
    tools: dict[str, Segment] = {}
    for event in events:
        call_id, data = event.call_id or "", event.data
        if event.kind == THINKING_COMPLETE:
            known = {name: data[name] for name in ("duration", "characters", "text") if name in data}
            story.append(Segment("thinking", call_id, facts=known))
        elif event.kind == GENERATION_COMPLETE:
            if data.get("characters"):
                state = "partial" if data.get("partial") else "completed"
                story.append(Segment("text", call_id, state, message_id=str(data.get("message_id") or "")))
        elif event.kind == MESSAGE_JOINED:
            heard = data.get("message_ids")
            if data.get("heard") and isinstance(heard, list):
                story += [Segment("message", call_id, message_id=str(each)) for each in heard]
        elif event.kind in ASKED:
            story.append(Segment("question", str(data.get("request_id")), "pending"))
        elif event.kind == TOOLS_PENDING:
            calls = data.get("calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    _tool(story, tools, str(call.get("call_id")), str(call.get("tool")))
        elif event.kind in STATES:
            segment = _tool(story, tools, call_id, str(data.get("tool", "")))
            if segment.state not in ENDED:
                segment.state = STATES[event.kind]
            segment.message_id = str(data.get("message_id") or segment.message_id)
            if "approval_id" in data:
                segment.facts["approval_id"] = data["approval_id"]
    return story


def _tool(story: list[Segment], tools: dict[str, Segment], call_id: str, tool: str) -> Segment:
    if call_id not in tools:
        tools[call_id] = Segment("tool", call_id, "pending", tool)
        story.append(tools[call_id])
    return tools[call_id]


# --- What a conversation is called that its user has given no title (S2-65): the first words of its first message.

TITLE_CHARACTERS = 60
TITLE_WORDS = 6
READ_CHARACTERS = 400
"""So much of a message is enough to name it by."""


def title_of(message: str) -> str:
    """Its first words in one line, 60 characters at most; empty where a reader would see nothing of them."""
    words = clean(message[:READ_CHARACTERS]).split()
    title = " ".join(words[:TITLE_WORDS])
    if len(title) > TITLE_CHARACTERS:
        title = title[: TITLE_CHARACTERS - 1].rstrip() + "…"
    return "" if is_blank(title) else title


# --- What is kept of a turn for later: a summary of its own texts, made without a model, the same every time.

ASKED_CHARACTERS = 400
ANSWERED_CHARACTERS = 600
"""Together about what an embedding model reads (256 word pieces); the start of a text says what it is about."""


def summary_of(asked: str, answered: str) -> str:
    """The summary of a completed turn: what was asked and what was answered, each cut at a word."""
    lines = [f"Asked: {_start(asked, ASKED_CHARACTERS)}"]
    if answered.strip():
        lines.append(f"Answered: {_start(answered, ANSWERED_CHARACTERS)}")
    return "\n".join(lines)


def _start(text: str, most: int) -> str:
    """The beginning of a text in one line."""
    line = " ".join(clean(text).split())
    if len(line) <= most:
        return line
    head, _, _ = line[:most].rpartition(" ")
    return f"{head or line[:most]} …"
