"""Approvals: the queue, its waiting times, single requests with their history, and decisions."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from perdure.api.auth import Caller, DecidingCaller, Principal, ServicesDep, SubjectCaller
from perdure.api.errors import item_error
from perdure.api.health import DECISIONS
from perdure.api.idempotency import DELIVERY_SECONDS, Key, run_once
from perdure.api.request_bodies import (
    ApprovalId,
    ClaimBody,
    CommentBody,
    Cursor,
    DecisionBody,
    DelegationBody,
    ItemBody,
    Limit,
    ManyBody,
    ReassignBody,
    ReissueBody,
    ReleaseBody,
    as_uuid,
)
from perdure.api.routes.events import EventStream, event_stream
from perdure.api.routes.status import turn_page
from perdure.api.services import Services
from perdure.api.streams import review_frames
from perdure.contracts.activities import ApprovalStatus, EditCheckRequest, PreviewRequest
from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError, UpstreamUnavailable
from perdure.contracts.values import digest_of
from perdure.core.approvals.assignments import ADMIN
from perdure.core.approvals.decisions import BULK_REFUSAL, Decider, Decision, approvable_together
from perdure.core.approvals.validity import SERVER_CHANGED
from perdure.core.delivery import CHAT
from perdure.store import idempotency
from perdure.store.approvals import assignments, decisions, tool_previews, views
from perdure.store.approvals.decisions import Decided, EditNotChecked, SubmittedDecision, decide, decision_requests
from perdure.store.approvals.reissue import reissue_outdated
from perdure.store.approvals.review import Review
from perdure.store.approvals.views import Filters, last_approved, own_decisions
from perdure.store.approvals.views import count_requests as counted
from perdure.store.approvals.views import list_oldest as ageing_now
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note
from perdure.temporal.workflow_client import run_edit_check, run_preview

approvals_router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
MAX_LISTED = 200
DAY_SECONDS = 86_400
_STATUS_HELP = (
    "Only approvals with this status. `outdated`: pending or approved, but the tool or the policy has changed; "
    "`pending` lists outdated requests too"
)
BULK_ROUTE = "decisions"


@approvals_router.get("")
async def list_approvals(
    services: ServicesDep,
    caller: SubjectCaller,
    status: Annotated[ApprovalStatus | None, Query(description=_STATUS_HELP)] = None,
    kind: Annotated[RequestKind | None, Query(description="Only requests of this kind")] = None,
    agent: Annotated[str | None, Query(max_length=64, description="Only approvals of this agent")] = None,
    tool: Annotated[str | None, Query(max_length=64, description="Only calls of this tool")] = None,
    turn: Annotated[str | None, Query(description="Only approvals of this turn")] = None,
    role: Annotated[str | None, Query(max_length=40, description="Only those that this role decides")] = None,
    risk: Annotated[Literal["low", "medium", "high"] | None, Query(description="Only calls of this risk")] = None,
    assignee: Annotated[str | None, Query(max_length=63, description="A user name")] = None,
    mine: Annotated[bool, Query(description="Only those that you can decide")] = False,
    expiring: Annotated[
        int | None, Query(ge=1, le=10_000_000, description="Expires within this number of seconds")
    ] = None,
    brief: Annotated[bool, Query(description="Omits the arguments and other long fields")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists approvals, newest first. Requesters see only their own; `mine` returns those that you can decide on."""
    filters = Filters(
        status=status.value if status else None,
        kind=kind.value if kind else None,
        agent=agent,
        tool=tool,
        risk=risk,
        turn_id=as_uuid(turn, "turn") if turn else None,
        role=role,
        assignee=assignee,
        requested_by=caller.scope,
        decidable_by=caller.user_id if mine else None,
        signed_in_by=caller.credential,
        expiring_within_seconds=expiring,
    )
    async with services.db.transaction(caller.tenant_id) as tx:
        max_items = min(limit, MAX_LISTED)
        items, following = await views.list_approvals(tx, filters, max_items, cursor, decider_of(caller), brief=brief)
    return {"items": [item | {"links": links_of(services, caller, item)} for item in items], "next": following}


@approvals_router.get("/ageing")
async def ageing(services: ServicesDep, caller: SubjectCaller) -> dict[str, object]:
    """Returns how long pending requests have waited, by role, assignee and agent, and who receives each of them
    next."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": await ageing_now(tx, caller.scope), "next": None}


@approvals_router.get("/counts")
async def counts(
    services: ServicesDep,
    caller: SubjectCaller,
    expiring: Annotated[int, Query(ge=1, le=10_000_000, description="Seconds from now")] = DAY_SECONDS,
) -> dict[str, object]:
    """Counts pending requests: all, those that you can decide on, those that expire within `expiring` seconds, and
    those of each kind."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await counted(tx, caller.scope, decider_of(caller), expiring)


@approvals_router.get("/decided")
async def decided(
    services: ServicesDep, caller: SubjectCaller, limit: Limit = 50, cursor: Cursor = None
) -> dict[str, object]:
    """Lists your own decisions, newest first, each with its result."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await own_decisions(tx, caller.user_id, min(limit, MAX_LISTED), cursor)
    return {"items": items, "next": following}


@approvals_router.get("/stream", response_class=EventStream)
async def stream(services: ServicesDep, caller: Caller) -> Response:
    """Streams an `approvals` event at once and after each change that may affect the queue; reload the list on each
    event."""
    return event_stream(services, caller, review_frames(services.changes, services.wakes, caller.tenant_id))


@approvals_router.get("/{approval_id}", operation_id="get_v1_approvals__approval_id__get")
async def get_approval(services: ServicesDep, caller: Caller, approval_id: ApprovalId) -> dict[str, object]:
    """Returns one approval: the exact call, its deadline, history and allowed decisions. Reviewers also get the
    previous approved call of the same tool."""
    async with services.db.transaction(caller.tenant_id) as tx:
        approval = await views.get_approval(tx, approval_id, caller.scope, decider_of(caller))
        before = await last_approved(tx, approval_id) if caller.sees_tenant else None
    return approval | {"last_approved": before, "links": links_of(services, caller, approval)}


@approvals_router.post("/{approval_id}/decision")
async def decide_approval(
    services: ServicesDep, caller: DecidingCaller, approval_id: ApprovalId, body: DecisionBody, key: Key = None
) -> JSONResponse:
    """Decides on a request; each reviewer decides once. `digest` is the digest of the call that you reviewed,
    `revision` the revision. If the status is still `pending`, other reviewers must decide, too."""
    turn: dict[str, Any] = {}

    async def run(checked_digest: str) -> JSONResponse:
        async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
            decision = decisions.SubmittedDecision(**body.model_dump(), channel=CHAT if caller.is_in_chat else "api")
            per_minute = decisions_per_minute(services, caller)
            decided, note = await decisions.decide(
                tx, approval_id, decider_of(caller), caller.name, decision, per_minute, checked_digest=checked_digest
            )
            turn["conversation_id"] = decided.conversation_id
            return 200, await views.get_approval(tx, approval_id, None, decider_of(caller)), note

        return await run_once(services, caller, f"decision/{approval_id}", key, body, work)

    answer = await _run_checked(services, run)
    if turn:  # Counted after the commit; a replayed key decides nothing.
        DECISIONS.labels(decision=body.decision.value).inc()
        services.live.wake(turn["conversation_id"])
    return answer


async def _run_checked(services: Services, run: Callable[[str], Awaitable[JSONResponse]]) -> JSONResponse:
    """Returns the answer of `run`. If a tools worker must check the arguments first, `run` is called again with their
    digest.

    Raises: CallerError 422 `args_invalid`, 409 `cannot_reissue`; UpstreamUnavailable `tool_check_unavailable`.
    """
    try:
        return await run("")
    except EditNotChecked as unchecked:
        is_checked = await _check_edit(services, unchecked)
        try:  # if it was not checked, the request may be decided now
            return await run(unchecked.edit.digest if is_checked else "")
        except EditNotChecked:
            version = "has the published version of the tool and " if unchecked.version else ""
            advice = "run `perdure up`, which publishes theirs, or " if unchecked.version else ""
            message = (
                f"No tools worker {version}checked the arguments in time, so nothing was changed; {advice}check the "
                "tools workers and retry"
            )
            raise UpstreamUnavailable("tool_check_unavailable", message) from None


async def _check_edit(services: Services, unchecked: EditNotChecked) -> bool:
    """Lets a tools worker check an edit, or the arguments of a reissue, by the tool's own types. Nothing is recorded.

    Returns False if no worker checked it in time, or if the request is no longer open.

    Raises: CallerError 422 `args_invalid`, 409 `cannot_reissue`.
    """
    address, edit = unchecked.address, unchecked.edit
    async with services.db.transaction(address.tenant_id) as tx:
        proposed = (edit.approval_id, edit.key, unchecked.edited_args)
        is_stored = (
            await tool_previews.propose_reissue(tx, *proposed, unchecked.version)
            if unchecked.version
            else await tool_previews.propose_edit(tx, *proposed)
        )
        if not is_stored:
            return False
    request = EditCheckRequest(address=address, edit=edit, routing=services.routing)
    try:
        checked = await run_edit_check(services.notifier.client, request)
    finally:
        async with services.db.transaction(address.tenant_id) as tx:
            reason = await tool_previews.remove_proposed_edit(tx, edit.approval_id, edit.key)
    if checked is not None and checked.server_changed:
        message = (
            f"{SERVER_CHANGED}, and the published version is still the old one; lock the server's tools again "
            "(`perdure mcp lock`), run `perdure up`, and reissue the request then, or reject it"
        )
        raise CallerError("cannot_reissue", message, {"outdated": SERVER_CHANGED}, status=409)
    if checked is not None and checked.fault:
        reason = reason or checked.fault
        problem = {"field": checked.field, "problem": reason[:200]}
        text = f"{checked.field}: {reason}" if checked.field else reason
        what = (
            "Reject the request, as the new version of the tool refuses its arguments"
            if unchecked.version
            else "The edit is invalid"
        )
        raise CallerError("args_invalid", f"{what}: {text[:400]}", {"fields": [problem]}, status=422)
    return checked is not None


def decider_of(caller: Principal) -> Decider:
    """Returns the user as a reviewer. A gateway, and a user on whose behalf it acts, has no role that decides."""
    roles = frozenset[str]() if caller.is_gateway else caller.roles
    return Decider(caller.user_id, roles, caller.name, credential=caller.credential)


def decisions_per_minute(services: Services, caller: Principal) -> int | None:
    """Returns how many decisions this user can make in a minute; None means no limit."""
    return None if caller.has_local_token else services.decisions_per_minute


def links_of(services: Services, caller: Principal, approval: dict[str, object]) -> dict[str, str]:
    turn_id = str(approval["turn_id"])
    links = {"turn": f"/v1/turns/{turn_id}", "decision": f"/v1/approvals/{approval['id']}/decision"}
    page = turn_page(services, caller, turn_id)
    return links | {"temporal": page} if page else links


verbs_router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
Action = Callable[[Connection], Awaitable[tuple[Review, Note | None]]]


@verbs_router.post("/{approval_id}/withdraw")
async def withdraw(
    services: ServicesDep, caller: Caller, approval_id: ApprovalId, body: CommentBody | None = None, key: Key = None
) -> JSONResponse:
    """Withdraws your request, or an approval whose call has not started. The turn continues without the call."""
    request_body = body or CommentBody()
    reviews: list[Review] = []

    async def action(tx: Connection) -> tuple[Review, Note | None]:
        review, note = await assignments.withdraw(tx, approval_id, decider_of(caller), request_body.comment)
        reviews.append(review)
        return review, note

    answer = await _run_verb(services, caller, approval_id, "withdraw", key, request_body, action)
    for review in reviews:
        services.live.wake(review.address.conversation_id)
    return answer


@verbs_router.post("/{approval_id}/reissue", status_code=201)
async def reissue(
    services: ServicesDep, caller: Caller, approval_id: ApprovalId, body: ReissueBody | None = None, key: Key = None
) -> JSONResponse:
    """Makes an outdated request again for the published version of its tool, with the same arguments. Its votes are
    void, and `changes` shows what the version changes."""

    async def run(checked_digest: str) -> JSONResponse:
        async def action(tx: Connection) -> tuple[Review, Note | None]:
            return await reissue_outdated(tx, approval_id, decider_of(caller), checked_digest)

        return await _run_verb(services, caller, approval_id, "reissue", key, body or ReissueBody(), action, status=201)

    return await _run_checked(services, run)


@verbs_router.post("/{approval_id}/claim")
async def claim(
    services: ServicesDep,
    caller: DecidingCaller,
    approval_id: ApprovalId,
    body: ClaimBody | None = None,
    key: Key = None,
) -> JSONResponse:
    """Claims a request, so that no other reviewer can decide while you review it. A claim expires on its own; claim
    again to extend it."""
    request_body = body or ClaimBody()

    async def action(tx: Connection) -> tuple[Review, Note | None]:
        return await assignments.claim(tx, approval_id, decider_of(caller), request_body.seconds), None

    return await _run_verb(services, caller, approval_id, "claim", key, request_body, action)


@verbs_router.post("/{approval_id}/release")
async def release(
    services: ServicesDep,
    caller: DecidingCaller,
    approval_id: ApprovalId,
    body: ReleaseBody | None = None,
    key: Key = None,
) -> JSONResponse:
    """Releases a claim before it expires. An admin can release any claim."""

    async def action(tx: Connection) -> tuple[Review, Note | None]:
        return await assignments.release(tx, approval_id, decider_of(caller)), None

    return await _run_verb(services, caller, approval_id, "release", key, body or ReleaseBody(), action)


@verbs_router.post("/{approval_id}/reassign")
async def reassign(
    services: ServicesDep, caller: DecidingCaller, approval_id: ApprovalId, body: ReassignBody, key: Key = None
) -> JSONResponse:
    """Assigns the request to a reviewer who can decide on it. That user replaces a named reviewer who reassigns."""

    async def action(tx: Connection) -> tuple[Review, Note | None]:
        return await assignments.reassign(tx, approval_id, decider_of(caller), body.to, body.comment), None

    return await _run_verb(services, caller, approval_id, "reassign", key, body, action)


@verbs_router.post("/{approval_id}/escalate")
async def escalate(
    services: ServicesDep,
    caller: DecidingCaller,
    approval_id: ApprovalId,
    body: CommentBody | None = None,
    key: Key = None,
) -> JSONResponse:
    """Escalates the request to the role that its policy names. A request can be escalated once."""
    request_body = body or CommentBody()

    async def action(tx: Connection) -> tuple[Review, Note | None]:
        return await assignments.escalate(tx, approval_id, decider_of(caller), request_body.comment), None

    return await _run_verb(services, caller, approval_id, "escalate", key, request_body, action)


async def _run_verb(
    services: Services,
    caller: Principal,
    approval_id: str,
    action_name: str,
    key: str | None,
    body: BaseModel,
    action: Action,
    *,
    status: int = 200,
) -> JSONResponse:
    """Runs `action` once and returns the resulting approval."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        _, note = await action(tx)
        approval = await views.get_approval(tx, approval_id, None, decider_of(caller))
        return status, approval | {"links": links_of(services, caller, approval)}, note

    return await run_once(services, caller, f"{action_name}/{approval_id}", key, body, work)


# Each bulk decision has its own transaction, and its result does not affect the others.
bulk_router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


@bulk_router.post("/decisions")
async def decide_many(services: ServicesDep, caller: DecidingCaller, body: ManyBody, key: Key = None) -> JSONResponse:
    """Approves or rejects up to 100 requests. Only low-risk calls of one tool can be approved together. Any request can
    be rejected, with a reason."""
    digest = digest_of(body.model_dump(mode="json"))
    if key is not None:
        async with services.db.transaction(caller.tenant_id) as tx:
            stored = await idempotency.claim(tx, caller.user_id, BULK_ROUTE, key, digest)
        if stored is not None and stored[0] != 0:
            return JSONResponse(stored[1], stored[0], {"Idempotency-Replayed": "true"})
    can_approve = await _can_approve_together(services, caller, body)
    results: list[dict[str, object]] = []
    recorded: list[tuple[Decided, Note | None]] = []
    for item in body.items:
        try:
            result, decided = await _decide_one(services, caller, item, can_approve, key, digest)
            recorded += [decided] if decided is not None else []
        except CallerError as refused:
            result = {"id": item.id, "error": item_error(refused)}
        results.append(result)
    encoded = jsonable_encoder({"items": results, "next": None})
    if key is not None:
        async with services.db.transaction(caller.tenant_id) as tx:
            await idempotency.store_response(tx, caller.user_id, BULK_ROUTE, key, 200, encoded)
    await _wake_turns(services, recorded)
    return JSONResponse(encoded)


async def _can_approve_together(services: Services, caller: Principal, body: ManyBody) -> bool:
    """Returns whether the requests to approve can be approved together."""
    ids = [
        approval_id
        for item in body.items
        if item.decision is Decision.APPROVE and (approval_id := _approval_uuid(item.id))
    ]
    async with services.db.transaction(caller.tenant_id) as tx:
        return approvable_together(await decision_requests(tx, ids, decider_of(caller)))


async def _decide_one(
    services: Services, caller: Principal, item: ItemBody, can_approve: bool, key: str | None, digest: str
) -> tuple[dict[str, object], tuple[Decided, Note | None] | None]:
    """Returns the result of one item, and the decision with its wake signal.

    Raises: CallerError, as for a decision; 422 `not_in_bulk`.
    """
    approval_id = as_uuid(item.id, "approval")
    is_allowed = item.decision is Decision.REJECT or (item.decision is Decision.APPROVE and can_approve)
    refusal = None if is_allowed else CallerError("not_in_bulk", BULK_REFUSAL, status=422)
    decision = SubmittedDecision(**item.model_dump(exclude={"id"}), channel="bulk")
    route = f"{BULK_ROUTE}/{approval_id}"
    async with services.db.transaction(caller.tenant_id) as tx:
        if key is not None:
            stored = await idempotency.claim(tx, caller.user_id, route, key, digest)
            if stored is not None and isinstance(stored[1], dict):
                return {**stored[1]}, None
        per_minute = decisions_per_minute(services, caller)
        decided = await decide(tx, approval_id, decider_of(caller), caller.name, decision, per_minute, unfit=refusal)
        answer: dict[str, object] = {"id": item.id, "status": decided[0].status}
        if key is not None:
            await idempotency.store_response(tx, caller.user_id, route, key, 200, jsonable_encoder(answer))
    DECISIONS.labels(decision=item.decision.value).inc()
    return answer, decided


async def _wake_turns(services: Services, recorded: list[tuple[Decided, Note | None]]) -> None:
    """Wakes the turns. All decisions are durable, and the relay delivers the wake signals that are not delivered in
    time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DELIVERY_SECONDS):
            await asyncio.gather(*(services.notifier.deliver_soon(note) for _, note in recorded if note is not None))
    for conversation_id in dict.fromkeys(decided.conversation_id for decided, _ in recorded):
        services.live.wake(conversation_id)


def _approval_uuid(text: str) -> str | None:
    try:
        return as_uuid(text, "approval")
    except CallerError:
        return None


# A worker runs previews on demand, for users who can read the queue.
previews_router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


@previews_router.post("/{approval_id}/preview")
async def preview(services: ServicesDep, caller: Caller, approval_id: ApprovalId) -> dict[str, object]:
    """Runs the tool's preview, which only reads, and returns the approval with the predicted changes or the reason for
    failure. Ignores Idempotency-Key: each request runs the preview again."""
    if not caller.sees_tenant:
        raise CallerError("role_required", "This action requires the role reviewer or admin", status=403)
    async with services.db.transaction(caller.tenant_id) as tx:
        address = await tool_previews.address_for_preview(tx, approval_id)
    request = PreviewRequest(address=address, approval_id=approval_id, routing=services.routing)
    fault = await run_preview(services.notifier.client, request)
    async with services.db.transaction(caller.tenant_id) as tx:
        if fault:
            await tool_previews.store_preview(tx, approval_id, {"fault": fault})
        approval = await views.get_approval(tx, approval_id, None, decider_of(caller))
    return approval | {"links": links_of(services, caller, approval)}


delegations_router = APIRouter(prefix="/v1/delegations", tags=["approvals"])


def _delegation_id(delegation_id: Annotated[str, Path(description="Id of the delegation")]) -> str:
    return as_uuid(delegation_id, "delegation")


@delegations_router.post("", status_code=201)
async def add(services: ServicesDep, caller: DecidingCaller, body: DelegationBody, key: Key = None) -> JSONResponse:
    """Delegates your decisions to another user until a given time, at most 90 days ahead. The delegate cannot decide on
    requests that either of you made, and must have the required role, too. A delegation lets the delegate act for you
    as a named reviewer or assignee; it never passes on a role."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return (
            201,
            await assignments.add_delegation(tx, caller.user_id, caller.name, body.to, body.until, caller.credential),
            None,
        )

    return await run_once(services, caller, "delegations", key, body, work)


@delegations_router.get("")
async def list_delegations(
    services: ServicesDep,
    caller: SubjectCaller,
    all_users: Annotated[bool, Query(alias="all", description="All users' delegations; admin only")] = False,
    limit: Limit = MAX_LISTED,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists your active delegations, newest first. `by` names the user who delegated."""
    if all_users:
        caller.require_role(ADMIN)
    async with services.db.transaction(caller.tenant_id) as tx:
        user_id = None if all_users else caller.user_id
        items, following = await assignments.list_delegations(tx, user_id, min(limit, MAX_LISTED), cursor)
    return {"items": items, "next": following}


@delegations_router.delete("/{delegation_id}", status_code=204)
async def remove(
    services: ServicesDep, caller: DecidingCaller, delegation_id: Annotated[str, Depends(_delegation_id)]
) -> Response:
    """Ends one of your delegations at once; an admin can end any. Decisions that were made under it remain valid."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await assignments.remove_delegation(tx, caller.user_id, delegation_id, any_owner=ADMIN in caller.roles)
    return Response(status_code=204)
