"""State of the deployment: its services, its task queues and their workers, and the tenant's open turns."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from temporalio.service import RPCError

from perdure.api.auth import CallerOrOperator, Operator, Principal, ServicesDep
from perdure.api.errors import PART_ERRORS, log_outage, outage_code
from perdure.api.health import CHECK_SECONDS, REQUIRED_PARTS, PartHealth
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import turn_workflow_id
from perdure.core.status import queue_fault, relay_fault, stuck_fault
from perdure.store.status import ServerStates, Workload, workload_of
from perdure.temporal.status import QueueState, describe_queues

status_router = APIRouter(prefix="/v1", tags=["status"])
UNAVAILABLE = "unavailable"
"""The only text that a tenant receives about a fault of the deployment."""
_UNKNOWN_WORKLOAD = Workload([], [], None, 0, 0)


@status_router.get("/status")
async def status(services: ServicesDep, caller: CallerOrOperator) -> dict[str, object]:
    """Reports the state of the deployment. Parts that are down, full, locked or read-only appear within seconds.

    Reviewers and administrators of a tenant see their tenant: whether all parts work, which parts are unavailable, the
    open turns, those that do not continue, and the oldest pending approval.

    Operators see what concerns all tenants: workers and backlog by queue, MCP servers, the cause of each failure,
    hanging programs (`processes`) and the Temporal Web UI. `is_operator` distinguishes the two answers. An operator
    token belongs to no tenant, so its `turns`, `stuck_turns` and `oldest_approval` are empty.

    If Postgres cannot be read, an operator token still gets an answer, with `is_workload_known: false`.
    """
    _check_reader(caller)
    tenant_id = caller.tenant_id if caller is not None else services.signing_in.tenant
    parts, queues, servers, workload = await asyncio.gather(
        services.parts.check(),
        _read_queues(services),
        ServerStates(services.valkey).list_recent(),
        _read_workload(services, tenant_id),
    )
    is_operator = caller is None or caller.is_operator
    faults, notes = _faults_and_notes(parts, workload, is_operator=is_operator)
    workload, is_known = workload or _UNKNOWN_WORKLOAD, workload is not None
    queue_bodies = [_queue_body(services, caller, item) for item in queues]
    queue_faults, server_faults = [item["fault"] for item in queue_bodies], [item.fault for item in servers]
    all_parts = [{"name": name, "fault": fault, **notes.get(name, {})} for name, fault in faults.items()]
    links = {"temporal": page} if (page := workflows_page(services, caller)) else {}
    return {
        "at": datetime.now(UTC),
        "is_operator": is_operator,
        "well": is_known and not any((*faults.values(), *queue_faults, *server_faults, workload.stuck)),
        "is_workload_known": is_known,
        "parts": all_parts if is_operator else _parts_of_tenant(faults, queue_faults, server_faults),
        "queues": queue_bodies if is_operator else [],
        "mcp_servers": [asdict(item) for item in servers] if is_operator else [],
        "turns": workload.turns if caller is not None else [],
        "stuck_turns": workload.stuck if caller is not None else [],
        "oldest_approval": workload.oldest_approval if caller is not None else None,
        "links": links,
    }


def _faults_and_notes(
    parts: Mapping[str, PartHealth], workload: Workload | None, *, is_operator: bool
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Returns the faults by part, and the notes of the parts that have one. The relay is unknown without a
    workload."""
    faults = {name: part.fault for name, part in parts.items()}
    notes = {name: {"note": part.note} for name, part in parts.items() if part.note}
    if workload is None:
        return faults | {"relay": ""}, notes | {"relay": {"note": "not checked, because Postgres cannot be read"}}
    faults["relay"] = relay_fault(workload.relay_sessions, workload.overdue)
    if is_operator and workload.stuck:
        faults["turns"] = stuck_fault(len(workload.stuck))
    return faults, notes


def _check_reader(caller: Principal | None) -> None:
    """Raises: CallerError 403 `role_required`."""
    if caller is not None and not caller.sees_tenant:
        message = "The status requires the role reviewer or admin, or an operator token"
        raise CallerError("role_required", message, status=403)


def _parts_of_tenant(faults: dict[str, str], queue_faults: list[str], server_faults: list[str]) -> list[dict[str, str]]:
    """Returns the services without the causes of their faults. Of the queues and MCP servers, it returns only whether
    one has a fault."""
    fault_by_part = {
        **faults,
        "workers": next(filter(None, queue_faults), ""),
        "mcp_servers": next(filter(None, server_faults), ""),
    }
    return [{"name": name, "fault": UNAVAILABLE if fault else ""} for name, fault in fault_by_part.items()]


async def _read_queues(services: Services) -> list[QueueState]:
    """Returns the task queues; empty if Temporal does not respond. The outage itself appears among the services."""
    try:
        async with asyncio.timeout(2 * CHECK_SECONDS):
            client = services.notifier.client
            return await describe_queues(client, services.routing, timedelta(seconds=CHECK_SECONDS))
    except (RPCError, TimeoutError):
        return []


async def _read_workload(services: Services, tenant_id: str) -> Workload | None:
    """Returns the tenant's work, or None if Postgres cannot be read: an operator needs the other parts most then."""
    try:
        async with asyncio.timeout(2 * CHECK_SECONDS), services.db.transaction(tenant_id) as tx:
            return await workload_of(tx)
    except PART_ERRORS as error:
        if not outage_code(error):
            raise
        log_outage(error, "/v1/status")
        return None


def _queue_body(services: Services, caller: Principal | None, queue: QueueState) -> dict[str, Any]:
    page = queue_page(services, caller, queue.name)
    links = {"links": {"temporal": page} if page else {}}
    return asdict(queue) | {"fault": queue_fault(queue.workers, queue.backlog, queue.oldest_seconds)} | links


health_router = APIRouter(tags=["health"])


@health_router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Reports that the process is alive."""
    return {"status": "ok"}


@health_router.get("/readyz")
async def readyz(services: ServicesDep) -> JSONResponse:
    """Reports whether the API can serve requests: Postgres and Temporal accept writes, and a local disk has free space.
    A write of a request that met a full, read-only or locked store counts for 5 s, and then until a check can write. A
    Valkey outage affects only live tokens, so it does not count. The response is one word and needs no token or allowed
    host. Operators get the details from `GET /v1/status`."""
    parts = await services.parts.check()
    ready = not any(parts[name].fault for name in REQUIRED_PARTS if name in parts)
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@health_router.get("/metrics")
async def metrics(_: Operator) -> Response:
    """Returns Prometheus metrics; requires an operator token. With PERDURE_METRICS_PORT they are also served on their
    own port."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


# Temporal's own pages show, and can end, the turns of all tenants. The links are for operators only, and empty if the
# operator configures no such pages.
def turn_page(services: Services, caller: Principal | None, turn_id: str) -> str:
    """Returns the page of a turn's workflow."""
    return _temporal_page(services, caller, "workflows", turn_workflow_id(turn_id))


def queue_page(services: Services, caller: Principal | None, name: str) -> str:
    """Returns the page of a task queue with its pollers."""
    return _temporal_page(services, caller, "task-queues", name)


def workflows_page(services: Services, caller: Principal | None) -> str:
    """Returns the page of all workflows of the namespace."""
    return _temporal_page(services, caller, "workflows")


def _temporal_page(services: Services, caller: Principal | None, *path: str) -> str:
    """Returns the page for this user, or an empty text; None is the operator."""
    if not services.temporal_ui or (caller is not None and not caller.is_operator):
        return ""
    # A workflow's id has a colon, which the links of these pages do not escape.
    parts = (quote(part, safe=":") for part in ("namespaces", services.temporal_namespace, *path))
    return "/".join((services.temporal_ui, *parts))
