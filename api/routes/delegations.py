"""Standing in for somebody until a date: one's own delegations; an admin sees and ends everybody's."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import DelegationBody
from api.ids import as_uuid
from api.once import Key, once
from api.pages import Limit
from policy.withdrawal import ADMIN
from store import delegations
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1/delegations", tags=["approvals"])
MOST = 200


def _id(delegation_id: Annotated[str, Path()]) -> str:
    return as_uuid(delegation_id, "delegation")


@router.post("", status_code=201)
async def add(services: Open, who: Reader, body: DelegationBody, key: Key = None) -> JSONResponse:
    """Let somebody decide in your place until then, 90 days at most. Not on what you or they have asked for, and only
    where they have the asked role too: it lends the place of somebody who is named or assigned, and no role."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 201, await delegations.add(tx, who.user_id, who.name, body.to, body.until, who.credential), None

    return await once(services, who, "delegations", key, body, work)


@router.get("")
async def listed(
    services: Open,
    who: Reader,
    everybodys: Annotated[bool, Query(alias="all", description="of everybody; for an admin")] = False,
    limit: Limit = MOST,
    cursor: str | None = None,
) -> dict[str, object]:
    """Those that you gave and that hold now, newest first; `by` says whose place it is."""
    if everybodys:
        who.need(ADMIN)
    async with services.db.transaction(who.tenant_id) as tx:
        of = None if everybodys else who.user_id
        items, following = await delegations.listed(tx, of, min(limit, MOST), cursor)
    return {"items": items, "next": following}


@router.delete("/{delegation_id}", status_code=204)
async def remove(services: Open, who: Reader, delegation_id: Annotated[str, Depends(_id)]) -> Response:
    """End one of yours at once, as an admin anybody's. What was decided by it stands."""
    async with services.db.transaction(who.tenant_id) as tx:
        await delegations.remove(tx, who.user_id, delegation_id, anybodys=ADMIN in who.roles)
    return Response(status_code=204)
