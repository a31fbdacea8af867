"""Is it up, is it ready, what does it count."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.auth import Open
from api.parts import parts_of

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: Open) -> JSONResponse:
    """Postgres and Temporal answer; Valkey may be away, which costs live tokens only."""
    parts = await parts_of(services)
    ready = parts["postgres"] and parts["temporal"]
    return JSONResponse({"ready": ready, "parts": parts}, 200 if ready else 503)


@router.get("/metrics")
async def metrics() -> Response:
    """For Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
