"""Approvals as they come and go: a live table on a terminal, a line for each thing that happens anywhere else."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console

from cli.approval_card import subject
from cli.connection import command
from cli.deciders import claimed, votes_of
from cli.frozen_call import show_arguments
from cli.screen import say, say_json
from cli.watch_table import WatchTable
from perdure.client import Approval, Client

_LOOK_SECONDS = 1.0
_SHARE = 4
"""A look that takes long is followed by a rest of as many times its length, so that a long queue is not read all
the time."""
_PAGE = 200


class Screen(Protocol):
    """Where approvals are shown, from its entering to its exit."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def came(self, approval: Approval) -> None:
        """It waits, and did not before."""

    def changed(self, approval: Approval) -> None:
        """It still waits; whose it is, its call or its votes have changed."""

    def ended(self, approval: Approval) -> None:
        """It waits no longer."""

    def looked(self, waiting: Mapping[str, Approval]) -> None:
        """All that wait now, newest first."""


def watch_approvals(client: Client, screen: Screen, *, mine: bool = False, agent: str | None = None) -> None:
    """Show each new pending approval, what changes about it, and each one that stops being pending. Never returns."""
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
                    screen.came(approval)
                elif _state(before) != _state(approval):
                    screen.changed(approval)
                known[approval.id] = approval
            screen.looked(waiting)
            time.sleep(max(_LOOK_SECONDS, _SHARE * (time.monotonic() - began)))


def screen_for(*, as_json: bool) -> Screen:
    """The live table where there is a terminal to draw on, lines elsewhere."""
    console = Console(highlight=False, emoji=False)
    return Lines(as_json) if as_json or not console.is_terminal else WatchTable(console)


@dataclass(slots=True)
class Lines:
    """A line, or with `as_json` a JSON value on a line, for each thing that happens."""

    as_json: bool

    def __enter__(self) -> Self:
        if not self.as_json:
            say("Watching; Ctrl-C ends it.")
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def came(self, approval: Approval) -> None:
        """The call, and how to approve it."""
        if self.as_json:
            say_json(approval, line=True)
            return
        say()
        say(f"‖ {subject(approval)} (risk {approval.risk}) of {approval.agent}, asked for by {approval.requested_by}")
        show_arguments(approval)
        say(f"  {command('approvals', 'approve', approval.id)}")

    def changed(self, approval: Approval) -> None:
        """What it is now."""
        if self.as_json:
            say_json(approval, line=True)
            return
        told = {
            "for": approval.assignee or approval.reviewer_role,
            "claimed by": claimed(approval),
            "votes": votes_of(approval),
            "digest": approval.digest[:16],
        }
        now = ", ".join(f"{name} {value}" for name, value in told.items() if value)
        say(f"~ {subject(approval)} ({approval.id}) {now}")

    def ended(self, approval: Approval) -> None:
        """What became of it."""
        if self.as_json:
            say_json(approval, line=True)
        else:
            say(f"= {subject(approval)} ({approval.id}) is {approval.status}")

    def looked(self, waiting: Mapping[str, Approval]) -> None:
        """Nothing: each line has been written."""


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
    """What is worth a line when it changes; a claim that lapses is not."""
    return (
        approval.digest,
        approval.reviewer_role,
        approval.assignee,
        approval.claimed_by,
        len(approval.votes),
        approval.escalated_at,
    )
