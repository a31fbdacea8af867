"""The inbox: pending requests with filters, decisions on several requests together, and the user's own decisions."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError
from perdure.client.approvals import BatchItem
from perdure.client.memory import list_promotions
from perdure.core.agents.prompts import unwrap_result
from perdure.core.approvals.decisions import BULK_REFUSAL, single_decision_reason
from perdure.pages.approvals.decide import seen_revision
from perdure.pages.approvals.filters import DAY_SECONDS, FILTER_NAMES, InboxFilters
from perdure.pages.approvals.page import DECISION_LABELS, DECISION_PAST_LABELS, is_long, reasons_for
from perdure.pages.render import page
from perdure.pages.request import BrowserRequest, CheckedPost, Form, PageProblem, SignedInVisit
from perdure.schemas.approvals import Approval
from perdure.schemas.identity import Me

inbox_router = APIRouter()
PAGE_LIMIT = 25
_MAX_COUNTED = 100
"""Maximum number of proposals that are counted. The page then shows "or more"."""
_FilterValue = Annotated[str, Query(max_length=64)]
MAX_SELECTED = 25
"""One page of the inbox."""
_BULK_DECISIONS = ("approve", "reject")
_ERROR_CODE = re.compile(r"[a-z_]{1,60}")
_REASONS_BY_CODE = {
    "not_in_bulk": BULK_REFUSAL,
    "already_decided": "already decided by another reviewer",
    "already_voted": "you have already voted",
    "approval_expired": "expired",
    "approval_outdated": "the tool or the approval policy has changed since, so the call would not run",
    "approval_revision_stale": "the requester has written since you opened it",
    "digest_differs": "the call has changed since you opened it",
    "rate_limited": "too many decisions within a minute; retry later",
    "turn_stopped": "the turn was stopped",
}
_DECISIONS_PAGE_LIMIT = 25


def requested_filters(
    all: bool = False,
    risk: _FilterValue = "",
    agent: _FilterValue = "",
    tool: _FilterValue = "",
    role: _FilterValue = "",
    expiring: bool = False,
    outdated: bool = False,
) -> InboxFilters:
    """Returns the filters from the address."""
    return InboxFilters(not all, risk, agent, tool, role, expiring, outdated)


@inbox_router.get("/")
async def home(visit: SignedInVisit) -> RedirectResponse:
    """Redirects reviewers and admins to the pending requests, and other users to their conversations."""
    is_reviewer = visit.me is not None and {"reviewer", "admin"}.intersection(visit.me.roles)
    return RedirectResponse("/review" if is_reviewer else "/chat", 303)


@inbox_router.get("/review")
async def inbox(
    visit: SignedInVisit,
    filters: Annotated[InboxFilters, Depends(requested_filters)],
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> HTMLResponse:
    """Shows pending requests, newest first. For the page's script, returns only the part that changes."""
    api, me = visit.api, visit.me or await visit.api.auth.me()
    approvals, counts, unsettled, promotion_count = await asyncio.gather(
        api.approvals.list(
            brief=True,
            limit=PAGE_LIMIT,
            cursor=cursor,
            **filters.api_parameters,
        ),
        api.approvals.counts(expiring_seconds=DAY_SECONDS),
        api.effects.list(limit=1),
        _count_promotions(visit, me),
    )
    return page(
        visit,
        "inbox_table.html" if visit.is_live else "inbox.html",
        approvals=approvals,
        counts=counts,
        unsettled=bool(unsettled.items),
        promotion_count=promotion_count,
        filters=filters,
        is_filtered=filters.is_narrowed,
        sees_all=bool({"reviewer", "admin"}.intersection(me.roles)),
        options={
            name: sorted({*counts.by.get(name, {}), *filter(None, [getattr(filters, name)])}) for name in FILTER_NAMES
        },
        next_page=filters.path(mine=filters.mine, cursor=approvals.next),
        tabs={"mine": filters.path(mine=True), "all": filters.path(mine=False)},
        form_token=me.form_token or "",
    )


async def _count_promotions(visit: BrowserRequest, me: Me) -> str:
    """Returns the number of pending promotions that this user can decide on; empty if there are none."""
    if "admin" not in me.roles:
        return ""
    pending = await visit.api.send(list_promotions(status="pending", limit=_MAX_COUNTED))
    count = sum(each.proposed_by != me.name for each in pending.items)
    return f"{count} or more" if count and pending.next else str(count or "")


bulk_router = APIRouter()
"""Several requests are selected, shown with their exact arguments, then decided, with a result for each."""
_Ids = Annotated[list[str], Query(default_factory=list)]


@bulk_router.get("/review/bulk")
async def review_selection(visit: SignedInVisit, pick: _Ids, decision: str = "") -> HTMLResponse:
    """Shows the selected requests one after the other, for a last check."""
    if not pick:
        raise PageProblem(422, "Nothing is selected. Go back and select the requests to decide on.")
    return await _show_selection(visit, list(dict.fromkeys(pick)), _check_decision(decision))


@bulk_router.post("/review/bulk/decide")
async def decide(post: CheckedPost) -> Response:
    """Decides on each request separately, and redirects to the results."""
    form, choice = post.form, _check_decision(post.form.get("decision"))
    picked = [[*pair.split(":"), "", ""][:3] for pair in form.all("item")]
    if choice == "reject" and not (form.get("comment") or form.get("reason_code")):
        ids = [approval_id for approval_id, _, _ in picked]
        return await _show_selection(post.visit, ids, choice, form, "Enter a reason for the rejection.")
    items: list[BatchItem] = [
        {
            "id": approval_id,
            "digest": digest,
            "revision": seen_revision(revision) or 1,
            "decision": choice,  # type: ignore[typeddict-item]
            "comment": form.raw("comment") or "",
            "reason_code": form.get("reason_code"),
        }
        for approval_id, digest, revision in picked
    ]
    answers = (await post.visit.api.approvals.decide_many(items, idempotency_key=form.get("key"))).items
    results = [("of", f"{each.id}:{each.error['code']}" if each.error else each.id) for each in answers]
    return RedirectResponse("/review/bulk/done?" + urlencode([("decision", choice), *results]), 303)


@bulk_router.get("/review/bulk/done")
async def show_results(visit: SignedInVisit, of: _Ids, decision: str = "") -> HTMLResponse:
    """Shows the current status of each request, and the reason for each rejected decision."""
    choice, codes = (
        _check_decision(decision),
        {approval_id: code for approval_id, _, code in (each.partition(":") for each in of[:MAX_SELECTED])},
    )
    approvals = {approval.id: approval for approval in await _load_approvals(visit, list(codes))}
    refused = {approval_id: _reason_of(code) for approval_id, code in codes.items() if code}
    return page(
        visit,
        "bulk_done.html",
        ids=list(codes),
        shown=approvals,
        refused=refused,
        choice=choice,
        past_labels=DECISION_PAST_LABELS,
    )


async def _show_selection(
    visit: BrowserRequest, ids: Sequence[str], choice: str, form: Form | None = None, reason: str = ""
) -> HTMLResponse:
    if len(ids) > MAX_SELECTED:
        raise PageProblem(422, f"You can decide on at most {MAX_SELECTED} requests at once.")
    selected = await _load_approvals(visit, ids)
    excluded = _excluded_reasons(selected) if choice == "approve" else {}
    return page(
        visit,
        "bulk.html",
        status=422 if reason else 200,
        selected=selected,
        choice=choice,
        decision_labels=DECISION_LABELS,
        past_labels=DECISION_PAST_LABELS,
        reasons=reasons_for(*selected),
        too_long={approval.id for approval in selected if is_long(approval)},
        excluded=excluded,
        reason=reason,
        typed=form or Form(()),
        form_page="/review/bulk?" + urlencode([("decision", choice), *(("pick", approval_id) for approval_id in ids)]),
    )


def _excluded_reasons(selected: Sequence[Approval]) -> dict[str, str]:
    """Returns, by request id, why it cannot be approved together with the others."""
    reasons = {approval.id: single_decision_reason(approval.kind, approval.risk) for approval in selected}
    first = next((approval for approval in selected if not reasons[approval.id]), None)
    for approval in selected:
        if (
            first is not None
            and not reasons[approval.id]
            and (approval.agent, approval.tool) != (first.agent, first.tool)
        ):
            reasons[approval.id] = f"differs from the first request: {first.tool} of {first.agent}"
    return {approval_id: reason for approval_id, reason in reasons.items() if reason}


async def _load_approvals(visit: BrowserRequest, ids: Sequence[str]) -> list[Approval]:
    results = await asyncio.gather(*(visit.api.approvals.get(item) for item in ids), return_exceptions=True)
    for item in results:
        if isinstance(item, BaseException) and not (isinstance(item, ApiError) and item.status in (404, 422)):
            raise item
    return [item for item in results if isinstance(item, Approval)]


def _reason_of(code: str) -> str:
    return _REASONS_BY_CODE.get(code, code.replace("_", " ") if _ERROR_CODE.fullmatch(code) else "refused")


def _check_decision(decision: str) -> str:
    if decision not in _BULK_DECISIONS:
        raise PageProblem(422, "Bulk decisions can only approve or reject.")
    return decision


own_decisions_router = APIRouter()


@own_decisions_router.get("/review/mine")
async def own_decisions(
    visit: SignedInVisit, cursor: Annotated[str | None, Query(max_length=400)] = None
) -> HTMLResponse:
    """Lists the caller's decisions, newest first."""
    decisions = await visit.api.approvals.decided(limit=_DECISIONS_PAGE_LIMIT, cursor=cursor)
    return page(
        visit, "my_decisions.html", decisions=decisions, past_labels=DECISION_PAST_LABELS, result_message=result_message
    )


def result_message(result: str) -> str:
    """Returns a call's result for display: its `message`, if it contains one."""
    try:
        content = unwrap_result(json.loads(result)).result
    except ValueError:  # for example if only the beginning of the result is stored
        return result
    message = content.get("message") if isinstance(content, dict) else None
    return message if isinstance(message, str) and message else result
