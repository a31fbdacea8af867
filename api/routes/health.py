"""Is it up, is it ready, what does it count."""

import asyncio
from collections.abc import Awaitable

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.auth import Open

router = APIRouter(tags=["health"])
LOOK_SECONDS = 2.0


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: Open) -> JSONResponse:
    """Postgres and Temporal answer; Valkey may be away, which costs live tokens only."""

    async def postgres() -> None:
        await services.db.pool.fetchval("SELECT 1")

    async def temporal() -> None:
        await services.doorbell.client.service_client.check_health()

    async def valkey() -> None:
        await services.valkey.client.ping()

    checks = {"postgres": postgres(), "temporal": temporal(), "valkey": valkey()}
    results = dict(zip(checks, await asyncio.gather(*map(_answers, checks.values())), strict=True))
    ready = results["postgres"] and results["temporal"]
    return JSONResponse({"ready": ready, "parts": results}, 200 if ready else 503)


async def _answers(check: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(check, LOOK_SECONDS)
    except Exception:  # whatever is wrong with a part, it is not ready
        return False
    return True


@router.get("/metrics")
async def metrics() -> Response:
    """For Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
