"""Users of the tenant, for its administrators."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import NewUser, RolesBody, TokenBody
from api.once import Key, once
from relay.histories import forget_histories
from store import erasure, users
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1", tags=["users"])
UserName = Annotated[str, Path(max_length=100)]


@router.get("/users")
async def listed(services: Open, who: Reader) -> dict[str, object]:
    """Every user."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": [asdict(user) for user in await users.listed(tx)], "next": None}


@router.post("/users", status_code=201)
async def add(services: Open, who: Reader, body: NewUser, key: Key = None) -> JSONResponse:
    """A new user; give them a token next."""
    who.need("admin")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 201, asdict(await users.add(tx, body.name, body.display_name, body.roles, who.user_id)), None

    return await once(services, who, "users", key, body, work)


@router.post("/users/{name}/roles")
async def roles(services: Open, who: Reader, name: UserName, body: RolesBody, key: Key = None) -> JSONResponse:
    """Give a user exactly these roles."""
    who.need("admin")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 200, asdict(await users.set_roles(tx, name, body.roles, who.user_id)), None

    return await once(services, who, f"users/{name}/roles", key, body, work)


@router.delete("/users/{name}/data")
async def erase(services: Open, who: Reader, name: UserName) -> dict[str, object]:
    """Erase everything that a user said, for ever; the audit keeps what happened. Cut off, it goes on when asked
    again."""
    who.need("admin")
    histories = partial(forget_histories, services.doorbell.client)
    return await erasure.erase(services.db, who.tenant_id, name, who.user_id, services.live, histories)


@router.post("/users/{name}/tokens", status_code=201)
async def token(services: Open, who: Reader, name: UserName, body: TokenBody) -> JSONResponse:
    """A new token of a user, shown this once. Takes no Idempotency-Key: a token is never stored to be shown again."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        minted = await users.mint_token(tx, name, body.label, who.user_id, who.credential)
    return JSONResponse({"name": name, "token": minted}, 201)
