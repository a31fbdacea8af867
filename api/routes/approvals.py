"""Approvals: the queue, how it ages, one with its history, the decision."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.bodies import DecisionBody
from api.ids import ApprovalId, as_uuid
from api.metrics import DECISIONS
from api.once import Key, once
from api.pages import Limit
from api.services import Services
from contracts.ids import turn_workflow_id
from policy.decision import Decider
from policy.webhooks import CHAT
from store import approval_views, decisions
from store.ageing import ageing as ageing_now
from store.approval_views import Filters
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
MOST = 200


@router.get("")
async def listed(
    services: Open,
    who: Reader,
    status: Annotated[str | None, Query(max_length=40)] = None,
    agent: Annotated[str | None, Query(max_length=64)] = None,
    tool: Annotated[str | None, Query(max_length=64)] = None,
    turn: str | None = None,
    role: Annotated[str | None, Query(max_length=40)] = None,
    assignee: Annotated[str | None, Query(max_length=63, description="a user's name")] = None,
    mine: bool = False,
    expiring: Annotated[int | None, Query(ge=1, le=10_000_000, description="within this many seconds")] = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> dict[str, object]:
    """Approvals, newest first. A requester sees the own ones; `mine` narrows to what you may decide."""
    filters = Filters(
        status=status,
        agent=agent,
        tool=tool,
        turn_id=as_uuid(turn, "turn") if turn else None,
        role=role,
        assignee=assignee,
        requested_by=who.scope,
        decidable_by=who.user_id if mine else None,
        expiring_within_seconds=expiring,
    )
    async with services.db.transaction(who.tenant_id) as tx:
        items, following = await approval_views.listed(tx, filters, min(limit, MOST), cursor, person(who))
    return {"items": [item | {"links": links(services, item)} for item in items], "next": following}


@router.get("/ageing")
async def ageing(services: Open, who: Reader) -> dict[str, object]:
    """How long requests have waited, by role, assignee and agent, and who is next to get them."""
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": await ageing_now(tx, who.scope), "next": None}


@router.get("/{approval_id}")
async def get(services: Open, who: Reader, approval_id: ApprovalId) -> dict[str, object]:
    """One approval: the exact call, its deadline, its history, what may be decided."""
    async with services.db.transaction(who.tenant_id) as tx:
        approval = await approval_views.get(tx, approval_id, who.scope, person(who))
    return approval | {"links": links(services, approval)}


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
        DECISIONS.labels(decision=body.decision.value).inc()
        return 200, await approval_views.get(tx, approval_id, None, person(who)), note

    answer = await once(services, who, f"decision/{approval_id}", key, body, work)
    if turn:
        await services.live.wake(turn["conversation_id"])
    return answer


def person(who: Principal) -> Decider:
    """Who asks, as somebody who may decide."""
    return Decider(who.user_id, who.roles, who.name)


def decisions_per_minute(services: Services, who: Principal) -> int | None:
    """How many decisions this person may take in a minute; None where they are not counted."""
    return None if who.has_local_token else services.decisions_per_minute


def links(services: Services, approval: dict[str, object]) -> dict[str, str]:
    turn_id = str(approval["turn_id"])
    links = {"turn": f"/v1/turns/{turn_id}", "decision": f"/v1/approvals/{approval['id']}/decision"}
    if services.temporal_ui:
        workflow = turn_workflow_id(turn_id)
        links["temporal"] = f"{services.temporal_ui}/namespaces/{services.temporal_namespace}/workflows/{workflow}"
    return links
