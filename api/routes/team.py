"""The people of the tenant, for its administrators: see them, invite them, change their roles, close their accounts."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.auth_bodies import InviteBody, MemberBody
from store import invitations, team, users
from store.database import Connection
from store.invitations import Invitation

router = APIRouter(prefix="/v1/team", tags=["team"])
Name = Annotated[str, Path(max_length=100)]


@router.get("")
async def listed(services: Open, who: Reader) -> dict[str, object]:
    """Everybody, those with a closed account too."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": [asdict(member) for member in await team.listed(tx)], "next": None}


@router.post("/invitations", status_code=201)
async def invite(services: Open, who: Reader, body: InviteBody) -> JSONResponse:
    """Somebody new, with these roles. Whoever has the invitation sets the password, once, within a week; it is shown
    this once, and takes no Idempotency-Key, since it is never stored to be shown again."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        await users.add(tx, body.name, body.display_name, body.roles, who.user_id)
        return await _invited(tx, body.name, who)


@router.post("/{name}/invitation", status_code=201)
async def invite_again(services: Open, who: Reader, name: Name) -> JSONResponse:
    """A new invitation for somebody who is there: to a first password, or to another one where it was forgotten."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        return await _invited(tx, name, who)


@router.patch("/{name}")
async def change(services: Open, who: Reader, name: Name, body: MemberBody) -> dict[str, object]:
    """Other roles, another displayed name, the account closed or open again. Holds from the next request on."""
    who.need("admin")
    given = body.model_dump(exclude_none=True)
    async with services.db.transaction(who.tenant_id) as tx:
        return asdict(await team.change(tx, name, who.user_id, **given))


@router.delete("/{name}")
async def close(services: Open, who: Reader, name: Name) -> dict[str, object]:
    """Close the account: its sessions end, its tokens open nothing. What the person did stays."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        return asdict(await team.change(tx, name, who.user_id, active=False))


async def _invited(tx: Connection, name: str, who: Principal) -> JSONResponse:
    made: Invitation = await invitations.invite(tx, name, who.user_id, who.credential)
    answer = {"name": made.name, "invitation": made.token, "expires_at": made.expires_at}
    return JSONResponse(jsonable_encoder(answer), 201, {"Cache-Control": "no-store"})
