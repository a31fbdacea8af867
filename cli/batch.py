"""`perdure approvals batch`: the same decision on several, each for itself.

Approved together are only calls of low risk and of one tool; the API refuses the others, each by itself.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from cli.approval_card import subject
from cli.asking import Yes, confirm
from cli.connection import Role, connect
from cli.decisions import too_late
from cli.failures import OTHER, USAGE, exit_code_of
from cli.frozen_call import show_arguments
from cli.screen import AsJson, AsName, fail, say, say_json
from perdure.client import ApiError, Approval, Client, ItemAnswer
from perdure.client.review_calls import MOST_IN_A_BATCH, Item
from policy.printable import one_line


class Together(StrEnum):
    """What may be decided of several at once."""

    APPROVE = "approve"
    REJECT = "reject"


def batch(
    decision: Annotated[Together, typer.Argument(help="approve (low risk and one tool only) or reject.")],
    approval_ids: Annotated[list[str], typer.Argument(metavar="APPROVAL...", help="Their ids, at most 100.")],
    comment: Annotated[str, typer.Option(help="For the record, and for the agents.")] = "",
    reason: Annotated[str, typer.Option(metavar="CODE", help="A reason of the policy, or one of your own.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Decide on several at once: shows each call, asks once (see --yes), and tells what became of each."""
    if decision is Together.REJECT and not (comment.strip() or reason.strip()):
        raise fail("a rejection needs --comment or --reason", USAGE)
    wanted = list(dict.fromkeys(approval_ids))
    if len(wanted) > MOST_IN_A_BATCH:
        raise fail(f"{len(wanted)} are too many at once; {MOST_IN_A_BATCH} at most", USAGE)
    with connect(Role.REVIEWER, as_name) as client:
        answers = {each: _read(client, each) for each in wanted}
        waiting = [each for each in answers.values() if isinstance(each, Approval)]
        if not as_json:
            _show(waiting)
        if waiting:
            confirm(f"{decision.value} {len(waiting)}?", yes=yes, as_json=as_json)
            items = [_item(each, decision, comment, reason) for each in waiting]
            decided = {each.id: each for each in client.approvals.decide_many(items).items}
        else:
            decided = {}
    final = [decided.get(each.id, each) for each in answers.values()]
    _tell([each for each in final if isinstance(each, ItemAnswer)], as_json)


def _read(client: Client, approval_id: str) -> Approval | ItemAnswer:
    """The approval where it waits, else what to say of it."""
    try:
        approval = client.approvals.get(approval_id)
    except ApiError as error:
        if error.status not in (404, 422):
            raise
        return _refused(approval_id, error.code, error.message, error.status)
    if approval.status == "pending":
        return approval
    if approval.status == "expired":
        return _refused(approval_id, "approval_expired", too_late(approval), 410)
    return _refused(approval_id, "already_decided", too_late(approval), 409)


def _refused(approval_id: str, code: str, message: str, status: int) -> ItemAnswer:
    """As the API would have answered."""
    return ItemAnswer(id=approval_id, error={"code": code, "message": message, "details": {}, "status": status})


def _show(waiting: list[Approval]) -> None:
    for approval in waiting:
        say(f"{subject(approval)} (risk {approval.risk}) of {approval.agent}, asked for by {approval.requested_by}")
        show_arguments(approval)
        say()


def _item(approval: Approval, decision: Together, comment: str, reason: str) -> Item:
    word: Literal["approve", "reject"] = "approve" if decision is Together.APPROVE else "reject"
    item = Item(id=approval.id, digest=approval.digest, decision=word)
    if comment:
        item["comment"] = comment
    if reason:
        item["reason_code"] = reason
    return item


def _tell(answers: list[ItemAnswer], as_json: bool) -> None:
    """What became of each; leaves with the one code that all failures share, or 1."""
    if as_json:
        say_json({"items": [each.model_dump(mode="json") for each in answers]})
    else:
        for each in answers:
            say(f"{each.id}  {each.status or _why_not(each.error or {})}")
    codes = {exit_code_of(str(each.error.get("code")), each.error.get("status")) for each in answers if each.error}
    if codes:
        raise typer.Exit(codes.pop() if len(codes) == 1 else OTHER)


def _why_not(error: dict[str, Any]) -> str:
    return one_line(f"not done: {error.get('message')} ({error.get('code')})", None)
