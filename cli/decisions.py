"""`perdure approvals approve|edit|reject|respond`: one decision on exactly what has just been shown.

Every decision names the digest of the call that this command has shown, whole: if the call were another by then, the
API would refuse. On a terminal a decision asks once more (asking.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from cli.approval_card import held, show_facts, subject
from cli.argument_edit import ArgumentEdit, settled
from cli.asking import Yes, at_terminal, chosen, confirm
from cli.connection import Role, command, connect
from cli.editor import EditFailed, NoTemporaryFile
from cli.failures import DECIDED, EXPIRED, OTHER, USAGE
from cli.frozen_call import differences, show_arguments
from cli.screen import AsJson, AsName, fail, moment, say, say_json, time_told, until
from perdure.client import ApiError, Approval, Client
from perdure.client.review_calls import Decision
from policy.argument_text import Unfit, parsed, same
from policy.text import is_blank

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]
Comment = Annotated[str, typer.Option(help="For the record, and for the agent.")]
Digest = Annotated[str, typer.Option(help="Decide only on the call with this digest, seen in `show --json`.")]
_REFUSED_ARGUMENTS = frozenset({"args_invalid", "invalid_input"})


def approve(
    approval_id: ApprovalId,
    comment: Comment = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let exactly this call run."""
    with undecided(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "approve", digest, yes=yes, as_json=as_json, comment=comment)


def reject(
    approval_id: ApprovalId,
    comment: Annotated[str, typer.Option(help="Why not; the agent is told.")] = "",
    reason: Annotated[str, typer.Option(metavar="CODE", help="A reason of the policy, or one of your own.")] = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Do not let it run. A --comment or a --reason is needed; a terminal offers the policy's reasons."""
    asks = at_terminal() and not (as_json or yes)
    if not (comment.strip() or reason.strip() or asks):
        raise fail("a rejection needs --comment or --reason", USAGE)
    with undecided(approval_id, as_name, as_json) as (client, approval):
        if not (comment.strip() or reason.strip()):
            place, comment = chosen("Why not? A number, or your own words", approval.reject_reasons)
            reason = "" if place is None else approval.reject_reasons[place]
            if not (comment or reason):
                raise fail("without a reason nothing was sent", OTHER)
        _decide(client, approval, "reject", digest, yes=yes, as_json=as_json, comment=comment, reason_code=reason)


def edit(
    approval_id: ApprovalId,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="The new arguments, instead of an editor.")] = None,
    comment: Comment = "",
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let it run with other arguments: $EDITOR opens on them, again where they do not fit; shows what you changed."""
    with undecided(approval_id, as_name, as_json) as (client, approval):
        try:
            if args is not None:
                changed = parsed(args)
                if same(changed, approval.args):
                    raise EditFailed("nothing is changed, so nothing was sent; to let it run as it is, approve it")
                _send_edit(client, approval, changed, digest, yes=yes, as_json=as_json, comment=comment)
                return
            title = f"The arguments of {subject(approval)}, approval {approval.id}"
            attempts = ArgumentEdit(approval.args, approval.args_schema, title, at_terminal() and not as_json)

            def send(changed: dict[str, Any]) -> str | None:
                try:
                    _send_edit(client, approval, changed, digest, yes=yes, as_json=as_json, comment=comment)
                except ApiError as error:
                    if attempts.by_person and error.code in _REFUSED_ARGUMENTS:
                        return error.message
                    raise
                return None

            settled(attempts, send, say)
        except Unfit as unfit:
            raise fail(f"{unfit}; nothing was sent", USAGE) from None
        except NoTemporaryFile as error:
            raise fail(str(error), OTHER) from None
        except EditFailed as error:
            raise fail(str(error), USAGE) from None


def respond(
    approval_id: ApprovalId,
    text: Annotated[str, typer.Argument(help="What to tell the agent instead of running the call.")],
    digest: Digest = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Answer the agent instead of letting the call run."""
    if is_blank(text):
        raise fail("TEXT is empty: say what to tell the agent instead of running the call", USAGE)
    with undecided(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "respond", digest, yes=yes, as_json=as_json, comment=text)


@contextmanager
def undecided(approval_id: str, as_name: str | None, as_json: bool) -> Iterator[tuple[Client, Approval]]:
    """The approval, shown whole; leaves with 5 or 6 where there is nothing to decide any more."""
    with connect(Role.REVIEWER, as_name) as client:
        yield client, show_open(client, approval_id, as_json)


def show_open(
    client: Client, approval_id: str, as_json: bool, statuses: frozenset[str] = frozenset({"pending"})
) -> Approval:
    """The approval in one of these statuses, shown whole, but for `as_json`.

    Raises: typer.Exit with 5 or 6, after a line that says why it is too late.
    """
    approval = client.approvals.get(approval_id)
    if approval.status not in statuses:
        if as_json:
            say_json(approval)
        raise fail(too_late(approval), EXPIRED if approval.status == "expired" else DECIDED)
    if not as_json:
        show_facts(approval, full=True)
        show_arguments(approval)
    return approval


def too_late(approval: Approval) -> str:
    """Who decided what and when, or that nobody did, and what it is by now."""
    if approval.status == "expired":
        return f"too late: it expired undecided at {moment(approval.expires_at)}"
    withdrawn = approval.withdrawal or {}
    if approval.status == "withdrawn" and withdrawn.get("by"):
        return f"too late: withdrawn by {withdrawn['by']} at {time_told(withdrawn.get('at'))}"
    if not approval.decided_by:
        return f"too late: it is {approval.status}"
    decided = (approval.decision or {}).get("type", "a decision")
    when = moment(approval.decided_at)
    return f"too late: {decided} by {approval.decided_by} at {when}; it is {approval.status} now"


def _send_edit(
    client: Client,
    approval: Approval,
    changed: Mapping[str, Any],
    digest: str,
    *,
    yes: bool,
    as_json: bool,
    comment: str,
) -> None:
    if not as_json:
        for line in differences(approval.args, changed):
            say(line)
    _decide(client, approval, "edit", digest, yes=yes, as_json=as_json, args=changed, comment=comment)


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
    confirm(f"{decision} this?", yes=yes, as_json=as_json)
    decided = client.approvals.decide(
        approval.id, decision, digest or approval.digest, args=args, comment=comment, reason_code=reason_code
    )
    if as_json:
        say_json(decided)
        return
    if decided.status == "pending":
        say(f"Your vote counts: {decided.approving} of {decided.quorum} that are needed; it still waits.")
    elif held(decided):
        back = command("approvals", "withdraw", approval.id)
        say(f"It starts at {until(decided.ready_at)}. To take it back: {back}")
    say(f"{decided.status}: {subject(approval)} ({approval.id})")
