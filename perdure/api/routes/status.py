"""State of the deployment: its services, its task queues and their workers, and the tenant's open turns."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from temporalio.service import RPCError

from perdure.api.auth import Open, Operator, Principal, ReaderOrOperator
from perdure.api.health import LOOK_SECONDS, NEEDED
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import turn_workflow_id
from perdure.core.status import queue_fault, relay_fault
from perdure.store.status import ServerLooks, Workload, workload_of
from perdure.temporal.status import QueueState, describe_queues

status_router = APIRouter(prefix="/v1", tags=["status"])
UNAVAILABLE = "unavailable"
"""The only text that a tenant receives about a fault of the deployment."""


@status_router.get("/status")
async def status(services: Open, who: ReaderOrOperator) -> dict[str, object]:
    """Reports the state of the deployment. A part that is down or read-only appears within seconds.

    Reviewers and administrators of a tenant see their tenant: whether all parts work, which parts are unavailable, the
    open turns and the oldest pending approval. Operators see what concerns all tenants: workers and backlog by queue,
    MCP servers, the cause of each failure and the Temporal Web UI. `is_operator` distinguishes the two answers. An
    operator token belongs to no tenant, so its `turns` and `oldest_approval` are empty.
    """
    if who is not None and not who.sees_tenant:
        raise CallerError(
            "role_required", "The status requires the role reviewer or admin, or an operator token", status=403
        )
    tenant_id = who.tenant_id if who is not None else services.signing_in.tenant
    looks, queues, servers, workload = await asyncio.gather(
        services.parts.look(),
        _read_queues(services),
        ServerLooks(services.valkey).list_recent(),
        _read_workload(services, tenant_id),
    )
    faults = {name: part.fault for name, part in looks.items()}
    faults["relay"] = relay_fault(workload.relay_sessions, workload.overdue)
    notes = {name: {"note": part.note} for name, part in looks.items() if part.note}
    shown = [_queue_body(services, who, each) for each in queues]
    of_queues, of_servers = [each["fault"] for each in shown], [each.fault for each in servers]
    is_operator = who is None or who.is_operator
    page = workflows_page(services, who)
    return {
        "at": datetime.now(UTC),
        "is_operator": is_operator,
        "well": not any((*faults.values(), *of_queues, *of_servers)),
        "parts": [{"name": name, "fault": fault, **notes.get(name, {})} for name, fault in faults.items()]
        if is_operator
        else _parts_of_tenant(faults, of_queues, of_servers),
        "queues": shown if is_operator else [],
        "mcp_servers": [asdict(each) for each in servers] if is_operator else [],
        "turns": workload.turns if who is not None else [],
        "oldest_approval": workload.oldest_approval if who is not None else None,
        "links": {"temporal": page} if page else {},
    }


def _parts_of_tenant(faults: dict[str, str], of_queues: list[str], of_servers: list[str]) -> list[dict[str, str]]:
    """Returns the services without the causes of their faults. Of the queues and MCP servers, it returns only whether
    one has a fault."""
    fault_by_part = {
        **faults,
        "workers": next(filter(None, of_queues), ""),
        "mcp_servers": next(filter(None, of_servers), ""),
    }
    return [{"name": name, "fault": UNAVAILABLE if fault else ""} for name, fault in fault_by_part.items()]


async def _read_queues(services: Services) -> list[QueueState]:
    """Returns the task queues; empty if Temporal does not respond. The outage itself appears among the services."""
    try:
        async with asyncio.timeout(2 * LOOK_SECONDS):
            client = services.notifier.client
            return await describe_queues(client, services.routing, timedelta(seconds=LOOK_SECONDS))
    except (RPCError, TimeoutError):
        return []


async def _read_workload(services: Services, tenant_id: str) -> Workload:
    async with services.db.transaction(tenant_id) as tx:
        return await workload_of(tx)


def _queue_body(services: Services, who: Principal | None, look: QueueState) -> dict[str, Any]:
    page = queue_page(services, who, look.name)
    links = {"links": {"temporal": page} if page else {}}
    return asdict(look) | {"fault": queue_fault(look.workers, look.backlog, look.oldest_seconds)} | links


health_router = APIRouter(tags=["health"])


@health_router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Reports that the process is alive."""
    return {"status": "ok"}


@health_router.get("/readyz")
async def readyz(services: Open) -> JSONResponse:
    """Reports whether the API can serve requests: Postgres and Temporal accept writes, and a local disk has free space.
    A Valkey outage affects only live tokens, so it does not count. The response is one word and needs no token or
    allowed host. Operators get the details from `GET /v1/status`."""
    parts = await services.parts.look()
    ready = not any(parts[name].fault for name in NEEDED if name in parts)
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@health_router.get("/metrics")
async def metrics(_: Operator) -> Response:
    """Returns Prometheus metrics; requires an operator token. With PERDURE_METRICS_PORT they are also served on their
    own port."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


# Temporal's own pages show, and can end, the turns of all tenants. The links are for operators only, and empty if the
# operator configures no such pages.
def turn_page(services: Services, who: Principal | None, turn_id: str) -> str:
    """Returns the page of a turn's workflow."""
    return _temporal_page(services, who, "workflows", turn_workflow_id(turn_id))


def queue_page(services: Services, who: Principal | None, name: str) -> str:
    """Returns the page of a task queue with its pollers."""
    return _temporal_page(services, who, "task-queues", name)


def workflows_page(services: Services, who: Principal | None) -> str:
    """Returns the page of all workflows of the namespace."""
    return _temporal_page(services, who, "workflows")


def _temporal_page(services: Services, who: Principal | None, *path: str) -> str:
    """Returns the page for this user, or an empty text; None is the operator."""
    if not services.temporal_ui or (who is not None and not who.is_operator):
        return ""
    # A workflow's id has a colon, which the links of these pages do not escape.
    written = (quote(part, safe=":") for part in ("namespaces", services.temporal_namespace, *path))
    return "/".join((services.temporal_ui, *written))
