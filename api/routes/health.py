"""Is it up, is it ready, what does it count."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.auth import Open
from api.parts import NEEDED

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: Open) -> JSONResponse:
    """Postgres and Temporal answer and can write, and their disk has room where it is one of this machine; Valkey may
    be away, which costs live tokens only."""
    parts = {name: not part.fault for name, part in (await services.parts.look()).items()}
    ready = all(parts[name] for name in NEEDED if name in parts)
    return JSONResponse({"ready": ready, "parts": parts}, 200 if ready else 503)


@router.get("/metrics")
async def metrics() -> Response:
    """For Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
