"""Entities: what `entity_resolve` finds and `create_entity` registers, for whoever belongs to the tenant (S0-72)."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import Open, Reader
from api.ids import EntityId
from api.pages import Limit
from contracts.errors import CallerError
from store import entities

router = APIRouter(prefix="/v1/entities", tags=["entities"])
MOST = 50


@router.get("")
async def found(
    services: Open, who: Reader, name: Annotated[str, Query(min_length=1, max_length=200)], limit: Limit = 20
) -> dict[str, object]:
    """Entities of this name or alias; where none is, those whose name contains it. Case and spacing do not count."""
    async with services.db.transaction(who.tenant_id) as tx:
        each = await entities.find(tx, name, min(limit, MOST))
    return {"items": [asdict(entity) for entity in each], "next": None}


@router.get("/{entity_id}")
async def get(services: Open, who: Reader, entity_id: EntityId) -> dict[str, object]:
    """One entity with its attributes."""
    async with services.db.transaction(who.tenant_id) as tx:
        entity = await entities.get(tx, entity_id)
    if entity is None:
        raise CallerError("entity_not_found", "there is no such entity", status=404)
    return asdict(entity)
