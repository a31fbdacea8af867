"""The parts of a turn that stay in its conversation: rounds of calls, segments for views, a title, a summary."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from perdure.contracts.calls import CallState
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
from perdure.core.approvals.refusals import ReviewRefusal
from perdure.core.approvals.validity import DENIED_STATUSES
from perdure.core.text import clean, is_blank

MAY_HAVE_ACTED = frozenset({CallState.DONE, CallState.FAILED, CallState.RESERVED, CallState.OUTCOME_UNKNOWN})
"""States of a call that has reached its tool or may have."""
STATE_AFTER_EVENT: Final[Mapping[str, str]] = {
    TOOL_AWAITING_APPROVAL: "awaiting_approval",
    TOOL_APPROVED: "approved",
    TOOL_EXECUTING: "executing",
    TOOL_RESULT: "completed",
    TOOL_ERROR: "error",
    TOOL_DENIED: "denied",
}
"""The state of a tool segment after each event."""
FINAL_STATES: Final = frozenset({"completed", "denied"})
QUESTION_EVENTS: Final = (CLARIFICATION_REQUESTED, CLIENT_RUN_REQUESTED)
"""Events with questions to the turn's user."""
SEGMENT_EVENTS: Final = (
    THINKING_COMPLETE,
    GENERATION_COMPLETE,
    MESSAGE_JOINED,
    TOOLS_PENDING,
    *QUESTION_EVENTS,
    *STATE_AFTER_EVENT,
)
"""The events that segments are built from."""
TITLE_CHARACTERS = 60
TITLE_WORDS = 6
READ_CHARACTERS = 400
"""Characters of a message that are read for a title."""
ASKED_CHARACTERS = 400
ANSWERED_CHARACTERS = 600
"""Together about what an embedding model reads (256 word pieces). The start of a text shows its subject."""


@dataclass(frozen=True, slots=True)
class CallRound:
    """An assistant message with calls, and the tool messages with their results."""

    message_id: str
    calls: tuple[str, ...]
    answers: Mapping[str, str]
    """Call id to the id of its tool message."""
    has_text: bool = False
    is_open: bool = False
    """Only results of its calls have followed."""


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A kept round: its messages, and the calls that need a generated result."""

    message_ids: tuple[str, ...]
    unanswered: tuple[str, ...]


def text_only_messages(rounds: Sequence[CallRound], kept_rounds: Sequence[KeptRound]) -> tuple[str, ...]:
    """Returns the messages with text of the rounds that are not kept; they are kept without their calls."""
    kept_ids = {each.message_ids[0] for each in kept_rounds}
    return tuple(each.message_id for each in rounds if each.has_text and each.message_id not in kept_ids)


def keep_rounds(
    rounds: Sequence[CallRound], states: Mapping[str, CallState], refused: Collection[str] = ()
) -> tuple[KeptRound, ...]:
    """Returns the rounds that are kept with their calls, in order.

    They are messages of an interrupted turn that stay in its conversation. A round whose calls had an effect must be
    kept, or the next turn repeats it. The round that was open at the interruption is kept too, because the user has
    seen it: the calls, and that they did not run. So is a round with a call that reviewers refused (`refused` has the
    ids of such calls), so that later turns know the refusal. Of any other earlier round only the model's text is kept.
    Every kept call gets a result, since providers reject calls without one.
    """
    return tuple(
        KeptRound(
            (each.message_id, *(each.answers[call] for call in each.calls if call in each.answers)),
            tuple(call for call in each.calls if call not in each.answers),
        )
        for each in rounds
        if each.is_open
        or all(call in each.answers for call in each.calls)
        or any(states.get(call) in MAY_HAVE_ACTED or call in refused for call in each.calls)
    )


def status_without_result(
    state: CallState | None, refused: str | None = None, *, beside_refused: bool = False
) -> tuple[str, str]:
    """Returns (status, sentence) for a call without a result. `refused` is the reason if the call was denied.
    `beside_refused` states that another call of its round was denied."""
    if state in (CallState.RESERVED, CallState.OUTCOME_UNKNOWN):
        return "not_known", "the turn ended while this call was running; its outcome is unknown"
    if refused is not None:
        return "denied", refused
    if beside_refused:
        return "not_run", "another call of the same round was refused, and this call did not run"
    return "not_run", "the turn ended before this call ran"


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """An event that segments are built from."""

    kind: str
    call_id: str | None
    data: Mapping[str, JsonValue]


@dataclass(slots=True)
class Segment:
    """A part of the conversation view."""

    kind: str
    """`thinking`, `text`, `tool`, `message` (a steered message of the user) or `question` (to the user)."""
    call_id: str
    """The id of the model call that produced or received it, of the tool call, or of the question."""
    state: str = "completed"
    tool: str = ""
    message_id: str = ""
    """The message with the text or the tool's result."""
    facts: dict[str, JsonValue] = field(default_factory=dict)


def segments_of(events: Iterable[SegmentEvent]) -> list[Segment]:
    """Returns the segments in the order in which they started; the calls of one answer are in its order.

    They contain thinking, texts and tool calls, the user's steered messages at the model call that first received them,
    and questions to the user. A tool segment goes from pending through awaiting_approval, approved and executing to
    completed, error or denied. Events are facts in order, so that a segment has the state of its last event. A late
    event does not reopen a segment that has ended.
    """
    segments: list[Segment] = []
    tool_segments: dict[str, Segment] = {}
    for event in events:
        call_id, data = event.call_id or "", event.data
        if event.kind == THINKING_COMPLETE:
            known = {name: data[name] for name in ("duration", "characters", "text") if name in data}
            segments.append(Segment("thinking", call_id, facts=known))
        elif event.kind == GENERATION_COMPLETE:
            _add_text(segments, call_id, data)
        elif event.kind == MESSAGE_JOINED:
            message_ids = data.get("message_ids")
            if data.get("heard") and isinstance(message_ids, list):
                segments += [Segment("message", call_id, message_id=str(each)) for each in message_ids]
        elif event.kind in QUESTION_EVENTS:
            segments.append(Segment("question", str(data.get("request_id")), "pending"))
        elif event.kind == TOOLS_PENDING:
            calls = data.get("calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    _tool_segment(segments, tool_segments, str(call.get("call_id")), str(call.get("tool")))
        elif event.kind in STATE_AFTER_EVENT:
            segment = _tool_segment(segments, tool_segments, call_id, str(data.get("tool", "")))
            if segment.state not in FINAL_STATES:
                segment.state = STATE_AFTER_EVENT[event.kind]
            segment.message_id = str(data.get("message_id") or segment.message_id)
            segment.facts |= {name: data[name] for name in ("approval_id", "failure", "known") if name in data}
    _sort_rounds(segments)
    return segments


def _sort_rounds(segments: list[Segment]) -> None:
    """Puts the adjacent calls of one answer into their order there. A call that is settled when it is planned has its
    event before those that run."""
    start = 0
    for is_tool, group in groupby(segments[:], lambda each: each.kind == "tool" and each.call_id.partition(".")[0]):
        calls = list(group)
        if is_tool:
            segments[start : start + len(calls)] = sorted(calls, key=lambda each: (len(each.call_id), each.call_id))
        start += len(calls)


def _add_text(segments: list[Segment], call_id: str, data: Mapping[str, JsonValue]) -> None:
    """Adds the text of a call. A continuation's text is part of the segment that it continues."""
    message_id, state = str(data.get("message_id") or ""), "partial" if data.get("partial") else "completed"
    parts = [each for each in segments if each.kind == "text" and each.message_id == message_id] if message_id else []
    if data.get("start") and parts:
        before = parts[0].facts.get("continued_by")
        parts[0].facts["continued_by"] = [*(before if isinstance(before, list) else []), call_id]
        parts[0].state = state
    elif data.get("characters"):
        segments.append(Segment("text", call_id, state, message_id=message_id))


def _tool_segment(segments: list[Segment], tool_segments: dict[str, Segment], call_id: str, tool: str) -> Segment:
    if call_id not in tool_segments:
        tool_segments[call_id] = Segment("tool", call_id, "pending", tool)
        segments.append(tool_segments[call_id])
    return tool_segments[call_id]


def title_of(message: str) -> str:
    """Returns the first words in one line, at most 60 characters; empty if they would look empty."""
    words = clean(message[:READ_CHARACTERS]).split()
    title = " ".join(words[:TITLE_WORDS])
    if len(title) > TITLE_CHARACTERS:
        title = title[: TITLE_CHARACTERS - 1].rstrip() + "…"
    return "" if is_blank(title) else title


def summary_of(question: str, answered: str, refusals: Sequence[ReviewRefusal] = ()) -> str | None:
    """Returns the summary of a completed turn: the message and the answer, each cut at a word boundary. It is built for
    episodic memory from the turn's own texts without a model, always with the same result.

    It names the refused calls, without the reviewers' reasons. There is no summary (None) if a result of the turn was
    refused, because the answer may repeat it.
    """
    if any(each.is_checkpoint and each.status in DENIED_STATUSES for each in refusals):
        return None
    lines = [f"Asked: {_shortened_line(question, ASKED_CHARACTERS)}"]
    if refusals := [each for each in refusals if not each.is_checkpoint]:
        named = dict.fromkeys(f"{each.tool} ({each.status})" for each in refusals)
        lines.append(f"Not approved and not run: {_shortened_line(', '.join(named), ASKED_CHARACTERS)}")
    if answered.strip():
        lines.append(f"Answered: {_shortened_line(answered, ANSWERED_CHARACTERS)}")
    return "\n".join(lines)


def _shortened_line(text: str, limit: int) -> str:
    """Returns the start of a text in one line."""
    line = " ".join(clean(text).split())
    if len(line) <= limit:
        return line
    head, _, _ = line[:limit].rpartition(" ")
    return f"{head or line[:limit]} …"
