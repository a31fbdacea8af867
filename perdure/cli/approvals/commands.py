"""`perdure approvals`: the queue, one approval, and the actions of reviewers in the terminal."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

import typer

from perdure.cli.approvals import card, decide
from perdure.cli.approvals.card import claim_text, show_card, status_text, votes_text
from perdure.cli.approvals.decide import ApprovalId, error_item, load_and_show, print_results
from perdure.cli.approvals.watch import screen_for, watch_approvals
from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import (
    USAGE,
    AsJson,
    AsName,
    Cursor,
    Limit,
    Yes,
    ago,
    cell,
    check_choice,
    confirm,
    fail,
    format_time,
    say,
    say_json,
    say_page,
    table,
    time_left,
)
from perdure.client import ApiError, Client
from perdure.contracts.activities import ApprovalStatus
from perdure.contracts.approvals import RequestKind
from perdure.core.text import truncate
from perdure.schemas.approvals import Ageing, Approval, Fallback, ItemAnswer, subject

_WITHDRAWABLE_STATUSES = frozenset({"pending", "outdated", "approved", "edited"})
Comment = Annotated[str, typer.Option(metavar="TEXT", help="A comment for the record.")]
_ARGUMENT_CHARACTERS = 120
_PAGE_ITEMS = 200
_COLUMNS = (
    "approval", "status", "tool", "risk", "agent", "requested by", "assignee", "votes", "expires in", "arguments",
)  # fmt: skip
_STATUSES = (*ApprovalStatus, "all")
_BUCKETS = ("1h", "1d", "3d", "older")


def claim(
    approval_id: ApprovalId,
    seconds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Duration in seconds: 900 by default, at most 3,600.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Claim a request while you review it. No other reviewer can decide until the claim expires. Repeat the command to
    extend it."""
    _run_action(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.claim(approval_id, seconds=seconds),
        lambda updated: f"claimed by you until {format_time(updated.claimed_until)}",
    )


def release(approval_id: ApprovalId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Release your claim; an admin can release any claim."""
    _run_action(
        approval_id, as_name, as_json, lambda client: client.approvals.release(approval_id), lambda updated: "released"
    )


def reassign(
    approval_id: ApprovalId,
    to: Annotated[
        str, typer.Argument(metavar="USER", help="The reviewer to assign; must be allowed to decide on the request.")
    ],
    comment: Comment = "",
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Assign the request to another reviewer."""
    _run_action(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.reassign(approval_id, to, comment=comment),
        lambda updated: f"assigned to {updated.assignee or to}",
    )


def escalate(approval_id: ApprovalId, comment: Comment = "", as_json: AsJson = False, as_name: AsName = None) -> None:
    """Escalate the request to the role that its policy names. A request can be escalated once."""
    _run_action(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.escalate(approval_id, comment=comment),
        lambda updated: f"escalated to the role {updated.reviewer_role}",
    )


def withdraw(
    approval_id: ApprovalId, comment: Comment = "", yes: Yes = False, as_json: AsJson = False, as_name: AsName = None
) -> None:
    """Withdraw a request, or an approval whose call has not started. The requester or an admin can withdraw a pending
    request. The approvers, other reviewers who could have approved it, or an admin can withdraw an approval. The agent
    is informed."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = load_and_show(client, approval_id, as_json, _WITHDRAWABLE_STATUSES)
    confirm("Withdraw this request?", yes=yes, as_json=as_json)
    # A pending request is withdrawn by its requester.
    role = Role.REQUESTER if approval.is_open else Role.REVIEWER
    _run_action(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.withdraw(approval_id, comment=comment),
        lambda updated: updated.status,
        role,
    )


def reissue(
    approval_ids: Annotated[
        list[str] | None, typer.Argument(metavar="APPROVAL", show_default=False, help="The approvals' ids.")
    ] = None,
    all_outdated: Annotated[
        bool, typer.Option("--all-outdated", help="Each outdated approval that you can see.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Make outdated requests again, with the same arguments. They then count for the tool's new version. Votes are
    void, and reviewers decide again. Of one request, the changes are shown; of several, the result of each."""
    if bool(approval_ids) == all_outdated:
        raise fail("Name the approvals, or set --all-outdated", USAGE)
    if approval_ids and len(approval_ids) == 1:
        _reissue_one(approval_ids[0], yes, as_json, as_name)
        return
    with connect(Role.REVIEWER, as_name) as client:
        ids = [*dict.fromkeys(approval_ids)] if approval_ids else _outdated_ids(client)
        if ids:
            confirm(f"Reissue {len(ids)} requests?", yes=yes, as_json=as_json)
        elif not as_json:
            say("No outdated requests.")
        print_results((_reissue_each(client, approval_id) for approval_id in ids), as_json)


def _outdated_ids(client: Client) -> list[str]:
    """Returns the ids of all outdated approvals, newest first. Those that were reissued would leave the list between
    its pages, so it is read to its end before."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = client.approvals.list(status=ApprovalStatus.OUTDATED.value, brief=True, limit=_PAGE_ITEMS, cursor=cursor)
        ids += [each.id for each in page.items if each.kind == RequestKind.APPROVAL]  # no checkpoint can be reissued
        cursor = page.next
        if cursor is None:
            return ids


def _reissue_each(client: Client, approval_id: str) -> ItemAnswer:
    try:
        client.approvals.reissue(approval_id)
    except ApiError as error:
        return error_item(approval_id, error.code, error.message, error.status)
    return ItemAnswer(id=approval_id, status="reissued")


def _reissue_one(approval_id: str, yes: bool, as_json: bool, as_name: str | None) -> None:
    with connect(Role.REVIEWER, as_name) as client:
        load_and_show(client, approval_id, as_json, _WITHDRAWABLE_STATUSES)
    confirm("Reissue this request?", yes=yes, as_json=as_json)
    _run_action(
        approval_id,
        as_name,
        as_json,
        lambda client: client.approvals.reissue(approval_id),
        lambda updated: f"reissued, expires in {time_left(updated.expires_at)}",
    )
    if not as_json:
        say(f"To decide: {command('approvals', 'approve', approval_id)}")


def _run_action(
    approval_id: str,
    as_name: str | None,
    as_json: bool,
    action: Callable[[Client], Approval],
    describe: Callable[[Approval], str],
    role: Role = Role.REVIEWER,
) -> None:
    """Runs the action and shows the new assignment."""
    with connect(role, as_name) as client:
        updated = action(client)
    if as_json:
        say_json(updated)
        return
    claimant = claim_text(updated)
    say(f"{describe(updated)}: {subject(updated)} ({approval_id})" + (f", claimed by {claimant}" if claimant else ""))


approvals_app = typer.Typer(
    help="List pending requests and decide on them.", no_args_is_help=True, rich_markup_mode=None
)
Mine = Annotated[bool, typer.Option("--mine", help="Only requests that you can decide on.")]
AgentId = Annotated[str | None, typer.Option(metavar="ID", help="Only requests of this agent.")]


@approvals_app.command("list")
def list_approvals(
    status: Annotated[str, typer.Option(metavar="STATUS", help=f"One of {', '.join(_STATUSES)}.")] = "pending",
    agent: AgentId = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only requests for this tool.")] = None,
    turn: Annotated[str | None, typer.Option(metavar="ID", help="Only requests of this turn.")] = None,
    assignee: Annotated[str | None, typer.Option(metavar="NAME", help="Only requests assigned to this user.")] = None,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help="Only requests for this reviewer role.")] = None,
    mine: Mine = False,
    expiring: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="Only requests that expire within this time.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    full: Annotated[bool, typer.Option("--full", help="Show arguments in full.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List approvals, newest first; pending ones by default."""
    check_choice("--status", status, _STATUSES)
    with connect(Role.REVIEWER, as_name) as client:
        page = client.approvals.list(
            status=None if status == "all" else status,
            agent=agent,
            tool=tool,
            turn=turn,
            assignee=assignee,
            role=role,
            mine=mine or None,
            expiring_seconds=expiring,
            limit=limit,
            cursor=cursor,
        )
    empty = "No pending requests." if status == "pending" else "No approvals."
    rows = [_row(approval, full) for approval in page.items]
    say_page(page, _COLUMNS, rows, empty, as_json=as_json, max_characters=None if full else 200)


@approvals_app.command("show")
def show(
    approval_id: ApprovalId,
    full: Annotated[bool, typer.Option("--full", help="Show everything in full.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show one approval: the exact call, reviewers and history."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.get(approval_id)
    if as_json:
        say_json(approval)
    else:
        show_card(approval, full=full)


@approvals_app.command("ageing")
def ageing(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show how long requests have waited, by role, assignee and agent."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.approvals.ageing()
    age_headers = ("waiting", "to 1 h", "to 1 d", "to 3 d", "older")
    headers = ("role", "assignee", "agent", *age_headers, "oldest", "next expires in", "fallback")
    say_page(page, headers, [_ageing_row(group) for group in page.items], "No pending requests.", as_json=as_json)


@approvals_app.command("watch")
def watch(mine: Mine = False, agent: AgentId = None, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Watch the queue live. It is a table on a terminal, otherwise lines; with --json, JSON lines. Ctrl-C stops it."""
    with connect(Role.REVIEWER, as_name) as client:
        try:
            watch_approvals(client, screen_for(as_json=as_json), mine=mine, agent=agent)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(decide.approve, decide.edit, decide.reject, decide.respond, decide.batch, card.preview),
    *(claim, release, reassign, escalate, withdraw, reissue),
)
for each in _COMMANDS:
    approvals_app.command(each.__name__)(each)


def _row(approval: Approval, full: bool) -> tuple[object, ...]:
    args = cell(approval.args, None)
    responsible = f"claimed by {claim_text(approval)}" if claim_text(approval) else approval.assignee
    return (
        approval.id,
        status_text(approval),
        subject(approval),
        approval.risk,
        approval.agent,
        approval.requested_by,
        responsible,
        votes_text(approval),
        time_left(approval.expires_at) if approval.is_open else "",
        args if full else truncate(args, _ARGUMENT_CHARACTERS),
    )


def _ageing_row(group: Ageing) -> tuple[object, ...]:
    counts = (group.buckets.get(name, 0) for name in _BUCKETS)
    ages = (ago(group.oldest_at), time_left(group.next_expiry_at))
    return (group.role, group.assignee, group.agent, group.waiting, *counts, *ages, _fallback_text(group.fallback))


def _fallback_text(fallback: Fallback | None) -> str:
    if fallback is None or not fallback.reviewer or fallback.at is None:
        return (fallback and fallback.reviewer) or ""
    is_due = fallback.at <= datetime.now(UTC)
    return f"{fallback.reviewer}, " + (
        f"due since {format_time(fallback.at)}" if is_due else f"in {time_left(fallback.at)}"
    )


delegations_app = typer.Typer(
    help="Delegate your decisions to another reviewer.", no_args_is_help=True, rich_markup_mode=None
)


@delegations_app.command("list")
def list_delegations(
    all_users: Annotated[bool, typer.Option("--all", help="Delegations of all users; admin only.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List your active delegations."""
    with connect(Role.ADMIN if all_users else Role.REVIEWER, as_name) as client:
        page = client.delegations.list(all_users=all_users)
    if as_json:
        say_json(page)
        return
    rows = [
        (delegation.id, delegation.by, delegation.to, format_time(delegation.until), time_left(delegation.until))
        for delegation in page.items
    ]
    empty = "No active delegations." if all_users else "You have no active delegations."
    table(("delegation", "on behalf of", "to", "until", "ends in"), rows, empty)
    if page.next:
        say("More delegations exist: use the cursor from --json with GET /v1/delegations?all=true&cursor=…")


@delegations_app.command("add")
def add(
    to: Annotated[str, typer.Argument(metavar="USER", help="The user who can decide in your place.")],
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="The last day (UTC) or an exact time, such as 2027-01-31T12:00Z.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Or a number of days from now, at most 90.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Delegate your decisions to another user until a date. You can still decide yourself; the two of you count as one
    vote."""
    if (until is None) == (days is None):
        raise fail("Set either --until or --days", USAGE)
    end = datetime.now(UTC) + timedelta(days=days) if days is not None else _parse_end(until or "")
    with connect(Role.REVIEWER, as_name) as client:
        delegation = client.delegations.add(to, end)
    if as_json:
        say_json(delegation)
    else:
        say(f"{delegation.to} can decide in your place until {format_time(delegation.until)} ({delegation.id})")


@delegations_app.command("remove")
def remove(
    delegation_id: Annotated[
        str, typer.Argument(metavar="DELEGATION", help="The delegation's id, from `delegations list`.")
    ],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """End one of your delegations immediately. With --as admin, it can be any delegation."""
    with connect(Role.REVIEWER, as_name) as client:
        client.delegations.remove(delegation_id)
    if as_json:
        say_json({"id": delegation_id, "removed": True})
    else:
        say("The delegation has ended.")


def _parse_end(text: str) -> datetime:
    """Reads a date or a time. A date includes its whole day; a time without a zone is in UTC."""
    try:
        if len(text) <= len("2027-01-31"):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise fail(f"{text!r} is not a date; write 2027-01-31 or 2027-01-31T12:00Z", USAGE) from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
