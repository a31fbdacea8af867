"""A turn's story in segments, folded from its events: what was thought, said and done, in order (S2-64), with what its
user said into it where a model call first heard it, and what it asked of its user.

A tool's segment goes pending, awaiting_approval, approved, executing, then completed, error or denied. Events are facts
in their order, so a segment says what the last of them says; one that has ended does not begin again by a late one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from contracts.events import (
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
