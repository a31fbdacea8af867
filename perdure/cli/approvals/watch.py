"""Live view of pending approvals: a table on a terminal, and a line for each change elsewhere."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.cli.approvals.card import claim_text, show_arguments, show_messages, votes_text
from perdure.cli.connection import command
from perdure.cli.terminal import ago, cell, say, say_json, time_left
from perdure.client import Client
from perdure.schemas.approvals import Approval, subject

_POLL_SECONDS = 1.0
_PAUSE_FACTOR = 4
"""A poll is followed by a pause of this many times its duration, so that a long queue is not read all the time."""
_PAGE_ITEMS = 200
_HIGHLIGHT_SECONDS = 15.0
"""Time for which a row is highlighted."""
_MAX_ENDED = 3
_RESERVED_LINES = 4 + _MAX_ENDED
"""Lines of the terminal that are not for rows."""
_WIDE_COLUMNS = 130
"""Narrower terminals show an approval on two lines, its id below its tool."""
_WIDE_HEADERS = ("tool", "risk", "agent", "requested by", "age", "expires in", "assignee", "claimed by", "votes")
_NARROW_HEADERS = ("age", "expires", "assignee", "claimed", "votes")


class Screen(Protocol):
    """An output for approvals, used as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def added(self, approval: Approval) -> None:
        """Called when an approval becomes pending."""

    def changed(self, approval: Approval) -> None:
        """Called when a pending approval's reviewers, call or votes have changed."""

    def ended(self, approval: Approval) -> None:
        """Called when an approval is no longer pending."""

    def polled(self, waiting: Mapping[str, Approval]) -> None:
        """Called after each poll with all pending approvals, newest first."""


def watch_approvals(client: Client, screen: Screen, *, mine: bool = False, agent: str | None = None) -> None:
    """Shows each new pending approval, its changes, and its end. Never returns."""
    shown: dict[str, Approval] = {}
    with screen:
        while True:
            started_at = time.monotonic()
            pending = {each.id: each for each in _all_pending(client, mine, agent)}
            for approval_id in [approval_id for approval_id in shown if approval_id not in pending]:
                shown.pop(approval_id)
                screen.ended(client.approvals.get(approval_id))
            for approval in reversed(list(pending.values())):
                previous = shown.get(approval.id)
                if previous is None:
                    screen.added(approval)
                elif _shown_state(previous) != _shown_state(approval):
                    screen.changed(approval)
                shown[approval.id] = approval
            screen.polled(pending)
            time.sleep(max(_POLL_SECONDS, _PAUSE_FACTOR * (time.monotonic() - started_at)))


def screen_for(*, as_json: bool) -> Screen:
    """Returns the live table if there is a terminal, else lines."""
    console = Console(highlight=False, emoji=False)
    return LineScreen(as_json) if as_json or not console.is_terminal else TableScreen(console)


@dataclass(slots=True)
class LineScreen:
    """Writes a line for each change, or with `as_json` a JSON value on a line."""

    as_json: bool

    def __enter__(self) -> Self:
        if not self.as_json:
            say("Watching the queue; press Ctrl-C to stop.")
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def added(self, approval: Approval) -> None:
        """Writes the call and the command that approves it."""
        if self.as_json:
            say_json(approval, line=True)
            return
        say()
        say(
            f"‖ {subject(approval)} (risk {approval.risk}), agent {approval.agent}, requested by "
            f"{approval.requested_by}"
        )
        show_messages(approval)
        show_arguments(approval)
        say(f"  {command('approvals', 'approve', approval.id)}")

    def changed(self, approval: Approval) -> None:
        """Writes the current state."""
        if self.as_json:
            say_json(approval, line=True)
            return
        fields = {
            "for": approval.assignee or approval.reviewer_role,
            "claimed by": claim_text(approval),
            "votes": votes_text(approval),
            "digest": approval.digest[:16],
            "messages since": approval.revision - 1,
        }
        state = ", ".join(f"{name} {value}" for name, value in fields.items() if value)
        say(f"~ {subject(approval)} ({approval.id}) {state}")

    def ended(self, approval: Approval) -> None:
        """Writes the final status."""
        if self.as_json:
            say_json(approval, line=True)
        else:
            say(f"= {subject(approval)} ({approval.id}) is {approval.status}")

    def polled(self, waiting: Mapping[str, Approval]) -> None:
        """Does nothing: each line has been written."""


def _all_pending(client: Client, mine: bool, agent: str | None) -> list[Approval]:
    approvals: list[Approval] = []
    cursor: str | None = None
    while True:
        page = client.approvals.list(status="pending", mine=mine or None, agent=agent, limit=_PAGE_ITEMS, cursor=cursor)
        approvals += page.items
        cursor = page.next
        if not cursor:
            return approvals


def _shown_state(approval: Approval) -> tuple[object, ...]:
    """Returns the values whose changes are shown. The expiry of a claim is not one of them."""
    return (
        approval.digest,
        approval.revision,
        approval.reviewer_role,
        approval.assignee,
        approval.claimed_by,
        len(approval.votes),
        approval.escalated_at,
    )


class TableScreen:
    """A live table on a terminal. Times are updated only with each poll of the queue. New requests are highlighted,
    ended ones are listed below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._highlighted_at: dict[str, float] = {}
        self._ended: deque[str] = deque(maxlen=_MAX_ENDED)
        self._is_first_poll = True

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def added(self, approval: Approval) -> None:
        """Highlights the row for a while, unless it existed before the first poll."""
        if not self._is_first_poll:
            self._highlighted_at[approval.id] = time.monotonic()

    def changed(self, approval: Approval) -> None:
        """Highlights the row again."""
        self._highlighted_at[approval.id] = time.monotonic()

    def ended(self, approval: Approval) -> None:
        """Removes the row. The last few ended approvals are listed below the table."""
        self._highlighted_at.pop(approval.id, None)
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        self._ended.append(cell(f"= {subject(approval)} ({approval.id}) is {approval.status}{by}"))

    def polled(self, waiting: Mapping[str, Approval]) -> None:
        """Draws the table."""
        self._is_first_poll = False
        self._live.update(self.render(waiting), refresh=True)

    def render(self, waiting: Mapping[str, Approval]) -> Group:
        """Returns the table in its current state."""
        is_wide = self._console.width >= _WIDE_COLUMNS
        table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        table.add_column(
            "approval", no_wrap=True, min_width=max((len(approval_id) for approval_id in waiting), default=0)
        )
        for header in _WIDE_HEADERS if is_wide else _NARROW_HEADERS:
            table.add_column(header, no_wrap=True, overflow="ellipsis")
        max_rows = max((self._console.height - _RESERVED_LINES) // (1 if is_wide else 2), 3)
        shown = list(waiting.values())[:max_rows]
        for approval in shown:
            cells = _wide_row(approval) if is_wide else _narrow_row(approval)
            table.add_row(*cells, style="bold reverse" if self._is_new(approval.id) else "")
        hidden = len(waiting) - len(shown)
        footer = [f"and {hidden} more; see `perdure approvals list`"] if hidden else []
        footer += self._ended
        count = (
            f"{len(waiting)} pending; press Ctrl-C to stop."
            if waiting
            else "No pending requests; press Ctrl-C to stop."
        )
        return Group(Text(count), *([table] if shown else []), *(Text(line) for line in footer))

    def _is_new(self, approval_id: str) -> bool:
        since = self._highlighted_at.get(approval_id)
        return since is not None and time.monotonic() - since < _HIGHLIGHT_SECONDS


def _wide_row(approval: Approval) -> list[Text]:
    request = (approval.id, subject(approval), approval.risk, approval.agent, approval.requested_by)
    handling = (approval.assignee, claim_text(approval), votes_text(approval))
    return [Text(cell(value)) for value in (*request, *_times(approval), *handling)]


def _narrow_row(approval: Approval) -> list[Text]:
    heading = Text(cell(f"{subject(approval)} (risk {approval.risk})"))
    claimer = approval.claimed_by if claim_text(approval) else ""
    cells = (*_times(approval), approval.assignee, claimer, votes_text(approval))
    return [Text("\n").join([heading, Text(cell(approval.id))]), *(Text(cell(value)) for value in cells)]


def _times(approval: Approval) -> tuple[str, str]:
    """Returns the age and the time left, both shortened."""
    age, remaining = (
        " ".join(phrase.split()[:2]) for phrase in (ago(approval.requested_at), time_left(approval.expires_at))
    )
    return age, remaining
