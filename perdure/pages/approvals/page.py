"""The page of one approval: the exact call, then what a reviewer needs for the decision, then the rest."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from perdure.core.text import escape_terminal
from perdure.pages.approvals.argument_form import fields_of
from perdure.pages.approvals.differences import DiffLine, differences
from perdure.pages.approvals.filters import InboxFilters, filters_of_visit
from perdure.pages.render import page
from perdure.pages.request import BrowserRequest, DraftPost, Form, SignedInVisit
from perdure.schemas.approvals import Approval
from perdure.schemas.identity import Me

LONG_CHARACTERS = 6_000
"""Longer arguments must be opened before a decision. Counted as JSON, with hidden characters written out."""
_EXCERPT_CHARACTERS = 1_500
_MAX_SEARCHED = 100
"""Maximum approvals that are searched for the next and the previous one."""
DEFAULT_REJECT_REASONS = ("The arguments are wrong.", "This is not needed.", "This is not allowed here.")
"""Reasons for a rejection if the agent's policy offers none."""
DECISION_LABELS = {"approve": "Approve", "edit": "Edit", "reject": "Reject", "respond": "Respond"}
DECISION_PAST_LABELS = {
    "approve": "approved",
    "edit": "edited and approved",
    "reject": "rejected",
    "respond": "responded to",
}


@dataclass(frozen=True, slots=True)
class RejectedForm:
    """A form of the page that was not carried out, and the reason."""

    form: Form | None = None
    reason: str = ""
    faults: Mapping[str, str] | None = None
    """Messages by argument."""


async def show_approval(
    visit: BrowserRequest, approval: Approval, rejected: RejectedForm | None = None, *, status: int = 200
) -> HTMLResponse:
    """Returns the page of this approval, with what was typed before."""
    rejected = rejected or RejectedForm()
    text = _approval_json(approval)
    is_opened = not is_long(approval) or _shows_all_arguments(visit, rejected)
    args = (approval.decision or {}).get("args") or approval.args
    before = (approval.pending_edit or {}).get("args_before") or (approval.args if args is not approval.args else None)
    filters = filters_of_visit(visit, rejected.form)
    previous, following = await _neighboring_approvals(visit, approval, filters)
    return page(
        visit,
        "approval.html",
        status=status,
        approval=approval,
        args=args,
        is_opened=is_opened,
        long_characters=len(text),
        excerpt=text[:_EXCERPT_CHARACTERS],
        reviewer_changes=differences(before, args) if before is not None else None,
        changes_since_last=compare_with_last(approval, args),
        preview_lines=preview_differences(approval),
        schema_changes=schema_differences(approval),
        fields=fields_of(approval.args, approval.args_schema, rejected.form, rejected.faults),
        allowed=approval.allowed_decisions if is_opened else [],
        rejected=rejected,
        typed=rejected.form or Form(()),
        previous=previous,
        following=following,
        past_labels=DECISION_PAST_LABELS,
        reasons=reasons_for(approval),
        roles=visit.me.roles if visit.me else [],
        can_be_withdrawn=can_be_withdrawn(approval, visit.me),
        filters=filters,
        list_query=filters.list_query,
        form_page=f"/review/{approval.id}{filters.list_query}",
    )


def can_be_withdrawn(approval: Approval, me: Me | None) -> bool:
    """Returns whether to show the withdrawal form: the approved call has not started, and the user has another role
    besides requester."""
    is_approved_call = approval.kind == "approval" and approval.status in ("approved", "edited")
    return is_approved_call and me is not None and bool(set(me.roles) - {"requester"})


def reasons_for(*approvals: Approval) -> list[str]:
    """Returns the predefined reasons for rejecting these approvals."""
    return list(dict.fromkeys(reason for each in approvals for reason in each.reject_reasons)) or list(
        DEFAULT_REJECT_REASONS
    )


def is_long(approval: Approval) -> bool:
    """Returns whether the arguments must be opened before a decision."""
    text = _approval_json(approval)
    return len(text) > LONG_CHARACTERS or len(escape_terminal(text)) > LONG_CHARACTERS


def _approval_json(approval: Approval) -> str:
    """Returns everything that the decision is about, as JSON."""
    content = approval.args if approval.kind != "checkpoint" else {"result": approval.result, "args": approval.args}
    return json.dumps(content, indent=2, ensure_ascii=False)


def compare_with_last(approval: Approval, args: Mapping[str, Any]) -> list[DiffLine] | None:
    """Compares the call with the last approved call of its tool. Returns None for the first one."""
    last_approved = approval.last_approved
    return differences(last_approved["args"], args) if last_approved else None


def preview_differences(approval: Approval) -> list[DiffLine] | None:
    """Returns what the call would change according to the tool's preview.

    Returns None if there is no preview or if it failed, and an empty list if nothing would change.
    """
    preview = approval.preview
    return differences(preview["before"], preview["after"]) if preview and not preview.get("fault") else None


def schema_differences(approval: Approval) -> list[DiffLine] | None:
    """Returns how a new version of the tool changes its parameters, or None if it does not."""
    change = (approval.changes or {}).get("parameters")
    return differences(change["before"], change["after"]) if change else None


def _shows_all_arguments(visit: BrowserRequest, rejected: RejectedForm) -> bool:
    """Returns whether the reviewer has opened all arguments, on this page or before sending the form."""
    return visit.request.query_params.get("whole") == "1" or (
        rejected.form is not None and rejected.form.get("whole") == "1"
    )


async def _neighboring_approvals(
    visit: BrowserRequest, approval: Approval, filters: InboxFilters
) -> tuple[Approval | None, Approval | None]:
    """Returns the approvals before and after this one in the list that it was opened from.

    If it is no longer in that list, the following one is the first of the list.
    """
    listing = visit.api.approvals.list(brief=True, limit=_MAX_SEARCHED, **filters.api_parameters)
    approvals = (await listing).items
    index = next((position for position, listed in enumerate(approvals) if listed.id == approval.id), None)
    if index is None:
        return None, approvals[0] if approvals else None
    return approvals[index - 1] if index else None, approvals[index + 1] if index + 1 < len(approvals) else None


router = APIRouter()


@router.get("/review/{approval_id}")
async def approval(visit: SignedInVisit, approval_id: str) -> HTMLResponse:
    """Shows the page of an approval."""
    return await show_approval(visit, await visit.api.approvals.get(approval_id))


@router.post("/review/{approval_id}/draft")
async def draft(post: DraftPost, approval_id: str) -> HTMLResponse:
    """Shows the page again with the text that was typed. Nothing is sent."""
    approval = await post.visit.api.approvals.get(approval_id)
    reason = "Nothing has been sent yet. Your text is below."
    if not approval.allowed_decisions:
        reason = "Nothing was sent: you cannot decide on this request, or it is already decided. Your text is below."
    return await show_approval(post.visit, approval, RejectedForm(post.form, reason))


@router.get("/review/{approval_id}/state")
async def state(
    visit: SignedInVisit,
    approval_id: str,
    version: int,
    status: Annotated[str, Query(max_length=40)],
    revision: int = 1,
) -> Response:
    """Returns what has changed since the page was rendered, for its script; 204 if nothing has."""
    approval = await visit.api.approvals.get(approval_id)
    if (approval.version, approval.status) == (version, status):
        return Response(status_code=204)
    list_query, me = filters_of_visit(visit).list_query, visit.me or await visit.api.auth.me()
    return page(
        visit,
        "approval_update.html",
        approval=approval,
        revision=revision,
        was_open=status in ("pending", "outdated"),
        list_query=list_query,
        could_decide=bool(set(me.roles) - {"requester"}),
        can_be_withdrawn=can_be_withdrawn(approval, me),
    )
