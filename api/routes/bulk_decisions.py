"""Many decisions at once: each taken for itself, in a transaction of its own; what one answers changes no other."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.bodies import ItemBody, ManyBody
from api.errors import outcome_of
from api.ids import as_uuid
from api.metrics import DECISIONS
from api.once import DELIVERY_SECONDS, Key
from api.routes.approvals import decisions_per_minute, person
from api.services import Services
from contracts.digests import digest_of
from contracts.errors import CallerError
from policy.bulk import NOT_IN_BULK, approvable_together
from policy.decision import Decision
from store import idempotency
from store.bulk import asked_about
from store.decisions import Decided, DecisionAsk, decide
from store.outbox import Note

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
ROUTE = "decisions"


@router.post("/decisions")
async def decide_many(services: Open, who: Reader, body: ManyBody, key: Key = None) -> JSONResponse:
    """Approve or reject up to 100. Only calls of low risk and of one tool are approved together; anything can be
    rejected, with a reason."""
    digest = digest_of(body.model_dump(mode="json"))
    if key is not None:
        async with services.db.transaction(who.tenant_id) as tx:
            before = await idempotency.claim(tx, who.user_id, ROUTE, key, digest)
        if before is not None and before[0] != 0:
            return JSONResponse(before[1], before[0], {"Idempotency-Replayed": "true"})
    together = await _together(services, who, body)
    answers: list[dict[str, object]] = []
    rung: list[tuple[Decided, Note | None]] = []
    for item in body.items:
        try:
            answer, decided = await _decide_one(services, who, item, together, key, digest)
            rung += [decided] if decided is not None else []
        except CallerError as refused:
            answer = {"id": item.id, "error": outcome_of(refused)}
        answers.append(answer)
    encoded = jsonable_encoder({"items": answers, "next": None})
    if key is not None:
        async with services.db.transaction(who.tenant_id) as tx:
            await idempotency.keep(tx, who.user_id, ROUTE, key, 200, encoded)
    await _ring(services, rung)
    return JSONResponse(encoded)


async def _together(services: Services, who: Principal, body: ManyBody) -> bool:
    """Whether those that are to be approved may be approved in one go."""
    ids = [found for item in body.items if item.decision is Decision.APPROVE and (found := _uuid(item.id))]
    async with services.db.transaction(who.tenant_id) as tx:
        return approvable_together(await asked_about(tx, ids, person(who)))


async def _decide_one(
    services: Services, who: Principal, item: ItemBody, together: bool, key: str | None, digest: str
) -> tuple[dict[str, object], tuple[Decided, Note | None] | None]:
    """The answer of one item, and what is to be rung for it.

    Raises: CallerError, as for a decision; 422 `not_in_bulk`.
    """
    approval_id = as_uuid(item.id, "approval")
    taken = item.decision is Decision.REJECT or (item.decision is Decision.APPROVE and together)
    unfit = None if taken else CallerError("not_in_bulk", NOT_IN_BULK, status=422)
    ask = DecisionAsk(
        decision=item.decision, digest=item.digest, comment=item.comment, reason_code=item.reason_code, channel="bulk"
    )
    route = f"{ROUTE}/{approval_id}"
    async with services.db.transaction(who.tenant_id) as tx:
        if key is not None:
            before = await idempotency.claim(tx, who.user_id, route, key, digest)
            if before is not None and isinstance(before[1], dict):
                return {**before[1]}, None
        most = decisions_per_minute(services, who)
        decided = await decide(tx, approval_id, person(who), who.name, ask, most, unfit=unfit)
        answer: dict[str, object] = {"id": item.id, "status": decided[0].status}
        if key is not None:
            await idempotency.keep(tx, who.user_id, route, key, 200, jsonable_encoder(answer))
    DECISIONS.labels(decision=item.decision.value).inc()
    return answer, decided


async def _ring(services: Services, rung: list[tuple[Decided, Note | None]]) -> None:
    """Wake the turns; all of it is durable, and what is not delivered in time is left to the relay."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DELIVERY_SECONDS):
            await asyncio.gather(*(services.doorbell.deliver_soon(note) for _, note in rung if note is not None))
    for conversation_id in dict.fromkeys(decided.conversation_id for decided, _ in rung):
        await services.live.wake(conversation_id)


def _uuid(text: str) -> str | None:
    try:
        return as_uuid(text, "approval")
    except CallerError:
        return None
