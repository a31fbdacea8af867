"""`perdure approvals claim|release|reassign|escalate|withdraw`: whose decision it is, and taking it back."""

from collections.abc import Callable
from typing import Annotated

import typer

from cli.approval_card import subject
from cli.asking import Yes, confirm
from cli.connection import Role, connect
from cli.deciders import claimed
from cli.decisions import ApprovalId, show_open
from cli.screen import AsJson, AsName, moment, say, say_json
from perdure.client import Approval, Client

_NOT_BEGUN = frozenset({"pending", "approved", "edited"})
Comment = Annotated[str, typer.Option(help="For the record.")]


def claim(
    approval_id: ApprovalId,
    seconds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For how long: 900 unless said, 3,600 at most.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Keep others from deciding while you look; again: for longer. It lapses by itself."""
    _hand(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.claim(approval_id, seconds=seconds),
        lambda now: f"yours until {moment(now.claimed_until)}",
    )


def release(approval_id: ApprovalId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Give your claim back; an admin may break anybody's."""
    _hand(
        approval_id, as_name, as_json, lambda client: client.approvals.release(approval_id), lambda now: "free for all"
    )


def reassign(
    approval_id: ApprovalId,
    to: Annotated[str, typer.Argument(metavar="USER", help="Who shall decide; must be entitled to.")],
    comment: Comment = "",
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Put it on somebody else's list."""
    _hand(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.reassign(approval_id, to, comment=comment),
        lambda now: f"on the list of {now.assignee or to}",
    )


def escalate(approval_id: ApprovalId, comment: Comment = "", as_json: AsJson = False, as_name: AsName = None) -> None:
    """Hand it to the role that the policy names for that; this can be done once."""
    _hand(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.escalate(approval_id, comment=comment),
        lambda now: f"now for the role {now.reviewer_role}",
    )


def withdraw(
    approval_id: ApprovalId, comment: Comment = "", yes: Yes = False, as_json: AsJson = False, as_name: AsName = None
) -> None:
    """Take back a request while it is open (who asked, or an admin), or an approval until its call has begun (who gave
    it, whoever could give it, or an admin); the agent is told that it was withdrawn."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = show_open(client, approval_id, as_json, _NOT_BEGUN)
    confirm("withdraw this?", yes=yes, as_json=as_json)
    # An undecided request is the requester's to take back.
    role = Role.REQUESTER if approval.status == "pending" else Role.REVIEWER
    _hand(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.withdraw(approval_id, comment=comment),
        lambda now: now.status,
        role,
    )


def _hand(
    approval_id: str,
    as_name: str | None,
    as_json: bool,
    act: Callable[[Client], Approval],
    told: Callable[[Approval], str],
    role: Role = Role.REVIEWER,
) -> None:
    """Do it, and say whose it is now."""
    with connect(role, as_name) as client:
        now = act(client)
    if as_json:
        say_json(now)
        return
    held_by = claimed(now)
    say(f"{told(now)}: {subject(now)} ({approval_id})" + (f", claimed by {held_by}" if held_by else ""))
