"""How the deployment is: its parts, its task queues and who serves them, and what the tenant's turns wait for."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter
from temporalio.service import RPCError

from api.auth import Open, Reader
from api.parts import LOOK_SECONDS
from api.services import Services
from api.temporal_pages import queue_page, workflows_page
from contracts.errors import CallerError
from policy.health import queue_fault, relay_fault
from relay.queues import QueueLook, look_at_queues
from store.server_looks import ServerLooks
from store.workload import Workload, workload_of

router = APIRouter(prefix="/v1", tags=["status"])


@router.get("/status")
async def status(services: Open, who: Reader) -> dict[str, object]:
    """Parts, queues, MCP servers as they were last met, and what waits, for reviewers and administrators. A part
    that does not answer is said to be away within seconds."""
    if not who.sees_tenant:
        raise CallerError("role_required", "this needs the role reviewer or admin", status=403)
    looks, queues, servers, workload = await asyncio.gather(
        services.parts.look(),
        _queues(services),
        ServerLooks(services.valkey).listed(),
        _workload(services, who.tenant_id),
    )
    faults = {name: part.fault for name, part in looks.items()}
    faults["relay"] = relay_fault(workload.relay_sessions, workload.overdue)
    notes = {name: {"note": part.note} for name, part in looks.items() if part.note}
    shown = [_queue(services, each) for each in queues]
    all_faults = (*faults.values(), *(each["fault"] for each in shown), *(each.fault for each in servers))
    return {
        "at": datetime.now(UTC),
        "well": not any(all_faults),
        "parts": [{"name": name, "fault": fault} | notes.get(name, {}) for name, fault in faults.items()],
        "queues": shown,
        "mcp_servers": [asdict(each) for each in servers],
        "turns": workload.turns,
        "oldest_approval": workload.oldest_approval,
        "links": {"temporal": workflows_page(services)} if services.temporal_ui else {},
    }


async def _queues(services: Services) -> list[QueueLook]:
    """Empty where Temporal does not say; that it is away stands among the parts."""
    try:
        async with asyncio.timeout(2 * LOOK_SECONDS):
            client = services.doorbell.client
            return await look_at_queues(client, services.routing, timedelta(seconds=LOOK_SECONDS))
    except (RPCError, TimeoutError):
        return []


async def _workload(services: Services, tenant_id: str) -> Workload:
    async with services.db.transaction(tenant_id) as tx:
        return await workload_of(tx)


def _queue(services: Services, look: QueueLook) -> dict[str, object]:
    page = queue_page(services, look.name)
    links = {"links": {"temporal": page} if page else {}}
    return asdict(look) | {"fault": queue_fault(look.workers, look.backlog, look.oldest_seconds)} | links
