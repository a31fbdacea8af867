"""Runs a POST with an idempotency key once: the same key and body return the first response. The key is stored in the
same transaction as the work."""

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
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="A text of your choice. A repeat with the same key and body gets the first answer",
    ),
]
Work = Callable[[Connection], Awaitable[tuple[int, dict[str, object], Note | None]]]
"""Runs in a transaction; returns the status, the response, and a wake signal to deliver after the commit."""
AfterCommit = Callable[[], Awaitable[None]]


async def run_once(
    services: Services,
    caller: Principal,
    route: str,
    key: str | None,
    body: BaseModel | None,
    work: Work,
    after_commit: AfterCommit | None = None,
) -> JSONResponse:
    """Runs `work` and returns its response. With a key that was used before, returns the stored response.

    `after_commit` runs after the commit and before the wake signal, whose delivery can take some time.

    Raises: CallerError 422 if the key was used with another body; the errors of `work`.
    """
    async with services.db.transaction(caller.tenant_id) as tx:
        if key is not None:
            # The key is the subject's own; its name can change between two tries.
            given = body.model_dump(mode="json", exclude={"on_behalf_of"}) if body is not None else None
            digest = digest_of(given)
            stored = await idempotency.claim(tx, caller.user_id, route, key, digest)
            if stored is not None:
                return JSONResponse(stored[1], stored[0], {"Idempotency-Replayed": "true"})
        status, answer, note = await work(tx)
        encoded = jsonable_encoder(answer)
        if key is not None:
            await idempotency.store_response(tx, caller.user_id, route, key, status, encoded)
    if after_commit is not None:
        await after_commit()
    if note is not None:
        # The work is durable. Temporal's client would retry for ten seconds; after two, the relay can deliver as well.
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                await services.notifier.deliver_soon(note)
    return JSONResponse(encoded, status)
