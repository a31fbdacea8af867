"""A turn as a person watches it: its text as it streams, and a line for each thing that happens to it."""

from collections.abc import Callable, Mapping
from typing import Any

from cli.connection import command
from cli.live_text import LiveText
from perdure.client import Event
from policy.printable import one_line

_QUIET = frozenset(
    {
        "node_start",
        "node_end",
        "tools.pending",
        "generation.start",
        "ttft",
        "thinking.complete",
        "token.usage",
        "memory.context.loaded",
        "conversation.title.generated",
    }
)
"""Of interest only to who looks at the machinery."""
_SILENT = frozenset(
    {"token", "thinking", "reset", "heartbeat", "ready", "completed", "workflow_complete", "generation.complete"}
)


class TurnScreen:
    """Shows events in the order in which they come."""

    def __init__(self, live: LiveText, *, details: bool = False) -> None:
        self.live = live
        self._details = details
        self._speaks: tuple[str, str] = ("", "")
        """The call whose text stands last on the screen, and whether that is its answer or its reasoning."""

    def show(self, event: Event) -> None:
        """One event."""
        if event.kind == "token" or (event.kind == "thinking" and self._details):
            if (event.call_id, event.kind) != self._speaks:
                self.live.end()
                self._speaks = event.call_id, event.kind
            self.live.write(str(event.data.get("text", "")))
        elif event.kind == "reset":
            if event.call_id == self._speaks[0]:
                self.live.take_back()
        elif event.kind in _LINES:
            self.live.line(_LINES[event.kind](event.data))
        elif event.kind in _QUIET:
            if self._details:
                self.live.line(f"  · {event.kind} {_what(event.data)}".rstrip())
        elif event.kind == "generation.complete":
            self.live.end()
        elif event.kind not in _SILENT:
            self.live.line(f"  · {event.kind} {_what(event.data)}".rstrip())


def _awaiting(data: Mapping[str, Any]) -> str:
    return f"  ‖ {data.get('tool')} waits for an approval ({data.get('approval_id')})"


def _approved(data: Mapping[str, Any]) -> str:
    return f"  ✓ {data.get('tool')}: {data.get('decision')} by {data.get('by')}{_because(data)}"


def _denied(data: Mapping[str, Any]) -> str:
    what = one_line(str(data.get("decision") or data.get("reason") or "denied"))
    by = f" by {data['by']}" if data.get("by") else ""
    return f"  ✗ {data.get('tool')}: {what}{by}{_because(data)}"


def _executing(data: Mapping[str, Any]) -> str:
    attempt = data.get("attempt")
    again = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
    return f"  → {data.get('tool')} runs{again}"


def _result(data: Mapping[str, Any]) -> str:
    by = data.get("settled_by")
    return f"  ✓ {data.get('tool')} is done" + (f", says {by}{_because(data)}" if by else "")


def _error(data: Mapping[str, Any]) -> str:
    if data.get("code") == "outcome_unknown":
        key = str(data.get("effect"))
        settle = command("effects", "settle", key, "happened")
        return (
            f"  ? {data.get('tool')}: it may have happened, nobody knows. Look at the target, then say which it is:\n"
            f'      {settle} --comment "how you know"   (or did_not_happen)'
        )
    return f"  ✗ {data.get('tool')}: {data.get('message') or data.get('status') or 'failed'}{_because(data)}"


def _asks(data: Mapping[str, Any]) -> str:
    answer = command("turns", "answer", str(data.get("turn_id")))
    return f"  ? {one_line(str(data.get('question')))}\n    To answer, type: {answer} TEXT"


def _budget(data: Mapping[str, Any]) -> str:
    told = f"  ‖ {one_line(str(data.get('message') or data.get('code')))}"
    if data.get("code") != "limit_spent":
        return told
    raised = command("turns", "raise", str(data.get("turn_id")), "--tokens", "MORE")
    refused = command("approvals", "reject", str(data.get("approval_id")))
    return f"{told}\n    To let it go on, type: {raised}   (or --usd MORE; to end it: {refused})"


def _done(data: Mapping[str, Any]) -> str:
    seconds = float(data.get("duration_ms") or 0) / 1000
    cost = float(data.get("cost_usd") or 0)
    told = f"  {data.get('status')} · {data.get('tokens_used')} tokens · ${cost:.4f} · {seconds:.1f} s"
    if data.get("execution_id"):
        told += f" · {data['execution_id']}"
    left = data.get("left_over")
    return f"{told}\n  ~ what it did not hear goes on as {left}" if left else told


def _busy(data: Mapping[str, Any]) -> str:
    wait = data.get("retry_in")
    return f"  ~ the model is not available ({data.get('code')}); asked again{f' in {wait:g} s' if wait else ''}"


def _queued(_: Mapping[str, Any]) -> str:
    return "  ~ queued behind the open turn of this conversation"


def _joined(data: Mapping[str, Any]) -> str:
    return "  ~ the model hears it" if data.get("heard") else "  ~ joins the turn: its next model call hears it"


def _stopped(data: Mapping[str, Any]) -> str:
    by = data.get("replaced_by")
    return f"  ■ stopped: {by} takes its place" if by else "  ■ stopped"


def _failed(data: Mapping[str, Any]) -> str:
    return f"  ✗ {data.get('code')}: {data.get('message')}"


def _stage(data: Mapping[str, Any]) -> str:
    """A stage, with what of its tools ran, was skipped or failed."""
    told = [f"ran {', '.join(map(str, data['ran']))}"] if data.get("ran") else []
    for what, why in (("skipped", "why"), ("failed", "message")):
        each = [one for one in data.get(what) or () if isinstance(one, dict)]
        told += [f"{what} " + ", ".join(f"{one.get('tool')} ({one.get(why)})" for one in each)] if each else []
    return f"  · stage {_what(data)}" + (f": {one_line('; '.join(told), 400)}" if told else "")


def _because(data: Mapping[str, Any]) -> str:
    return f": {one_line(str(data['comment']))}" if data.get("comment") else ""


def _what(data: Mapping[str, Any]) -> str:
    """The plain values of an event; what is nested is for --json."""
    told = {name: value for name, value in data.items() if name not in ("turn_id", "seq", "at", "text")}
    return one_line(" ".join(f"{name}={value}" for name, value in told.items() if not isinstance(value, dict | list)))


_LINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "queued": _queued,
    "message.joined": _joined,
    "tool.awaiting_approval": _awaiting,
    "clarification.requested": _asks,
    "budget": _budget,
    "tool.approved": _approved,
    "tool.denied": _denied,
    "tool.executing": _executing,
    "tool.result": _result,
    "tool.error": _error,
    "rate_limit": _busy,
    "transient_error": _busy,
    "stage": _stage,
    "stopped": _stopped,
    "workflow.error": _failed,
    "done": _done,
}
