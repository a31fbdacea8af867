"""`perdure approvals approve|edit|reject|respond`: one decision on exactly the call that was just shown.

Every decision names the digest of the call and the revision of the request, which this command has shown in full. If
the call has changed since then, or if the requester has written, the API rejects the decision. On a terminal a decision
asks for confirmation (perdure/cli/terminal.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from perdure.cli.approvals.card import differences, is_on_hold, show_arguments, show_details, show_messages
from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import (
    DECIDED,
    EXPIRED,
    OTHER,
    USAGE,
    AsJson,
    AsName,
    EditFailed,
    NoTemporaryFile,
    Yes,
    at_terminal,
    confirm,
    edited_text,
    exit_code_of,
    fail,
    format_iso_time,
    format_time,
    prompt_choice,
    say,
    say_json,
    time_until,
)
from perdure.client import ApiError, Client
from perdure.client.approvals import MAX_BATCH_ITEMS, BatchItem, Decision
from perdure.core.calls.arguments import InvalidArgumentText, check_arguments, parse_object, same_json
from perdure.core.json_schema import outline_schema
from perdure.core.text import is_blank, one_line, pretty_json
from perdure.schemas.approvals import Approval, ItemAnswer, subject

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]
Comment = Annotated[str, typer.Option(metavar="TEXT", help="A comment for the record and for the agent.")]
Digest = Annotated[
    str, typer.Option(metavar="SHA256", help="Decide only if the call has this digest (see `show --json`).")
]
SeenRevision = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Decide only if the requester has not written since this revision."),
]
_UNCHANGED_MESSAGE = "The arguments are unchanged, so nothing was sent; to run the call as it is, use `approve`"
_INVALID_ARGUMENT_CODES = frozenset({"args_invalid", "invalid_input"})
_COMMENT_PREFIX = "//"


@dataclass(frozen=True, slots=True)
class Seen:
    """The digest and revision that the options name. Without them, those that the command has shown are sent."""

    digest: str = ""
    revision: int | None = None


def approve(
    approval_id: ApprovalId,
    comment: Comment = "",
    digest: Digest = "",
    revision: SeenRevision = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Approve exactly this call."""
    with pending_approval(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "approve", Seen(digest, revision), yes=yes, as_json=as_json, comment=comment)


def reject(
    approval_id: ApprovalId,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which is sent to the agent.")] = "",
    reason: Annotated[str, typer.Option(metavar="CODE", help="A reason code from the policy, or your own.")] = "",
    digest: Digest = "",
    revision: SeenRevision = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Reject the request with --comment or --reason. On a terminal, the command offers the policy's reasons."""
    can_prompt = at_terminal() and not (as_json or yes)
    if not (comment.strip() or reason.strip() or can_prompt):
        raise fail("A rejection needs --comment or --reason", USAGE)
    with pending_approval(approval_id, as_name, as_json) as (client, approval):
        if not (comment.strip() or reason.strip()):
            index, comment = prompt_choice("Reason? Enter a number or your own text", approval.reject_reasons)
            reason = "" if index is None else approval.reject_reasons[index]
            if not (comment or reason):
                raise fail("No reason was given; nothing was sent", OTHER)
        _decide(
            client,
            approval,
            "reject",
            Seen(digest, revision),
            yes=yes,
            as_json=as_json,
            comment=comment,
            reason_code=reason,
        )


def edit(
    approval_id: ApprovalId,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="The new arguments as JSON, instead of an editor.")
    ] = None,
    comment: Comment = "",
    digest: Digest = "",
    revision: SeenRevision = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Edit the arguments in $EDITOR and approve the edited call. The changes are shown before they are sent. Invalid
    arguments reopen the editor."""
    seen = Seen(digest, revision)
    with pending_approval(approval_id, as_name, as_json) as (client, approval):
        try:
            if args is not None:
                changed = parse_object(args)
                if same_json(changed, approval.args):
                    raise EditFailed(_UNCHANGED_MESSAGE)
                _send_edit(client, approval, changed, seen, yes=yes, as_json=as_json, comment=comment)
                return
            title = f"Arguments of {subject(approval)}, approval {approval.id}"
            editor = ArgumentEdit(approval.args, approval.args_schema, title, at_terminal() and not as_json)

            def send(changed: dict[str, Any]) -> str | None:
                try:
                    _send_edit(client, approval, changed, seen, yes=yes, as_json=as_json, comment=comment)
                except ApiError as error:
                    if editor.is_interactive and error.code in _INVALID_ARGUMENT_CODES:
                        return error.message
                    raise
                return None

            edit_until_sent(editor, send, say)
        except InvalidArgumentText as argument_error:
            raise fail(f"Invalid arguments: {argument_error}; nothing was sent", USAGE) from None
        except EditFailed as error:
            raise fail(str(error), OTHER if isinstance(error, NoTemporaryFile) else USAGE) from None


def respond(
    approval_id: ApprovalId,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The response that the agent receives instead of the call's result.")
    ],
    digest: Digest = "",
    revision: SeenRevision = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Respond to the agent instead of running the call."""
    if is_blank(text):
        raise fail("TEXT is empty; write the response that the agent receives instead of the call's result", USAGE)
    with pending_approval(approval_id, as_name, as_json) as (client, approval):
        _decide(client, approval, "respond", Seen(digest, revision), yes=yes, as_json=as_json, comment=text)


@contextmanager
def pending_approval(approval_id: str, as_name: str | None, as_json: bool) -> Iterator[tuple[Client, Approval]]:
    """Yields the client and the approval, shown in full. Exits with 5 or 6 if it can no longer be decided."""
    with connect(Role.REVIEWER, as_name) as client:
        yield client, load_and_show(client, approval_id, as_json)


def load_and_show(
    client: Client, approval_id: str, as_json: bool, statuses: frozenset[str] = frozenset({"pending", "outdated"})
) -> Approval:
    """Returns the approval if it has one of these statuses. Shows it in full, unless `as_json` is set.

    Raises: typer.Exit with 5 or 6 otherwise, after a line with the reason.
    """
    approval = client.approvals.get(approval_id)
    if approval.status not in statuses:
        if as_json:
            say_json(approval)
        raise fail(closed_reason(approval), EXPIRED if approval.status == "expired" else DECIDED)
    if not as_json:
        show_details(approval, full=True)
        show_arguments(approval)
    return approval


def closed_reason(approval: Approval) -> str:
    """Returns why a request can no longer be decided: the decision, its reviewer and its time if there is one, and the
    current status."""
    if approval.status == "expired":
        return f"The request expired undecided at {format_time(approval.expires_at)}"
    withdrawn = approval.withdrawal or {}
    if approval.status == "withdrawn" and withdrawn.get("by"):
        return f"The request was withdrawn by {withdrawn['by']} at {format_iso_time(withdrawn.get('at'))}"
    if not approval.decided_by:
        return f"The request is already {approval.status}"
    decided = (approval.decision or {}).get("type", "a decision")
    decided_at = format_time(approval.decided_at)
    return (
        f"The request was already decided: {decided} by {approval.decided_by} at {decided_at}; its status is now "
        f"{approval.status}"
    )


def _send_edit(
    client: Client,
    approval: Approval,
    changed: Mapping[str, Any],
    seen: Seen,
    *,
    yes: bool,
    as_json: bool,
    comment: str,
) -> None:
    if not as_json:
        for line in differences(approval.args, changed):
            say(line)
    _decide(client, approval, "edit", seen, yes=yes, as_json=as_json, args=changed, comment=comment)


def _decide(
    client: Client,
    approval: Approval,
    decision: Decision,
    seen: Seen,
    *,
    yes: bool,
    as_json: bool,
    args: Mapping[str, Any] | None = None,
    comment: str = "",
    reason_code: str = "",
) -> None:
    """Asks for confirmation on a terminal, then sends the digest and the revision that were shown."""
    confirm(f"{decision} this request?", yes=yes, as_json=as_json)
    decided = client.approvals.decide(
        approval.id,
        decision,
        seen.digest or approval.digest,
        revision=seen.revision or approval.revision,
        args=args,
        comment=comment,
        reason_code=reason_code,
    )
    if as_json:
        say_json(decided)
        return
    if decided.is_open:
        say(f"Vote counted: {decided.approving} of {decided.quorum} required approvals; the request is still pending.")
    elif is_on_hold(decided):
        withdraw_command = command("approvals", "withdraw", approval.id)
        say(f"The call starts at {time_until(decided.ready_at)}. To withdraw the approval: {withdraw_command}")
    say(f"{decided.status}: {subject(approval)} ({approval.id})")


@dataclass(slots=True)
class ArgumentEdit:
    """A reviewer's attempts to edit the arguments of one call.

    The file is JSON, because its text is then exactly what runs: no text becomes a date, a number or `false`, and
    invisible characters are written as escapes. A reviewer at a terminal gets the tool's schema above it, in lines that
    begin with `//`. A JSON string cannot contain a line end, so such a line is never part of a value. If the editor is
    a program, it gets the JSON alone, and one attempt.
    """

    before: Mapping[str, Any]
    schema: Mapping[str, Any]
    title: str
    """Title of the file for a reviewer."""
    is_interactive: bool
    _text: str = ""
    """The last text that was written, without the comments."""

    def open_editor(self, fault: str = "") -> dict[str, Any]:
        """Opens the editor and returns the edited arguments. After a `fault` it opens on the last text, with the fault
        above.

        Raises: InvalidArgumentText if the arguments are invalid; EditFailed if there is no editor, if it failed, or
        if nothing was changed.
        """
        text = self._text or pretty_json(self.before) + "\n"
        name = "arguments.jsonc" if self.is_interactive else "arguments.json"
        edited = without_comments(edited_text(self._heading(fault) + text, name, "--args JSON"))
        if edited.strip() == text.strip():
            prefix = "The text still has the same error. " if fault else ""
            raise EditFailed(f"{prefix}{_UNCHANGED_MESSAGE}")
        self._text = edited
        return self.read(edited)

    def read(self, text: str) -> dict[str, Any]:
        """Reads arguments from JSON text and checks them against the tool's schema.

        Raises: InvalidArgumentText if they are invalid; EditFailed if they equal the arguments of the call.
        """
        args = parse_object(text)
        checked = check_arguments(args, self.schema)
        if checked.fault is not None:
            raise InvalidArgumentText(checked.fault)
        if same_json(args, self.before):
            raise EditFailed(_UNCHANGED_MESSAGE)
        return args

    def _heading(self, fault: str) -> str:
        if not self.is_interactive:
            return ""
        lines = [f"{self.title}. Lines that start with {_COMMENT_PREFIX} are ignored."]
        lines += ["Leave the text unchanged to send nothing.", *(f"  {line}" for line in outline_schema(self.schema))]
        if fault:
            lines += ["", f"NOT SENT: {one_line(fault, None)}"]
        return "".join(f"{_COMMENT_PREFIX} {line}".rstrip() + "\n" for line in lines)


def edit_until_sent(
    edit: ArgumentEdit, send: Callable[[dict[str, Any]], str | None], report: Callable[[str], None]
) -> None:
    """Opens the editor until `send` returns no fault. A program as the editor has one attempt.

    Raises: InvalidArgumentText; EditFailed.
    """
    fault = ""
    while True:
        try:
            rejection = send(edit.open_editor(fault))
            if rejection is None:
                return
            raise InvalidArgumentText(rejection)
        except InvalidArgumentText as error:
            if not edit.is_interactive:
                raise
            fault = str(error)
            report(f"Not sent: {fault}")


def without_comments(text: str) -> str:
    """Returns the lines that are not comments."""
    return (
        "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(_COMMENT_PREFIX)).strip("\n") + "\n"
    )


class BatchDecision(StrEnum):
    """Decisions that are possible on several requests together. Only calls of low risk and of one tool can be approved
    together. The API rejects each of the others by itself."""

    APPROVE = "approve"
    REJECT = "reject"


def batch(
    decision: Annotated[
        BatchDecision, typer.Argument(metavar="DECISION", help="approve (low-risk calls of one tool only) or reject.")
    ],
    approval_ids: Annotated[list[str], typer.Argument(metavar="APPROVAL", help="The approvals' ids, at most 100.")],
    comment: Annotated[str, typer.Option(metavar="TEXT", help="A comment for the record and for the agents.")] = "",
    reason: Annotated[str, typer.Option(metavar="CODE", help="A reason code from the policy, or your own.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Decide on several requests together. Shows each call, asks once (see --yes), and prints each result."""
    if decision is BatchDecision.REJECT and not (comment.strip() or reason.strip()):
        raise fail("A rejection needs --comment or --reason", USAGE)
    unique_ids = list(dict.fromkeys(approval_ids))
    if len(unique_ids) > MAX_BATCH_ITEMS:
        raise fail(f"{len(unique_ids)} ids are too many; the limit is {MAX_BATCH_ITEMS}", USAGE)
    with connect(Role.REVIEWER, as_name) as client:
        requests = {each: _read_pending(client, each) for each in unique_ids}
        pending = [each for each in requests.values() if isinstance(each, Approval)]
        if not as_json:
            _print_requests(pending)
        if pending:
            confirm(f"{decision.value} {len(pending)} requests?", yes=yes, as_json=as_json)
            items = [_batch_item(each, decision, comment, reason) for each in pending]
            decided = {each.id: each for each in client.approvals.decide_many(items).items}
        else:
            decided = {}
    final = [decided.get(each.id, each) for each in requests.values()]
    print_results([each for each in final if isinstance(each, ItemAnswer)], as_json)


def _read_pending(client: Client, approval_id: str) -> Approval | ItemAnswer:
    """Returns the approval if it is pending, else an error item with the reason."""
    try:
        approval = client.approvals.get(approval_id)
    except ApiError as error:
        if error.status not in (404, 422):
            raise
        return error_item(approval_id, error.code, error.message, error.status)
    if approval.is_open:
        return approval
    if approval.status == "expired":
        return error_item(approval_id, "approval_expired", closed_reason(approval), 410)
    return error_item(approval_id, "already_decided", closed_reason(approval), 409)


def error_item(approval_id: str, code: str, message: str, status: int) -> ItemAnswer:
    """Returns the error item that the API would return."""
    return ItemAnswer(id=approval_id, error={"code": code, "message": message, "details": {}, "status": status})


def _print_requests(approvals: list[Approval]) -> None:
    for approval in approvals:
        say(f"{subject(approval)} (risk {approval.risk}), agent {approval.agent}, requested by {approval.requested_by}")
        show_messages(approval)
        show_arguments(approval)
        say()


def _batch_item(approval: Approval, decision: BatchDecision, comment: str, reason: str) -> BatchItem:
    value: Literal["approve", "reject"] = "approve" if decision is BatchDecision.APPROVE else "reject"
    item = BatchItem(id=approval.id, digest=approval.digest, revision=approval.revision, decision=value)
    if comment:
        item["comment"] = comment
    if reason:
        item["reason_code"] = reason
    return item


def print_results(results: Iterable[ItemAnswer], as_json: bool) -> None:
    """Shows the result of each item as soon as there is one; as JSON, all together. Exits with the code that all
    failures share, or with 1 if their codes differ."""
    items, codes = [], set()
    for result in results:
        items.append(result.model_dump(mode="json"))
        if not as_json:
            say(f"{result.id}  {result.status or _error_text(result.error or {})}")
        if result.error:
            codes.add(exit_code_of(str(result.error.get("code")), result.error.get("status")))
    if as_json:
        say_json({"items": items})
    if codes:
        raise typer.Exit(codes.pop() if len(codes) == 1 else OTHER)


def _error_text(error: dict[str, Any]) -> str:
    return one_line(f"not done: {error.get('message')} ({error.get('code')})", None)
