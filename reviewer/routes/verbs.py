"""What can be done with an approval beside deciding: look at what it would change, keep it, give it back, hand it on,
take it back, raise a limit."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from perdure.client import ApiError
from reviewer.approval_page import Sent, show
from reviewer.problems import PageProblem
from reviewer.queue import opened_from
from reviewer.visit import Post, Posted

router = APIRouter()
Act = Callable[[Post, str], Awaitable[object]]


async def _claim(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.claim(approval_id, idempotency_key=post.form.get("key"))


async def _release(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.release(approval_id, idempotency_key=post.form.get("key"))


async def _withdraw(post: Post, approval_id: str) -> object:
    said = post.form.whole("comment")
    return await post.visit.api.approvals.withdraw(approval_id, comment=said, idempotency_key=post.form.get("key"))


async def _escalate(post: Post, approval_id: str) -> object:
    said = post.form.whole("comment")
    return await post.visit.api.approvals.escalate(approval_id, comment=said, idempotency_key=post.form.get("key"))


async def _reassign(post: Post, approval_id: str) -> object:
    to, said = post.form.get("to"), post.form.whole("comment")
    if not to:
        raise ApiError(422, "name_missing", "say to whom")
    return await post.visit.api.approvals.reassign(approval_id, to, comment=said, idempotency_key=post.form.get("key"))


async def _raise(post: Post, approval_id: str) -> object:
    approval = await post.visit.api.approvals.get(approval_id)
    tokens, usd = post.form.get("max_tokens"), post.form.get("max_cost_usd")
    try:
        given = int(tokens) if tokens else None, float(usd) if usd else None
    except ValueError:
        raise ApiError(422, "number_unreadable", "a limit is a number") from None
    if given == (None, None):
        raise ApiError(422, "limit_missing", "say the new limit")
    return await post.visit.api.turns.raise_limits(approval.turn_id, max_tokens=given[0], max_cost_usd=given[1])


async def _preview(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.preview(approval_id)


_VERBS: dict[str, Act] = {
    "claim": _claim,
    "release": _release,
    "withdraw": _withdraw,
    "escalate": _escalate,
    "reassign": _reassign,
    "raise": _raise,
    "preview": _preview,
}


@router.post("/review/{approval_id}/{verb}")
async def act(post: Posted, approval_id: str, verb: str) -> Response:
    """Do it, and come back to the page."""
    if verb not in _VERBS:
        raise PageProblem(404, "No page has this address.")
    try:
        await _VERBS[verb](post, approval_id)
    except ApiError as error:
        if error.status in (0, 401, 404, 503):
            raise
        approval = await post.visit.api.approvals.get(approval_id)
        sent = Sent(post.form, f"Not done: {error.message}")
        return await show(post.visit, approval, sent, status=error.status)
    return RedirectResponse(f"/review/{approval_id}{opened_from(post.visit, post.form).within}", 303)
