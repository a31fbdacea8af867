"""Decisions: a form of the page becomes one API request. If the API rejects it, the page shows the typed text again."""

import json
import re
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError
from perdure.core.calls.arguments import InvalidArgumentText, check_arguments, parse_object, same_json
from perdure.pages.approvals.filters import opened_from
from perdure.pages.approvals.page import PRESENT, RejectedForm, differences, read_fields, show_approval
from perdure.pages.render import page
from perdure.pages.request import SEND_AGAIN, Form, PageProblem, Post, Posted
from perdure.schemas.approvals import Approval

decide_router = APIRouter()
_UNCHANGED = "The arguments are unchanged, so nothing was sent. To run the call as it is, approve it."
NOT_RESPONDING = "The service is not responding"
_CHAT_ADDRESS = re.compile(r"/chat/[0-9a-f-]{36}(#turn-[0-9a-f-]{36})?")
"""Addresses to which a decision taken within a conversation returns."""


@decide_router.post("/review/{approval_id}/decision")
async def decision(post: Posted, approval_id: str) -> Response:
    """Approves, rejects or responds, or sends an edit that was previewed."""
    form, taken = post.form, post.form.get("decision")
    if taken not in PRESENT:
        raise PageProblem(422, "Unknown decision. Approve, edit, reject or respond.")
    args = None
    if taken == "edit":
        try:
            args = parse_object(form.whole("args") or "")
        except InvalidArgumentText as unfit:
            return await _show_refusal(post, approval_id, 422, str(unfit))
    try:
        await post.visit.api.approvals.decide(
            approval_id,
            taken,  # type: ignore[arg-type]
            form.get("digest"),
            args=args,
            comment=form.whole("comment"),
            reason_code=form.get("reason_code"),
            idempotency_key=form.get("key"),
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        why = SEND_AGAIN if error.status in (0, 503) else error.message
        return await _show_refusal(post, approval_id, error.status or 503, why)
    back = form.get("back")
    here = f"/review/{approval_id}{opened_from(post.visit, form).within}"
    return RedirectResponse(back if _CHAT_ADDRESS.fullmatch(back) else here, 303)


@decide_router.post("/review/{approval_id}/edit")
async def edit(post: Posted, approval_id: str) -> HTMLResponse:
    """Shows the edited and the requested call side by side, before the edit is sent."""
    approval = await post.visit.api.approvals.get(approval_id)
    form = post.form
    if "edit" not in approval.allowed_decisions or form.get("digest") != approval.digest:
        why = "The call has changed since you edited it, or can no longer be edited. Review it again."
        return await show_approval(post.visit, approval, RejectedForm(form, why), status=409)
    args, faults, why = _read_edit(approval, form)
    if faults or why:
        return await show_approval(
            post.visit, approval, RejectedForm(form, why or "Not sent. Correct the marked fields.", faults), status=422
        )
    selection = opened_from(post.visit, form)
    return page(
        post.visit,
        "edit.html",
        approval=approval,
        asked=selection,
        within=selection.within,
        at=f"/review/{approval_id}{selection.within}",
        args=args,
        exact=json.dumps(args, ensure_ascii=True),
        lines=differences(approval.args, args),
        pairs=[pair for pair in form.pairs if pair[0] not in ("csrf", "comment", "key", "digest")],
        comment=form.whole("comment") or "",
    )


def _read_edit(approval: Approval, form: Form) -> tuple[dict[str, object], dict[str, str], str]:
    """Returns the arguments from the form, the faults of its fields, and a fault of the whole."""
    try:
        if form.get("as") == "json":
            args, faults = parse_object(form.whole("json") or ""), {}
        else:
            read = read_fields(approval.args, approval.args_schema, form)
            args, faults = read.args, dict(read.faults)
    except InvalidArgumentText as unfit:
        return {}, {}, f"Not sent: {unfit}."
    if faults:
        return args, faults, ""
    checked = check_arguments(args, approval.args_schema)
    if checked.fault is not None:
        by_field = {each.field: each.problem for each in checked.schema_errors if each.field in args}
        as_json = form.get("as") == "json" or len(by_field) < len(checked.schema_errors)
        return args, by_field, f"Not sent: {checked.fault}." if as_json else ""
    return args, {}, _UNCHANGED if same_json(approval.args, args) else ""


async def _show_refusal(post: Post, approval_id: str, status: int, why: str) -> HTMLResponse:
    """Shows the current page with the typed text and the reason why it was not accepted."""
    try:
        approval = await post.visit.api.approvals.get(approval_id)
    except ApiError as error:
        if error.status in (0, 503):
            pairs = [pair for pair in post.form.pairs if pair[0] != "csrf"]
            action = f"/review/{approval_id}/decision"
            return page(post.visit, "again.html", status=503, title=NOT_RESPONDING, why=why, pairs=pairs, action=action)
        raise
    sent = RejectedForm(post.form, f"Not sent: {why}" if why is not SEND_AGAIN else why)
    return await show_approval(post.visit, approval, sent, status=status)


verbs_router = APIRouter()
Act = Callable[[Post, str], Awaitable[object]]


async def _claim(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.claim(approval_id, idempotency_key=post.form.get("key"))


async def _release(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.release(approval_id, idempotency_key=post.form.get("key"))


async def _withdraw(post: Post, approval_id: str) -> object:
    comment = post.form.whole("comment")
    return await post.visit.api.approvals.withdraw(approval_id, comment=comment, idempotency_key=post.form.get("key"))


async def _escalate(post: Post, approval_id: str) -> object:
    comment = post.form.whole("comment")
    return await post.visit.api.approvals.escalate(approval_id, comment=comment, idempotency_key=post.form.get("key"))


async def _reassign(post: Post, approval_id: str) -> object:
    to, comment = post.form.get("to"), post.form.whole("comment")
    if not to:
        raise ApiError(422, "name_missing", "select a person")
    return await post.visit.api.approvals.reassign(
        approval_id, to, comment=comment, idempotency_key=post.form.get("key")
    )


async def _raise(post: Post, approval_id: str) -> object:
    approval = await post.visit.api.approvals.get(approval_id)
    tokens, usd = post.form.get("max_tokens"), post.form.get("max_cost_usd")
    try:
        given = int(tokens) if tokens else None, float(usd) if usd else None
    except ValueError:
        raise ApiError(422, "number_unreadable", "a limit must be a number") from None
    if given == (None, None):
        raise ApiError(422, "limit_missing", "enter the new limit")
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


@verbs_router.post("/review/{approval_id}/{verb}")
async def act(post: Posted, approval_id: str, verb: str) -> Response:
    """Runs the action and returns to the page."""
    if verb not in _VERBS:
        raise PageProblem(404, "Page not found.", "not_found")
    try:
        await _VERBS[verb](post, approval_id)
    except ApiError as error:
        if error.status in (0, 401, 404, 503):
            raise
        approval = await post.visit.api.approvals.get(approval_id)
        sent = RejectedForm(post.form, f"Not done: {error.message}")
        return await show_approval(post.visit, approval, sent, status=error.status)
    return RedirectResponse(f"/review/{approval_id}{opened_from(post.visit, post.form).within}", 303)
