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

from perdure.cli.approvals.card import claimed, show_arguments, votes_of
from perdure.cli.connection import command
from perdure.cli.terminal import ago, cell, left, say, say_json
from perdure.client import Client
from perdure.schemas.approvals import Approval, subject

_LOOK_SECONDS = 1.0
_SHARE = 4
"""A poll is followed by a pause of this many times its duration, so that a long queue is not read all the time."""
_PAGE = 200


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

    def looked(self, waiting: Mapping[str, Approval]) -> None:
        """Called after each poll with all pending approvals, newest first."""


def watch_approvals(client: Client, screen: Screen, *, mine: bool = False, agent: str | None = None) -> None:
    """Shows each new pending approval, its changes, and its end. Never returns."""
    known: dict[str, Approval] = {}
    with screen:
        while True:
            began = time.monotonic()
            waiting = {each.id: each for each in _all_pending(client, mine, agent)}
            for approval_id in [approval_id for approval_id in known if approval_id not in waiting]:
                known.pop(approval_id)
                screen.ended(client.approvals.get(approval_id))
            for approval in reversed(list(waiting.values())):
                before = known.get(approval.id)
                if before is None:
                    screen.added(approval)
                elif _state(before) != _state(approval):
                    screen.changed(approval)
                known[approval.id] = approval
            screen.looked(waiting)
            time.sleep(max(_LOOK_SECONDS, _SHARE * (time.monotonic() - began)))


def screen_for(*, as_json: bool) -> Screen:
    """Returns the live table if there is a terminal, else lines."""
    console = Console(highlight=False, emoji=False)
    return Lines(as_json) if as_json or not console.is_terminal else WatchTable(console)


@dataclass(slots=True)
class Lines:
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
        show_arguments(approval)
        say(f"  {command('approvals', 'approve', approval.id)}")

    def changed(self, approval: Approval) -> None:
        """Writes the current state."""
        if self.as_json:
            say_json(approval, line=True)
            return
        fields = {
            "for": approval.assignee or approval.reviewer_role,
            "claimed by": claimed(approval),
            "votes": votes_of(approval),
            "digest": approval.digest[:16],
        }
        now = ", ".join(f"{name} {value}" for name, value in fields.items() if value)
        say(f"~ {subject(approval)} ({approval.id}) {now}")

    def ended(self, approval: Approval) -> None:
        """Writes the final status."""
        if self.as_json:
            say_json(approval, line=True)
        else:
            say(f"= {subject(approval)} ({approval.id}) is {approval.status}")

    def looked(self, waiting: Mapping[str, Approval]) -> None:
        """Does nothing: each line has been written."""


def _all_pending(client: Client, mine: bool, agent: str | None) -> list[Approval]:
    found: list[Approval] = []
    cursor: str | None = None
    while True:
        page = client.approvals.list(status="pending", mine=mine or None, agent=agent, limit=_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next
        if not cursor:
            return found


def _state(approval: Approval) -> tuple[object, ...]:
    """Returns the values whose changes are shown. The expiry of a claim is not one of them."""
    return (
        approval.digest,
        approval.reviewer_role,
        approval.assignee,
        approval.claimed_by,
        len(approval.votes),
        approval.escalated_at,
    )


_NEW_SECONDS = 15.0
"""Time for which a row is highlighted."""
_ENDED_SHOWN = 3
_BESIDE_ROWS = 4 + _ENDED_SHOWN
"""Lines of the terminal that are not for rows."""
_WIDE_COLUMNS = 130
"""Narrower terminals show an approval on two lines, its id below its tool."""
_WIDE = ("tool", "risk", "agent", "requested by", "age", "expires in", "assignee", "claimed by", "votes")
_NARROW = ("age", "expires", "assignee", "claimed", "votes")


class WatchTable:
    """A live table on a terminal. Times are updated only with each poll of the queue. New requests are highlighted,
    ended ones are listed below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._since: dict[str, float] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_SHOWN)
        self._first = True

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def added(self, approval: Approval) -> None:
        """Highlights the row for a while, unless it existed before the first poll."""
        if not self._first:
            self._since[approval.id] = time.monotonic()

    def changed(self, approval: Approval) -> None:
        """Highlights the row again."""
        self._since[approval.id] = time.monotonic()

    def ended(self, approval: Approval) -> None:
        """Removes the row. The last few ended approvals are listed below the table."""
        self._since.pop(approval.id, None)
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        self._ended.append(cell(f"= {subject(approval)} ({approval.id}) is {approval.status}{by}"))

    def looked(self, waiting: Mapping[str, Approval]) -> None:
        """Draws the table."""
        self._first = False
        self._live.update(self.drawn(waiting), refresh=True)

    def drawn(self, waiting: Mapping[str, Approval]) -> Group:
        """Returns the table in its current state."""
        wide = self._console.width >= _WIDE_COLUMNS
        made = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        made.add_column("approval", no_wrap=True, min_width=max((len(each) for each in waiting), default=0))
        for header in _WIDE if wide else _NARROW:
            made.add_column(header, no_wrap=True, overflow="ellipsis")
        room = max((self._console.height - _BESIDE_ROWS) // (1 if wide else 2), 3)
        shown = list(waiting.values())[:room]
        for approval in shown:
            cells = _wide_row(approval) if wide else _narrow_row(approval)
            made.add_row(*cells, style="bold reverse" if self._is_new(approval.id) else "")
        more = len(waiting) - len(shown)
        below = [f"and {more} more; see `perdure approvals list`"] if more else []
        below += self._ended
        count = (
            f"{len(waiting)} pending; press Ctrl-C to stop."
            if waiting
            else "No pending requests; press Ctrl-C to stop."
        )
        return Group(Text(count), *([made] if shown else []), *(Text(line) for line in below))

    def _is_new(self, approval_id: str) -> bool:
        since = self._since.get(approval_id)
        return since is not None and time.monotonic() - since < _NEW_SECONDS


def _wide_row(approval: Approval) -> list[Text]:
    what = (approval.id, subject(approval), approval.risk, approval.agent, approval.requested_by)
    whose = (approval.assignee, claimed(approval), votes_of(approval))
    return [Text(cell(value)) for value in (*what, *_times(approval), *whose)]


def _narrow_row(approval: Approval) -> list[Text]:
    first = Text(cell(f"{subject(approval)} (risk {approval.risk})"))
    claimer = approval.claimed_by if claimed(approval) else ""
    rest = (*_times(approval), approval.assignee, claimer, votes_of(approval))
    return [Text("\n").join([first, Text(cell(approval.id))]), *(Text(cell(value)) for value in rest)]


def _times(approval: Approval) -> tuple[str, str]:
    """Returns the age and the time left, both shortened."""
    age, rest = (" ".join(phrase.split()[:2]) for phrase in (ago(approval.requested_at), left(approval.expires_at)))
    return age, rest
