"""Approvals: the queue, one with its history, the decision."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import DecisionBody
from api.ids import ApprovalId, as_uuid
from api.metrics import DECISIONS
from api.once import Key, once
from api.pages import Limit
from api.services import Services
from contracts.ids import turn_workflow_id
from policy.decision import Decider
from store import approval_views, decisions
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
        requested_by=who.scope,
        decidable_by=who.user_id if mine else None,
        roles=tuple(who.roles),
        expiring_within_seconds=expiring,
    )
    async with services.db.transaction(who.tenant_id) as tx:
        items, following = await approval_views.listed(tx, filters, min(limit, MOST), cursor)
    return {"items": [item | {"links": _links(services, item)} for item in items], "next": following}


@router.get("/{approval_id}")
async def get(services: Open, who: Reader, approval_id: ApprovalId) -> dict[str, object]:
    """One approval: the exact call, its deadline, its history, what may be decided."""
    async with services.db.transaction(who.tenant_id) as tx:
        approval = await approval_views.get(tx, approval_id, who.scope)
    return approval | {"links": _links(services, approval)}


@router.post("/{approval_id}/decision")
async def decide(
    services: Open, who: Reader, approval_id: ApprovalId, body: DecisionBody, key: Key = None
) -> JSONResponse:
    """Decide, once. The digest is the one of the call that you saw."""
    turn: dict[str, Any] = {}

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        ask = decisions.DecisionAsk(**body.model_dump())
        decided, note = await decisions.decide(tx, approval_id, Decider(who.user_id, who.roles), who.name, ask)
        turn["conversation_id"] = decided.conversation_id
        DECISIONS.labels(decision=body.decision.value).inc()
        return 200, await approval_views.get(tx, approval_id, None), note

    answer = await once(services, who, f"decision/{approval_id}", key, body, work)
    if turn:
        await services.live.wake(turn["conversation_id"])
    return answer


def _links(services: Services, approval: dict[str, object]) -> dict[str, str]:
    turn_id = str(approval["turn_id"])
    links = {"turn": f"/v1/turns/{turn_id}", "decision": f"/v1/approvals/{approval['id']}/decision"}
    if services.temporal_ui:
        workflow = turn_workflow_id(turn_id)
        links["temporal"] = f"{services.temporal_ui}/namespaces/{services.temporal_namespace}/workflows/{workflow}"
    return links
