"""`perdure approvals`: the reviewer tool of the terminal. The queue, one of it, and the verbs by name."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import batch, decisions, handover, preview
from cli.approval_card import show_card, standing, subject
from cli.approval_watch import screen_for, watch_approvals
from cli.connection import Role, connect
from cli.deciders import claimed, votes_of
from cli.decisions import ApprovalId
from cli.failures import USAGE
from cli.screen import AsJson, AsName, ago, cell, fail, left, moment, say, say_json, table
from contracts.approvals import ApprovalStatus
from perdure.client import Ageing, Approval, Fallback
from policy.printable import cut

app = typer.Typer(help="What waits for a reviewer.", no_args_is_help=True, rich_markup_mode=None)
Mine = Annotated[bool, typer.Option("--mine", help="Only what you may decide.")]
AgentId = Annotated[str | None, typer.Option(metavar="ID", help="Only of this agent.")]
_ARGUMENTS_SHOWN = 120
_STATUSES = (*ApprovalStatus, "all")
_BUCKETS = ("1h", "1d", "3d", "older")


@app.command("list")
def list_approvals(
    status: Annotated[str, typer.Option(help="pending, approved, rejected, done, …, or all.")] = "pending",
    agent: AgentId = None,
    tool: Annotated[str | None, typer.Option()] = None,
    turn: Annotated[str | None, typer.Option(metavar="ID")] = None,
    assignee: Annotated[str | None, typer.Option(metavar="NAME", help="Only what is on this user's list.")] = None,
    role: Annotated[str | None, typer.Option(help="Only what this role decides.")] = None,
    mine: Mine = False,
    expiring: Annotated[int | None, typer.Option(min=1, metavar="SECONDS", help="Only what expires by then.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the list before.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Arguments whole, however long.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """What waits for a decision, newest first."""
    if status not in _STATUSES:
        raise fail(f"--status is one of {', '.join(_STATUSES)}", USAGE)
    wanted = None if status == "all" else status
    with connect(Role.REVIEWER, as_name) as client:
        page = client.approvals.list(
            status=wanted,
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
    if as_json:
        say_json(page)
        return
    headers = ("approval", "status", "tool", "risk", "agent", "asked by", "whose", "votes", "expires in", "arguments")
    empty = "Nothing waits." if wanted == "pending" else "No approval."
    table(headers, [_row(each, full) for each in page.items], empty, most=None if full else 200)
    if page.next:
        say(f"More: --cursor {page.next}")


@app.command("show")
def show(
    approval_id: ApprovalId,
    full: Annotated[bool, typer.Option("--full", help="All of it, however long.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """One approval: the exact call, who may decide and by when, what was decided, its history."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.get(approval_id)
    if as_json:
        say_json(approval)
    else:
        show_card(approval, full=full)


@app.command("ageing")
def ageing(as_json: AsJson = False, as_name: AsName = None) -> None:
    """How long what waits has waited, by role, person and agent."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.approvals.ageing()
    if as_json:
        say_json(page)
        return
    counted = ("waiting", "to 1 h", "to 1 d", "to 3 d", "older")
    headers = ("role", "assignee", "agent", *counted, "oldest", "next expires in", "then goes to")
    table(headers, [_ageing_row(each) for each in page.items], "Nothing waits.")


@app.command("watch")
def watch(mine: Mine = False, agent: AgentId = None, as_json: AsJson = False, as_name: AsName = None) -> None:
    """The queue, live: a table on a terminal, lines elsewhere, JSON lines with --json; Ctrl-C ends it."""
    with connect(Role.REVIEWER, as_name) as client:
        try:
            watch_approvals(client, screen_for(as_json=as_json), mine=mine, agent=agent)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


_VERBS: tuple[Callable[..., None], ...] = (
    *(decisions.approve, decisions.edit, decisions.reject, decisions.respond, batch.batch, preview.preview),
    *(handover.claim, handover.release, handover.reassign, handover.escalate, handover.withdraw),
)
for verb in _VERBS:
    app.command(verb.__name__)(verb)


def _row(each: Approval, full: bool) -> tuple[object, ...]:
    args = cell(each.args, None)
    whose = f"claimed by {claimed(each)}" if claimed(each) else each.assignee
    return (
        each.id,
        standing(each),
        subject(each),
        each.risk,
        each.agent,
        each.requested_by,
        whose,
        votes_of(each),
        left(each.expires_at) if each.status == "pending" else "",
        args if full else cut(args, _ARGUMENTS_SHOWN),
    )


def _ageing_row(each: Ageing) -> tuple[object, ...]:
    counts = (each.buckets.get(name, 0) for name in _BUCKETS)
    ages = (ago(each.oldest_at), left(each.next_expiry_at))
    return (each.role, each.assignee, each.agent, each.waiting, *counts, *ages, _next(each.fallback))


def _next(fallback: Fallback | None) -> str:
    if fallback is None or not fallback.reviewer or fallback.at is None:
        return (fallback and fallback.reviewer) or ""
    is_due = fallback.at <= datetime.now(UTC)
    return f"{fallback.reviewer}, " + (f"due since {moment(fallback.at)}" if is_due else f"in {left(fallback.at)}")
