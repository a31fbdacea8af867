"""Decisions: a form of the page becomes one API request. If the API rejects it, the page shows the typed text again."""

import json
import re
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError
from perdure.core.calls.arguments import InvalidArgumentText, check_arguments, parse_object, same_json
from perdure.pages.approvals.argument_form import read_fields
from perdure.pages.approvals.differences import differences
from perdure.pages.approvals.filters import filters_of_visit
from perdure.pages.approvals.page import DECISION_LABELS, RejectedForm, show_approval
from perdure.pages.render import page
from perdure.pages.request import SEND_AGAIN_MESSAGE, CheckedPost, Form, PageProblem, Post
from perdure.schemas.approvals import Approval

decide_router = APIRouter()
_UNCHANGED_MESSAGE = "The arguments are unchanged, so nothing was sent. To run the call as it is, approve it."
NOT_RESPONDING_TITLE = "The service is not responding"
_CHAT_ADDRESS = re.compile(r"/chat/[0-9a-f-]{36}(#turn-[0-9a-f-]{36})?")
"""Addresses to which a decision or a withdrawal within a conversation returns."""


@decide_router.post("/review/{approval_id}/decision")
async def decision(post: CheckedPost, approval_id: str) -> Response:
    """Approves, rejects or responds, or sends an edit that was previewed."""
    form, choice = post.form, post.form.get("decision")
    if choice not in DECISION_LABELS:
        raise PageProblem(422, "Unknown decision. Approve, edit, reject or respond.")
    args = None
    if choice == "edit":
        try:
            args = parse_object(form.raw("args") or "")
        except InvalidArgumentText as parse_error:
            return await _show_refusal(post, approval_id, 422, str(parse_error))
    try:
        await post.visit.api.approvals.decide(
            approval_id,
            choice,  # type: ignore[arg-type]
            form.get("digest"),
            revision=seen_revision(form.get("revision")),
            args=args,
            comment=form.raw("comment"),
            reason_code=form.get("reason_code"),
            idempotency_key=form.get("key"),
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        reason = SEND_AGAIN_MESSAGE if error.status in (0, 503) else error.message
        return await _show_refusal(post, approval_id, error.status or 503, reason)
    return RedirectResponse(_address_after(post, approval_id), 303)


def _address_after(post: Post, approval_id: str) -> str:
    """Returns the conversation from which the form was sent, or the request's page."""
    back = post.form.get("back")
    page_address = f"/review/{approval_id}{filters_of_visit(post.visit, post.form).list_query}"
    return back if _CHAT_ADDRESS.fullmatch(back) else page_address


@decide_router.post("/review/{approval_id}/edit")
async def edit(post: CheckedPost, approval_id: str) -> HTMLResponse:
    """Shows the edited and the requested call side by side, before the edit is sent."""
    approval = await post.visit.api.approvals.get(approval_id)
    form = post.form
    has_changed = (seen_revision(form.get("revision")) or approval.revision) < approval.revision
    if "edit" not in approval.allowed_decisions or form.get("digest") != approval.digest or has_changed:
        reason = "The request has changed since you edited the call, or can no longer be edited. Review it again."
        return await show_approval(post.visit, approval, RejectedForm(form, reason), status=409)
    args, faults, reason = _read_edit(approval, form)
    if faults or reason:
        return await show_approval(
            post.visit,
            approval,
            RejectedForm(form, reason or "Not sent. Correct the marked fields.", faults),
            status=422,
        )
    selection = filters_of_visit(post.visit, form)
    return page(
        post.visit,
        "edit.html",
        approval=approval,
        filters=selection,
        list_query=selection.list_query,
        form_page=f"/review/{approval_id}{selection.list_query}",
        args=args,
        exact=json.dumps(args, ensure_ascii=True),
        lines=differences(approval.args, args),
        pairs=[pair for pair in form.pairs if pair[0] not in ("csrf", "comment", "key", "digest", "revision")],
        comment=form.raw("comment") or "",
    )


def seen_revision(text: str) -> int | None:
    """Returns the revision that a form names, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _read_edit(approval: Approval, form: Form) -> tuple[dict[str, object], dict[str, str], str]:
    """Returns the arguments from the form, the faults of its fields, and a fault of the whole."""
    try:
        if form.get("as") == "json":
            args, faults = parse_object(form.raw("json") or ""), {}
        else:
            edited = read_fields(approval.args, approval.args_schema, form)
            args, faults = edited.args, dict(edited.faults)
    except InvalidArgumentText as error:
        return {}, {}, f"Not sent: {error}."
    if faults:
        return args, faults, ""
    checked = check_arguments(args, approval.args_schema)
    if checked.fault is not None:
        by_field = {each.field: each.problem for each in checked.schema_errors if each.field in args}
        as_json = form.get("as") == "json" or len(by_field) < len(checked.schema_errors)
        return args, by_field, f"Not sent: {checked.fault}." if as_json else ""
    return args, {}, _UNCHANGED_MESSAGE if same_json(approval.args, args) else ""


async def _show_refusal(post: Post, approval_id: str, status: int, reason: str) -> HTMLResponse:
    """Shows the current page with the typed text and the reason why it was not accepted."""
    try:
        approval = await post.visit.api.approvals.get(approval_id)
    except ApiError as error:
        if error.status in (0, 503):
            pairs = [pair for pair in post.form.pairs if pair[0] != "csrf"]
            action = f"/review/{approval_id}/decision"
            return page(
                post.visit,
                "resend.html",
                status=503,
                title=NOT_RESPONDING_TITLE,
                reason=reason,
                pairs=pairs,
                action=action,
            )
        raise
    rejected = RejectedForm(post.form, f"Not sent: {reason}" if reason is not SEND_AGAIN_MESSAGE else reason)
    return await show_approval(post.visit, approval, rejected, status=status)


verbs_router = APIRouter()
Action = Callable[[Post, str], Awaitable[object]]


async def _claim(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.claim(approval_id, idempotency_key=post.form.get("key"))


async def _release(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.release(approval_id, idempotency_key=post.form.get("key"))


async def _withdraw(post: Post, approval_id: str) -> object:
    comment = post.form.raw("comment")
    return await post.visit.api.approvals.withdraw(approval_id, comment=comment, idempotency_key=post.form.get("key"))


async def _reissue(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.reissue(approval_id, idempotency_key=post.form.get("key"))


async def _escalate(post: Post, approval_id: str) -> object:
    comment = post.form.raw("comment")
    return await post.visit.api.approvals.escalate(approval_id, comment=comment, idempotency_key=post.form.get("key"))


async def _reassign(post: Post, approval_id: str) -> object:
    to, comment = post.form.get("to"), post.form.raw("comment")
    if not to:
        raise ApiError(422, "name_missing", "select a person")
    return await post.visit.api.approvals.reassign(
        approval_id, to, comment=comment, idempotency_key=post.form.get("key")
    )


async def _raise(post: Post, approval_id: str) -> object:
    approval = await post.visit.api.approvals.get(approval_id)
    tokens, usd = post.form.get("max_tokens"), post.form.get("max_cost_usd")
    try:
        limits = int(tokens) if tokens else None, float(usd) if usd else None
    except ValueError:
        raise ApiError(422, "number_unreadable", "a limit must be a number") from None
    if limits == (None, None):
        raise ApiError(422, "limit_missing", "enter the new limit")
    return await post.visit.api.turns.raise_limits(approval.turn_id, max_tokens=limits[0], max_cost_usd=limits[1])


async def _preview(post: Post, approval_id: str) -> object:
    return await post.visit.api.approvals.preview(approval_id)


_ACTIONS: dict[str, Action] = {
    "claim": _claim,
    "release": _release,
    "withdraw": _withdraw,
    "reissue": _reissue,
    "escalate": _escalate,
    "reassign": _reassign,
    "raise": _raise,
    "preview": _preview,
}


@verbs_router.post("/review/{approval_id}/{verb}")
async def act(post: CheckedPost, approval_id: str, verb: str) -> Response:
    """Runs the action and returns to the page."""
    if verb not in _ACTIONS:
        raise PageProblem(404, "Page not found.", "not_found")
    try:
        await _ACTIONS[verb](post, approval_id)
    except ApiError as error:
        if error.status in (0, 401, 404, 503):
            raise
        approval = await post.visit.api.approvals.get(approval_id)
        rejected = RejectedForm(post.form, f"Not done: {error.message}")
        return await show_approval(post.visit, approval, rejected, status=error.status)
    return RedirectResponse(_address_after(post, approval_id), 303)
