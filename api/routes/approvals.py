"""Approvals: the queue, how it ages, one with its history, the decision."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.bodies import DecisionBody
from api.ids import ApprovalId, as_uuid
from api.metrics import DECISIONS
from api.once import Key, once
from api.pages import Limit
from api.review_stream import review_frames
from api.routes.streams import EventStream, event_stream
from api.services import Services
from api.temporal_pages import turn_page
from contracts.approvals import ApprovalStatus
from policy.decision import Decider
from policy.webhooks import CHAT
from store import approval_views, decisions
from store.ageing import ageing as ageing_now
from store.approval_counts import counts as counted
from store.approval_precedents import last_approved
from store.approval_views import Filters
from store.database import Connection
from store.outbox import Note
from store.own_decisions import own_decisions

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
MOST = 200
DAY_SECONDS = 86_400


@router.get("")
async def listed(
    services: Open,
    who: Reader,
    status: ApprovalStatus | None = None,
    agent: Annotated[str | None, Query(max_length=64)] = None,
    tool: Annotated[str | None, Query(max_length=64)] = None,
    turn: str | None = None,
    role: Annotated[str | None, Query(max_length=40)] = None,
    risk: Literal["low", "medium", "high"] | None = None,
    assignee: Annotated[str | None, Query(max_length=63, description="a user's name")] = None,
    mine: bool = False,
    expiring: Annotated[int | None, Query(ge=1, le=10_000_000, description="within this many seconds")] = None,
    brief: Annotated[bool, Query(description="without the arguments and all else that may be long")] = False,
    limit: Limit = 50,
    cursor: str | None = None,
) -> dict[str, object]:
    """Approvals, newest first. A requester sees the own ones; `mine` narrows to what you may decide."""
    filters = Filters(
        status=status.value if status else None,
        agent=agent,
        tool=tool,
        risk=risk,
        turn_id=as_uuid(turn, "turn") if turn else None,
        role=role,
        assignee=assignee,
        requested_by=who.scope,
        decidable_by=who.user_id if mine else None,
        signed_in_by=who.credential,
        expiring_within_seconds=expiring,
    )
    async with services.db.transaction(who.tenant_id) as tx:
        most = min(limit, MOST)
        items, following = await approval_views.listed(tx, filters, most, cursor, person(who), brief=brief)
    return {"items": [item | {"links": links(services, who, item)} for item in items], "next": following}


@router.get("/ageing")
async def ageing(services: Open, who: Reader) -> dict[str, object]:
    """How long requests have waited, by role, assignee and agent, and who is next to get them."""
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": await ageing_now(tx, who.scope), "next": None}


@router.get("/counts")
async def counts(
    services: Open, who: Reader, expiring: Annotated[int, Query(ge=1, le=10_000_000)] = DAY_SECONDS
) -> dict[str, object]:
    """How many wait, how many of them you may decide, how many expire within `expiring` seconds, and of which kinds."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await counted(tx, who.scope, person(who), expiring)


@router.get("/decided")
async def decided(services: Open, who: Reader, limit: Limit = 50, cursor: str | None = None) -> dict[str, object]:
    """Your own decisions, newest first, each with what became of it."""
    async with services.db.transaction(who.tenant_id) as tx:
        items, following = await own_decisions(tx, who.user_id, min(limit, MOST), cursor)
    return {"items": items, "next": following}


@router.get("/stream", response_class=EventStream)
async def stream(services: Open, who: Reader) -> Response:
    """Says `approvals` at once, and again whenever something in the queue may have changed: then it is worth a look."""
    return event_stream(services, who, review_frames(services.changes, services.wakes, who.tenant_id))


@router.get("/{approval_id}")
async def get(services: Open, who: Reader, approval_id: ApprovalId) -> dict[str, object]:
    """One approval: the exact call, its deadline, its history, what may be decided. Reviewers also get the call of the
    same tool that was approved last before it."""
    async with services.db.transaction(who.tenant_id) as tx:
        approval = await approval_views.get(tx, approval_id, who.scope, person(who))
        before = await last_approved(tx, approval_id) if who.sees_tenant else None
    return approval | {"last_approved": before, "links": links(services, who, approval)}


@router.post("/{approval_id}/decision")
async def decide(
    services: Open, who: Reader, approval_id: ApprovalId, body: DecisionBody, key: Key = None
) -> JSONResponse:
    """Decide, once. The digest is the one of the call that you saw. Still `pending`: others must decide, too."""
    turn: dict[str, Any] = {}

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        ask = decisions.DecisionAsk(**body.model_dump(), channel=CHAT if who.is_in_chat else "api")
        most = decisions_per_minute(services, who)
        decided, note = await decisions.decide(tx, approval_id, person(who), who.name, ask, most)
        turn["conversation_id"] = decided.conversation_id
        return 200, await approval_views.get(tx, approval_id, None, person(who)), note

    answer = await once(services, who, f"decision/{approval_id}", key, body, work)
    if turn:  # now it is durable; a replayed key decides nothing
        DECISIONS.labels(decision=body.decision.value).inc()
        await services.live.wake(turn["conversation_id"])
    return answer


def person(who: Principal) -> Decider:
    """Who asks, as somebody who may decide."""
    return Decider(who.user_id, who.roles, who.name, credential=who.credential)


def decisions_per_minute(services: Services, who: Principal) -> int | None:
    """How many decisions this person may take in a minute; None where they are not counted."""
    return None if who.has_local_token else services.decisions_per_minute


def links(services: Services, who: Principal, approval: dict[str, object]) -> dict[str, str]:
    turn_id = str(approval["turn_id"])
    links = {"turn": f"/v1/turns/{turn_id}", "decision": f"/v1/approvals/{approval['id']}/decision"}
    page = turn_page(services, who, turn_id)
    return links | {"temporal": page} if page else links
