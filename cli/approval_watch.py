"""Approvals as they come and go."""

import time

from cli.approval_card import show_arguments, subject
from cli.connection import command
from cli.screen import say, say_json
from perdure.client import Approval, Client

_LOOK_SECONDS = 1.0


def watch_approvals(client: Client, *, as_json: bool) -> None:
    """Show each new pending approval, and each one that stops being pending. Never returns."""
    known: dict[str, Approval] = {}
    if not as_json:
        say("Watching; Ctrl-C ends it.")
    while True:
        pending = {each.id: each for each in _all_pending(client)}
        for approval_id in [approval_id for approval_id in known if approval_id not in pending]:
            known.pop(approval_id)
            _tell_end(client.approvals.get(approval_id), as_json)
        for approval in reversed(list(pending.values())):
            if approval.id not in known:
                known[approval.id] = approval
                _tell_new(approval, as_json)
        time.sleep(_LOOK_SECONDS)


def _all_pending(client: Client) -> list[Approval]:
    page = client.approvals.list(status="pending", limit=200)
    found = list(page.items)
    while page.next:
        page = client.approvals.list(status="pending", limit=200, cursor=page.next)
        found += page.items
    return found


def _tell_new(approval: Approval, as_json: bool) -> None:
    if as_json:
        say_json(approval)
        return
    say()
    say(f"‖ {subject(approval)} (risk {approval.risk}) of {approval.agent}, asked for by {approval.requested_by}")
    show_arguments(approval)
    say(f"  {command('approvals', 'approve', approval.id)}")


def _tell_end(approval: Approval, as_json: bool) -> None:
    if as_json:
        say_json(approval)
    else:
        say(f"= {subject(approval)} ({approval.id}) is {approval.status}")
