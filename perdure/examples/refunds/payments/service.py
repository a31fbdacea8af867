"""The routes of the payments service.

| route | what it does |
|---|---|
| GET /healthz | 200; the only route without a credential |
| GET /orders/{number} | an order and how often it was refunded |
| POST /refunds | {order, amount_cents?, reason?}; honors Idempotency-Key: stored answer, or 422 for another body |
| POST /notes | {order, text}; knows no keys: every request that arrives lands |
| GET /ledger · GET /requests | every effect with its key, and counts · every request received, answered or not |
| GET, POST, DELETE /faults | delays for demos and tests, see faults.py |

Handlers are plain functions: each runs in a thread, so one that is held does not hold the others.
"""

import asyncio
import logging
import secrets
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .faults import Fault, Faults, Point
from .ledger import Effect, KeyReused, Ledger
from .orders import CURRENCY, MADE_UP, Order, find_order

_LOG = logging.getLogger("payments")
_RECORDED_PATHS = ("/orders", "/refunds", "/notes")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RefundBody(_Body):
    """A refund to make; the whole order if there is no amount."""

    order: str = Field(max_length=20)
    amount_cents: int | None = Field(default=None, gt=0)
    reason: str = Field(default="", max_length=500)


class NoteBody(_Body):
    """A note to the customer of an order."""

    order: str = Field(max_length=20)
    text: str = Field(min_length=1, max_length=2_000)


class RequestLog:
    """ASGI middleware: a request is on disk before anything is done for it, its status before the answer goes out."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_RECORDED_PATHS):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        key = request.headers.get("idempotency-key")
        number = await asyncio.to_thread(self._ledger.record_request, request.method, request.url.path, key)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                await asyncio.to_thread(self._ledger.record_status, number, message["status"])
            await send(message)

        await self._app(scope, receive, noting)


def build(ledger: Ledger, faults: Faults, token: str) -> FastAPI:
    """The service over `ledger`; every route but /healthz wants `Authorization: Bearer <token>`."""
    app = FastAPI(title="Payments (fictional)", description=MADE_UP, openapi_url=None)
    app.add_middleware(RequestLog, ledger=ledger)
    expected = f"Bearer {token}".encode()

    def require_token(authorization: str = Header(default="")) -> None:
        if not secrets.compare_digest(authorization.encode(), expected):
            raise HTTPException(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})

    @app.get("/healthz")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    for routes in (_order_routes(ledger, faults), _record_routes(ledger), _fault_routes(faults)):
        app.include_router(routes, dependencies=[Depends(require_token)])
    return app


def _order_routes(ledger: Ledger, faults: Faults) -> APIRouter:
    """Orders, and what is done about them."""
    routes = APIRouter()

    @routes.get("/orders/{number}")
    def order_status(number: str) -> dict[str, Any]:
        order = _require_order(number)
        counts = ledger.count(order.number)
        return {
            "order": order.number,
            "customer": order.customer,
            "item": order.item,
            "total_cents": order.total_cents,
            "currency": CURRENCY,
            "refunds": counts["refund"],
            "notes": counts["note"],
        }

    @routes.post("/refunds", status_code=201)
    def refund(
        body: RefundBody, response: Response, idempotency_key: str | None = Header(default=None, max_length=200)
    ) -> dict[str, Any]:
        order = _require_order(body.order)
        amount_cents = order.total_cents if body.amount_cents is None else body.amount_cents
        if amount_cents > order.total_cents:
            raise HTTPException(422, f"the refund exceeds the price of order {order.number}, {order.total_cents} cents")
        effect = Effect("refund", order.number, body.reason, amount_cents)
        answer, stored = _make_effect(ledger, faults, effect, idempotency_key, body)
        if stored:
            response.headers["Idempotent-Replay"] = "true"
        return {**answer, "currency": CURRENCY}

    @routes.post("/notes", status_code=201)
    def send_note(body: NoteBody) -> dict[str, Any]:
        order = _require_order(body.order)
        answer, _ = _make_effect(ledger, faults, Effect("note", order.number, body.text), None, body)
        return answer

    return routes


def _make_effect(
    ledger: Ledger, faults: Faults, effect: Effect, key: str | None, body: _Body
) -> tuple[dict[str, Any], bool]:
    faults.hold(Point.BEFORE_COMMIT, effect.kind)
    try:
        answer, stored = ledger.make(effect, key, body.model_dump())
    except KeyReused:
        raise HTTPException(422, "this Idempotency-Key was used with a different body") from None
    _LOG.info("%s for order %s%s", answer["id"], effect.order, " (repeated request, no new effect)" if stored else "")
    faults.hold(Point.AFTER_COMMIT, effect.kind)
    return answer, stored


def _record_routes(ledger: Ledger) -> APIRouter:
    """Returns the routes of effects and of received requests."""
    routes = APIRouter()

    @routes.get("/ledger")
    def show_ledger() -> dict[str, Any]:
        effects = ledger.effects()
        orders: dict[str, dict[str, int]] = {}
        for effect in effects:
            orders.setdefault(effect["order"], {"refund": 0, "note": 0})[effect["kind"]] += 1
        counts = {kind: sum(order[kind] for order in orders.values()) for kind in ("refund", "note")}
        return {"counts": counts, "orders": orders, "effects": effects, "note": MADE_UP}

    @routes.get("/requests")
    def show_requests() -> dict[str, Any]:
        received = ledger.requests()
        return {"count": len(received), "requests": received}

    return routes


def _fault_routes(faults: Faults) -> APIRouter:
    """Delays, armed and lifted."""
    routes = APIRouter()

    @routes.get("/faults")
    def show_faults() -> dict[str, list[Fault]]:
        return {"faults": faults.armed()}

    @routes.post("/faults", status_code=201)
    def arm(fault: Fault) -> dict[str, list[Fault]]:
        faults.add(fault)
        return {"faults": faults.armed()}

    @routes.delete("/faults", status_code=204)
    def lift() -> None:
        faults.clear()

    return routes


def _require_order(number: str) -> Order:
    order = find_order(number)
    if order is None:
        raise HTTPException(404, f"there is no order {number[:20]}")
    return order
