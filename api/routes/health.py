"""Is it up, is it ready, what does it count."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.auth import Open, Operator
from api.parts import NEEDED

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: Open) -> JSONResponse:
    """Whether requests can be served: Postgres and Temporal answer and can write, and the disk has room if it is one of
    this machine. Valkey may be away, which costs live tokens only. Anybody may ask under any host, so the answer is one
    word; `GET /v1/status` says more to the operator."""
    parts = await services.parts.look()
    ready = not any(parts[name].fault for name in NEEDED if name in parts)
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@router.get("/metrics")
async def metrics(_: Operator) -> Response:
    """For Prometheus, by an operator's token. With PERDURE_METRICS_PORT they are also served on a port of their own."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
