"""The audit trail: verification, export, and the rows of one approval."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.encoders import jsonable_encoder
from fastapi.responses import StreamingResponse

from perdure.api.auth import Caller, Principal, ServicesDep
from perdure.api.request_bodies import ApprovalId, Cursor, HeadsBody, Limit, as_uuid
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.values import canonical_json
from perdure.core.audit import ExportedHead
from perdure.store import audit
from perdure.store.turns import views

router = APIRouter(prefix="/v1", tags=["audit"])
MAX_LISTED = 200
Position = Annotated[int, Query(ge=0, le=2**53, description="Only rows after this position in the chain")]


@router.get("/audit/verify")
async def verify(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Verifies the audit chain against the exported heads: every row is unchanged and none is missing."""
    return await _verify_chain(services, caller, ())


@router.post("/audit/verify")
async def verify_against(services: ServicesDep, caller: Caller, body: HeadsBody) -> dict[str, object]:
    """Verifies the audit chain against heads that you send as well. Changes nothing."""
    return await _verify_chain(services, caller, body.heads)


@router.get("/audit/export", response_class=StreamingResponse)
async def export(
    services: ServicesDep,
    caller: Caller,
    after: Position = 0,
    turn: Annotated[str | None, Query(description="Only rows of this turn")] = None,
    limit: Annotated[int | None, Query(ge=1, le=2**53, description="Maximum rows; without it, all")] = None,
) -> StreamingResponse:
    """Exports the audit rows in chain order, one JSON object per line."""
    caller.require_role("admin")
    turn_id = as_uuid(turn, "turn") if turn else None
    if turn_id:
        async with services.db.transaction(caller.tenant_id) as tx:
            await views.get_turn(tx, turn_id, caller.scope)  # Raises 404 for turns of other tenants.
    rows = audit.exported_rows(services.db, caller.tenant_id, after, turn_id, limit)
    return StreamingResponse(_json_lines(rows), media_type="application/jsonl")


@router.get(
    "/approvals/{approval_id}/audit",
    tags=["approvals"],
    operation_id="of_approval_v1_approvals__approval_id__audit_get",
)
async def approval_audit(
    services: ServicesDep, caller: Caller, approval_id: ApprovalId, limit: Limit = MAX_LISTED, cursor: Cursor = None
) -> dict[str, object]:
    """Lists the audit rows of one approval, oldest first: the request, the plan, the decisions and the execution."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await audit.rows_of_approval(tx, approval_id, caller.scope, min(limit, MAX_LISTED), cursor)
    return {"items": items, "next": following}


async def _verify_chain(
    services: Services, caller: Principal, caller_heads: tuple[ExportedHead, ...]
) -> dict[str, object]:
    if not caller.sees_tenant:
        raise CallerError(
            "role_required", "This action requires the role reviewer or admin", {"role": "reviewer"}, status=403
        )
    exported = await asyncio.to_thread(audit.exported_heads, services.audit_heads, caller.tenant_id)
    report = await audit.verify_chain(services.db, caller.tenant_id, services.keyring, [*exported, *caller_heads])
    return {"ok": report.ok, **asdict(report)}


async def _json_lines(rows: AsyncIterator[audit.View]) -> AsyncIterator[str]:
    async for row in rows:
        yield canonical_json(jsonable_encoder(row)) + "\n"
