"""Many decisions at once: each of the picked shown with its exact arguments, then decided, with a result for each."""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from perdure.client import ApiError, Approval
from perdure.client.review_calls import Item
from reviewer.approval_page import PAST, PRESENT, is_long, reasons_for
from reviewer.forms import Form
from reviewer.problems import PageProblem
from reviewer.view import page
from reviewer.visit import Post, Posted

router = APIRouter()
MOST = 25
"""One page of the inbox."""
_TOGETHER = ("approve", "reject")


@router.post("/review/bulk")
async def look(post: Posted) -> HTMLResponse:
    """What was picked, one after the other, to be looked at once more."""
    picked = list(dict.fromkeys(post.form.all("pick")))
    if not picked:
        raise PageProblem(422, "Nothing was picked. Go back and pick what you want to decide on.")
    return await _look(post, picked, post.form)


@router.post("/review/bulk/decide")
async def decide(post: Posted) -> HTMLResponse:
    """Decide on each for itself, and tell what became of each."""
    form, taken = post.form, _decision(post.form)
    pairs = [pair.partition(":") for pair in form.all("item")]
    if taken == "reject" and not (form.get("comment") or form.get("reason_code")):
        return await _look(post, [found for found, _, _ in pairs], form, "Say why: a rejection needs a reason.")
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
    shown = {approval.id: approval for approval in await _each(post, [answer.id for answer in answers])}
    refused = sum(answer.error is not None for answer in answers)
    return page(post.visit, "bulk_done.html", answers=answers, shown=shown, refused=refused, taken=taken, past=PAST)


async def _look(post: Post, ids: Sequence[str], form: Form, why: str = "") -> HTMLResponse:
    taken = _decision(form)
    if len(ids) > MOST:
        raise PageProblem(422, f"At most {MOST} are decided on at once.")
    picked = await _each(post, ids)
    return page(
        post.visit,
        "bulk.html",
        status=422 if why else 200,
        picked=picked,
        taken=taken,
        present=PRESENT,
        reasons=reasons_for(*picked),
        long={approval.id for approval in picked if is_long(approval)},
        why=why,
        typed=form,
    )


async def _each(post: Post, ids: Sequence[str]) -> list[Approval]:
    found = await asyncio.gather(*(post.visit.api.approvals.get(each) for each in ids), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not (isinstance(each, ApiError) and each.status in (404, 422)):
            raise each
    return [each for each in found if isinstance(each, Approval)]


def _decision(form: Form) -> str:
    taken = form.get("decision")
    if taken not in _TOGETHER:
        raise PageProblem(422, "Many are approved or rejected together, and nothing else.")
    return taken
