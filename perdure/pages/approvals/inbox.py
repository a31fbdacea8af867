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
from perdure.core.approvals.decisions import NOT_IN_BULK, single_decision_reason
from perdure.pages.approvals.filters import DAY_SECONDS, KINDS, InboxFilters
from perdure.pages.approvals.page import PAST, PRESENT, is_long, reasons_for
from perdure.pages.render import page
from perdure.pages.request import BrowserRequest, Form, PageProblem, Posted, Visitor
from perdure.schemas.approvals import Approval
from perdure.schemas.identity import Me

inbox_router = APIRouter()
PAGE_LIMIT = 25
_COUNTED = 100
"""Maximum number of proposals that are counted. The page then shows "or more"."""
_Name = Annotated[str, Query(max_length=64)]


def asked_for(
    all: bool = False, risk: _Name = "", agent: _Name = "", tool: _Name = "", role: _Name = "", expiring: bool = False
) -> InboxFilters:
    """Returns the filters from the address."""
    return InboxFilters(not all, risk, agent, tool, role, expiring)


@inbox_router.get("/")
async def home(visit: Visitor) -> RedirectResponse:
    """Redirects reviewers and admins to the pending requests, and other users to their conversations."""
    decides = visit.me is not None and {"reviewer", "admin"}.intersection(visit.me.roles)
    return RedirectResponse("/review" if decides else "/chat", 303)


@inbox_router.get("/review")
async def inbox(
    visit: Visitor,
    selection: Annotated[InboxFilters, Depends(asked_for)],
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> HTMLResponse:
    """Shows pending requests, newest first. For the page's script, returns only the part that changes."""
    api, me = visit.api, visit.me or await visit.api.auth.me()
    found, counts, unsettled, proposed = await asyncio.gather(
        api.approvals.list(
            status="pending",
            brief=True,
            limit=PAGE_LIMIT,
            cursor=cursor,
            **selection.filters,
        ),
        api.approvals.counts(expiring_seconds=DAY_SECONDS),
        api.effects.list(limit=1),
        _count_promotions(visit, me),
    )
    return page(
        visit,
        "inbox_table.html" if visit.is_live else "inbox.html",
        found=found,
        counts=counts,
        unsettled=bool(unsettled.items),
        proposed=proposed,
        asked=selection,
        narrowed=selection.narrowed,
        sees_all=bool({"reviewer", "admin"}.intersection(me.roles)),
        options={kind: sorted({*counts.by.get(kind, {}), *filter(None, [getattr(selection, kind)])}) for kind in KINDS},
        further=selection.path(mine=selection.mine, cursor=found.next),
        tabs={"mine": selection.path(mine=True), "all": selection.path(mine=False)},
        form_token=me.form_token or "",
    )


async def _count_promotions(visit: BrowserRequest, me: Me) -> str:
    """Returns the number of pending promotions that this user can decide on; empty if there are none."""
    if "admin" not in me.roles:
        return ""
    waiting = await visit.api.send(list_promotions(status="pending", limit=_COUNTED))
    count = sum(each.proposed_by != me.name for each in waiting.items)
    return f"{count} or more" if count and waiting.next else str(count or "")


# Several requests are selected, shown with their exact arguments, then decided, with a result for each.
bulk_router = APIRouter()
MAX_SELECTED = 25
"""One page of the inbox."""
_BULK_DECISIONS = ("approve", "reject")
_CODE = re.compile(r"[a-z_]{1,60}")
_REASONS_BY_CODE = {
    "not_in_bulk": NOT_IN_BULK,
    "already_decided": "already decided by another reviewer",
    "already_voted": "you have already voted",
    "approval_expired": "expired",
    "approval_outdated": "the tool or the approval policy has changed since, so the call would not run",
    "digest_differs": "the call has changed since you opened it",
    "rate_limited": "too many decisions within a minute; retry later",
    "turn_stopped": "the turn was stopped",
}
_Many = Annotated[list[str], Query(default_factory=list)]


@bulk_router.get("/review/bulk")
async def look(visit: Visitor, pick: _Many, decision: str = "") -> HTMLResponse:
    """Shows the selected requests one after the other, for a last check."""
    if not pick:
        raise PageProblem(422, "Nothing is selected. Go back and select the requests to decide on.")
    return await _show_selection(visit, list(dict.fromkeys(pick)), _check_decision(decision))


@bulk_router.post("/review/bulk/decide")
async def decide(post: Posted) -> Response:
    """Decides on each request separately, and redirects to the results."""
    form, taken = post.form, _check_decision(post.form.get("decision"))
    pairs = [pair.partition(":") for pair in form.all("item")]
    if taken == "reject" and not (form.get("comment") or form.get("reason_code")):
        ids = [found for found, _, _ in pairs]
        return await _show_selection(post.visit, ids, taken, form, "Enter a reason for the rejection.")
    items: list[BatchItem] = [
        {
            "id": found,
            "digest": digest,
            "decision": taken,  # type: ignore[typeddict-item]
            "comment": form.whole("comment") or "",
            "reason_code": form.get("reason_code"),
        }
        for found, _, digest in pairs
    ]
    answers = (await post.visit.api.approvals.decide_many(items, idempotency_key=form.get("key"))).items
    results = [("of", f"{each.id}:{each.error['code']}" if each.error else each.id) for each in answers]
    return RedirectResponse("/review/bulk/done?" + urlencode([("decision", taken), *results]), 303)


@bulk_router.get("/review/bulk/done")
async def done(visit: Visitor, of: _Many, decision: str = "") -> HTMLResponse:
    """Shows the current status of each request, and the reason for each rejected decision."""
    taken, codes = (
        _check_decision(decision),
        {found: code for found, _, code in (each.partition(":") for each in of[:MAX_SELECTED])},
    )
    shown = {approval.id: approval for approval in await _load_approvals(visit, list(codes))}
    refused = {found: _reason_of(code) for found, code in codes.items() if code}
    return page(visit, "bulk_done.html", ids=list(codes), shown=shown, refused=refused, taken=taken, past=PAST)


async def _show_selection(
    visit: BrowserRequest, ids: Sequence[str], taken: str, form: Form | None = None, why: str = ""
) -> HTMLResponse:
    if len(ids) > MAX_SELECTED:
        raise PageProblem(422, f"You can decide on at most {MAX_SELECTED} requests at once.")
    picked = await _load_approvals(visit, ids)
    apart = _excluded_reasons(picked) if taken == "approve" else {}
    return page(
        visit,
        "bulk.html",
        status=422 if why else 200,
        picked=picked,
        taken=taken,
        present=PRESENT,
        past=PAST,
        reasons=reasons_for(*picked),
        long={approval.id for approval in picked if is_long(approval)},
        apart=apart,
        why=why,
        typed=form or Form(()),
        at="/review/bulk?" + urlencode([("decision", taken), *(("pick", each) for each in ids)]),
    )


def _excluded_reasons(picked: Sequence[Approval]) -> dict[str, str]:
    """Returns, by request id, why it cannot be approved together with the others."""
    why = {each.id: single_decision_reason(each.kind, each.risk) for each in picked}
    first = next((each for each in picked if not why[each.id]), None)
    for each in picked:
        if first is not None and not why[each.id] and (each.agent, each.tool) != (first.agent, first.tool):
            why[each.id] = f"differs from the first request: {first.tool} of {first.agent}"
    return {found: words for found, words in why.items() if words}


async def _load_approvals(visit: BrowserRequest, ids: Sequence[str]) -> list[Approval]:
    found = await asyncio.gather(*(visit.api.approvals.get(each) for each in ids), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not (isinstance(each, ApiError) and each.status in (404, 422)):
            raise each
    return [each for each in found if isinstance(each, Approval)]


def _reason_of(code: str) -> str:
    return _REASONS_BY_CODE.get(code, code.replace("_", " ") if _CODE.fullmatch(code) else "refused")


def _check_decision(decision: str) -> str:
    if decision not in _BULK_DECISIONS:
        raise PageProblem(422, "Bulk decisions can only approve or reject.")
    return decision


own_decisions_router = APIRouter()
_DECISIONS_PAGE_LIMIT = 25


@own_decisions_router.get("/review/mine")
async def mine(visit: Visitor, cursor: Annotated[str | None, Query(max_length=400)] = None) -> HTMLResponse:
    """Lists the caller's decisions, newest first."""
    found = await visit.api.approvals.decided(limit=_DECISIONS_PAGE_LIMIT, cursor=cursor)
    return page(visit, "mine.html", found=found, past=PAST, result_message=result_message)


def result_message(result: str) -> str:
    """Returns a call's result for display: its `message`, if it contains one."""
    try:
        read = unwrap_result(json.loads(result)).result
    except ValueError:  # for example if only the beginning of the result is stored
        return result
    message = read.get("message") if isinstance(read, dict) else None
    return message if isinstance(message, str) and message else result
