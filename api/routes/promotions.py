"""Promotions: a document proposed for everybody, and an administrator's decision on it (S2-72)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.document_bodies import PromotionDecisionBody, ProposalBody
from api.ids import as_uuid
from api.once import Key, once
from api.pages import Limit
from api.routes.documents import writer_of
from policy.documents.promotion import PromotionState
from policy.documents.writing import ADMIN
from store import documents_promotions, documents_reading, quotas
from store.database import Connection
from store.documents_promotions import Target
from store.outbox import Note

router = APIRouter(prefix="/v1/memory/promotions", tags=["memory"])
MOST_LISTED = 200


def _promotion(promotion_id: Annotated[str, Path()]) -> str:
    return as_uuid(promotion_id, "promotion")


PromotionId = Annotated[str, Depends(_promotion)]


@router.post("", status_code=201)
async def propose(services: Open, who: Reader, body: ProposalBody, key: Key = None) -> JSONResponse:
    """Propose a document that you can read; nothing shared changes before an administrator has approved it."""
    document_id = as_uuid(body.document_id, "document")
    target = Target(body.store, body.path, body.risk)

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        source = await documents_reading.get(tx, document_id, who.user_id)
        made = await documents_promotions.propose(tx, writer_of(who), source, target, body.basis(), services.memory)
        await quotas.check_room(tx, services.caps.quotas, who.user_id)
        # The answer is kept under its key for a day: the text itself is read where it can be redacted.
        return 201, {name: value for name, value in made.items() if name != "content"}, None

    return await once(services, who, "memory/promotions", key, body, work)


@router.get("")
async def listed(
    services: Open, who: Reader, status: PromotionState | None = None, limit: Limit = 50, cursor: str | None = None
) -> dict[str, object]:
    """Promotions without their texts, proposed last first: yours, and for an administrator everybody's."""
    async with services.db.transaction(who.tenant_id) as tx:
        found, following = await documents_promotions.listed(tx, _seen_by(who), status, min(limit, MOST_LISTED), cursor)
    return {"items": found, "next": following}


@router.get("/{promotion_id}")
async def get(services: Open, who: Reader, promotion_id: PromotionId) -> dict[str, object]:
    """One promotion with the text that was proposed."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await documents_promotions.get(tx, promotion_id, _seen_by(who))


@router.post("/{promotion_id}/decision")
async def decide(
    services: Open, who: Reader, promotion_id: PromotionId, body: PromotionDecisionBody, key: Key = None
) -> JSONResponse:
    """Approve or reject, once; the digest is that of the text which you read. Needs admin, and not the proposer."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        await documents_promotions.get(tx, promotion_id, _seen_by(who))
        decided = await documents_promotions.decide(
            tx, promotion_id, writer_of(who), body.decision, body.sha256, body.comment, services.memory
        )
        return 200, {name: value for name, value in decided.items() if name != "content"}, None

    return await once(services, who, f"memory-promotion/{promotion_id}", key, body, work)


def _seen_by(who: Principal) -> str | None:
    return None if ADMIN in who.roles else who.user_id
