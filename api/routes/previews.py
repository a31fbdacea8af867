"""The preview of a call that waits: made on demand, by a worker, for those who may look at the queue."""

from fastapi import APIRouter

from api.auth import Open, Reader
from api.ids import ApprovalId
from api.routes.approvals import links, person
from contracts.errors import CallerError
from contracts.previews import PreviewAsk
from relay.preview import made
from store import approval_views, previews

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


@router.post("/{approval_id}/preview")
async def preview(services: Open, who: Reader, approval_id: ApprovalId) -> dict[str, object]:
    """Have the tool look, read-only, at what the call would change; the approval with what it found, or with why it
    found nothing. It changes nothing else, so it takes no Idempotency-Key; asked again, it looks again."""
    if not who.sees_tenant:
        raise CallerError("role_required", "this needs the role reviewer or admin", status=403)
    async with services.db.transaction(who.tenant_id) as tx:
        address = await previews.place_of(tx, approval_id)
    ask = PreviewAsk(address=address, approval_id=approval_id, routing=services.routing)
    fault = await made(services.doorbell.client, ask)
    async with services.db.transaction(who.tenant_id) as tx:
        if fault:
            await previews.keep(tx, approval_id, {"fault": fault})
        shown = await approval_views.get(tx, approval_id, None, person(who))
    return shown | {"links": links(services, who, shown)}
