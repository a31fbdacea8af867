"""Many decisions at once: each of the picked shown with its exact arguments, then decided, with a result for each."""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError, Approval
from perdure.client.review_calls import Item
from policy.bulk import NOT_IN_BULK, alone
from reviewer.approval_page import PAST, PRESENT, is_long, reasons_for
from reviewer.forms import Form
from reviewer.problems import PageProblem
from reviewer.view import page
from reviewer.visit import Posted, Visit, Visitor

router = APIRouter()
MOST = 25
"""One page of the inbox."""
_TOGETHER = ("approve", "reject")
_CODE = re.compile(r"[a-z_]{1,60}")
_WHY_NOT = {
    "not_in_bulk": NOT_IN_BULK,
    "already_decided": "somebody decided before you",
    "already_voted": "your vote is there already",
    "approval_expired": "its time was over",
    "approval_outdated": "its tool or the agent's policy has changed since, so it would not run",
    "digest_differs": "the call has changed since you looked at it",
    "rate_limited": "too many decisions in a minute; decide on it a little later",
    "turn_stopped": "its turn was stopped",
}
_Many = Annotated[list[str], Query(default_factory=list)]


@router.get("/review/bulk")
async def look(visit: Visitor, pick: _Many, decision: str = "") -> HTMLResponse:
    """What was picked, one after the other, to be looked at once more."""
    if not pick:
        raise PageProblem(422, "Nothing was picked. Go back and pick what you want to decide on.")
    return await _look(visit, list(dict.fromkeys(pick)), _known(decision))


@router.post("/review/bulk/decide")
async def decide(post: Posted) -> Response:
    """Decide on each for itself, and go on to what became of each."""
    form, taken = post.form, _known(post.form.get("decision"))
    pairs = [pair.partition(":") for pair in form.all("item")]
    if taken == "reject" and not (form.get("comment") or form.get("reason_code")):
        ids = [found for found, _, _ in pairs]
        return await _look(post.visit, ids, taken, form, "Say why: a rejection needs a reason.")
    items: list[Item] = [
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
    became = [("of", f"{each.id}:{each.error['code']}" if each.error else each.id) for each in answers]
    return RedirectResponse("/review/bulk/done?" + urlencode([("decision", taken), *became]), 303)


@router.get("/review/bulk/done")
async def done(visit: Visitor, of: _Many, decision: str = "") -> HTMLResponse:
    """What became of each, as it is now; of one that was refused, why."""
    taken, codes = _known(decision), {found: code for found, _, code in (each.partition(":") for each in of[:MOST])}
    shown = {approval.id: approval for approval in await _each(visit, list(codes))}
    refused = {found: _why_not(code) for found, code in codes.items() if code}
    return page(visit, "bulk_done.html", ids=list(codes), shown=shown, refused=refused, taken=taken, past=PAST)


async def _look(visit: Visit, ids: Sequence[str], taken: str, form: Form | None = None, why: str = "") -> HTMLResponse:
    if len(ids) > MOST:
        raise PageProblem(422, f"At most {MOST} are decided on at once.")
    picked = await _each(visit, ids)
    apart = _apart(picked) if taken == "approve" else {}
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


def _apart(picked: Sequence[Approval]) -> dict[str, str]:
    """Why some of these are not approved with the others, by their ids."""
    why = {each.id: alone(each.kind, each.risk) for each in picked}
    first = next((each for each in picked if not why[each.id]), None)
    for each in picked:
        if first is not None and not why[each.id] and (each.agent, each.tool) != (first.agent, first.tool):
            why[each.id] = f"it is of another tool than the first, {first.tool} of {first.agent}"
    return {found: words for found, words in why.items() if words}


async def _each(visit: Visit, ids: Sequence[str]) -> list[Approval]:
    found = await asyncio.gather(*(visit.api.approvals.get(each) for each in ids), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not (isinstance(each, ApiError) and each.status in (404, 422)):
            raise each
    return [each for each in found if isinstance(each, Approval)]


def _why_not(code: str) -> str:
    return _WHY_NOT.get(code, code.replace("_", " ") if _CODE.fullmatch(code) else "it was refused")


def _known(decision: str) -> str:
    if decision not in _TOGETHER:
        raise PageProblem(422, "Many are approved or rejected together, and nothing else.")
    return decision
