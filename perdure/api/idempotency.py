"""A POST with an Idempotency-Key is done once: same key and body, same answer, in the transaction of the work."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

from fastapi import Header
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from perdure.api.auth import Principal
from perdure.api.services import Services
from perdure.contracts.values import digest_of
from perdure.store import idempotency
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note

DELIVERY_SECONDS = 2.0
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)]
Work = Callable[[Connection], Awaitable[tuple[int, dict[str, object], Note | None]]]
"""In a transaction: (status, answer, wake-up to deliver after the commit)."""
Durable = Callable[[], Awaitable[None]]


async def once(
    services: Services,
    who: Principal,
    route: str,
    key: str | None,
    body: BaseModel | None,
    work: Work,
    durable: Durable | None = None,
) -> JSONResponse:
    """Do `work` and answer; with a key that was used before, answer as before. `durable` is done after the commit,
    before the wake-up is delivered, which may take its time.

    Raises: CallerError 422 where the key was used with another body; whatever `work` raises.
    """
    async with services.db.transaction(who.tenant_id) as tx:
        if key is not None:
            digest = digest_of(body.model_dump(mode="json") if body is not None else None)
            before = await idempotency.claim(tx, who.user_id, route, key, digest)
            if before is not None:
                return JSONResponse(before[1], before[0], {"Idempotency-Replayed": "true"})
        status, answer, note = await work(tx)
        encoded = jsonable_encoder(answer)
        if key is not None:
            await idempotency.keep(tx, who.user_id, route, key, status, encoded)
    if durable is not None:
        await durable()
    if note is not None:
        # The work is durable. Temporal's client would try for ten seconds; after two the relay may as well.
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                await services.doorbell.deliver_soon(note)
    return JSONResponse(encoded, status)
