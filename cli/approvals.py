"""`perdure approvals`: the reviewer tool of the terminal.

Every decision names the digest of the call that this command has just shown: if the call were another by then, the
API would refuse. On a terminal a decision asks once more; `--yes`, or no terminal, means that you have looked.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from cli.approval_card import differences, show_arguments, show_card, subject
from cli.approval_watch import watch_approvals
from cli.connection import Role, connect
from cli.editor import EditFailed, edited, parsed
from cli.failures import DECIDED, EXPIRED, OTHER, USAGE
from cli.screen import AsJson, AsName, fail, left, moment, say, say_json, table
from perdure.client import Approval, Client
from perdure.client.review_calls import Decision

app = typer.Typer(help="What waits for a reviewer.", no_args_is_help=True, rich_markup_mode=None)
ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]
Comment = Annotated[str, typer.Option(help="For the record, and for the agent.")]
Digest = Annotated[str, typer.Option(help="Decide only on the call with this digest, seen in `show --json`.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask once more.")]


@app.command("list")
def list_approvals(
    status: Annotated[str, typer.Option(help="pending, approved, rejected, done, …, or all.")] = "pending",
    agent: Annotated[str | None, typer.Option()] = None,
    tool: Annotated[str | None, typer.Option()] = None,
    turn: Annotated[str | None, typer.Option(metavar="ID")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the list before.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """What waits for a decision, newest first."""
    wanted = None if status == "all" else status
    with connect(Role.REVIEWER, as_name) as client:
        page = client.approvals.list(status=wanted, agent=agent, tool=tool, turn=turn, limit=limit, cursor=cursor)
    if as_json:
        say_json(page)
        return
    rows = [
        (
            each.id,
            each.status,
            subject(each),
            each.risk,
            each.agent,
            each.requested_by,
            left(each.expires_at),
            each.args,
        )
        for each in page.items
    ]
    headers = ("approval", "status", "tool", "risk", "agent", "asked by", "expires in", "arguments")
    table(headers, rows, "Nothing waits." if wanted == "pending" else "No approval.")
    if page.next:
        say(f"More: --cursor {page.next}")


@app.command("show")
def show(approval_id: ApprovalId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """One approval: the exact call, its deadline, its history."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.get(approval_id)
    if as_json:
        say_json(approval)
    else:
        show_card(approval)


@app.command("approve")
def approve(
    approval_id: ApprovalId,
    comment: Comment = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let exactly this call run."""
    with _undecided(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "approve", digest, yes=yes, as_json=as_json, comment=comment)


@app.command("reject")
def reject(
    approval_id: ApprovalId,
    comment: Annotated[str, typer.Option(help="Why not; the agent is told.")] = "",
    reason: Annotated[str, typer.Option(metavar="CODE", help="A reason code of your own.")] = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Do not let it run; a --comment or a --reason is needed."""
    if not (comment.strip() or reason.strip()):
        raise fail("a rejection needs --comment or --reason", USAGE)
    with _undecided(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "reject", digest, yes=yes, as_json=as_json, comment=comment, reason_code=reason)


@app.command("edit")
def edit(
    approval_id: ApprovalId,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="The new arguments, instead of an editor.")] = None,
    comment: Comment = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let it run with other arguments: $EDITOR opens on them, and shows what you changed."""
    with _undecided(approval_id, as_name, as_json) as (client, approval):
        try:
            changed = edited(approval.args) if args is None else parsed(args)
        except EditFailed as error:
            raise fail(str(error), USAGE) from None
        if changed == approval.args:
            raise fail("nothing is changed, so nothing was sent; to let it run as it is, approve it", USAGE)
        if not as_json:
            for line in differences(approval.args, changed):
                say(line)
        _decide(client, approval, "edit", digest, yes=yes, as_json=as_json, args=changed, comment=comment)


@app.command("respond")
def respond(
    approval_id: ApprovalId,
    text: Annotated[str, typer.Argument(help="What to tell the agent instead of running the call.")],
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Answer the agent instead of letting the call run."""
    with _undecided(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "respond", digest, yes=yes, as_json=as_json, comment=text)


@app.command("watch")
def watch(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Each approval as it comes, and what became of it; Ctrl-C ends it."""
    with connect(Role.REVIEWER, as_name) as client:
        try:
            watch_approvals(client, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@contextmanager
def _undecided(approval_id: str, as_name: str | None, as_json: bool) -> Iterator[tuple[Client, Approval]]:
    """The approval, shown; leaves with 5 or 6 where there is nothing to decide any more."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.get(approval_id)
        if approval.status != "pending":
            expired = approval.status == "expired"
            if as_json:
                say_json(approval)
            raise fail(_too_late(approval), EXPIRED if expired else DECIDED)
        if not as_json:
            say(f"{subject(approval)} ({approval.effect}, risk {approval.risk}), asked for by {approval.requested_by}")
            show_arguments(approval)
        yield client, approval


def _too_late(approval: Approval) -> str:
    """Who decided what and when, or that nobody did, and what it is by now."""
    if approval.status == "expired":
        return f"too late: it expired undecided at {moment(approval.expires_at)}"
    if not approval.decided_by:
        return f"too late: it is {approval.status}"
    decided = (approval.decision or {}).get("type", "a decision")
    when = moment(approval.decided_at)
    return f"too late: {decided} by {approval.decided_by} at {when}; it is {approval.status} now"


def _decide(
    client: Client,
    approval: Approval,
    decision: Decision,
    digest: str,
    *,
    yes: bool,
    as_json: bool,
    args: Mapping[str, Any] | None = None,
    comment: str = "",
    reason_code: str = "",
) -> None:
    """Ask once more where a person sits there, then send the digest of what was shown."""
    if not (yes or as_json) and sys.stdin.isatty() and not typer.confirm(f"{decision} this?"):
        raise fail("nothing was sent", OTHER)
    decided = client.approvals.decide(
        approval.id, decision, digest or approval.digest, args=args, comment=comment, reason_code=reason_code
    )
    if as_json:
        say_json(decided)
    else:
        say(f"{decided.status}: {subject(approval)} ({approval.id})")
