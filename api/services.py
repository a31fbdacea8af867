"""The clients of one API process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from api.streams import Streams
from contracts.turns import Routing
from embedding.choice import embedder_of
from embedding.embedder import Embedder
from policy.admission import Caps
from policy.audit_key import Keyring
from relay.connect import connect
from relay.deliver import Doorbell
from settings import Settings, needed
from store.database import Database
from store.live import LiveTokens
from store.valkey import Valkey
from store.wakes import Wakes

DATABASE_SECONDS = 5.0
"""A caller of the API is told within a few of these that Postgres is away."""


@dataclass(frozen=True, slots=True)
class Services:
    """What routes work with."""

    db: Database
    live: LiveTokens
    valkey: Valkey
    wakes: Wakes
    streams: Streams
    doorbell: Doorbell
    routing: Routing
    caps: Caps
    temporal_ui: str
    temporal_namespace: str
    keyring: Keyring
    audit_heads: Path
    """The exported heads of the audit's chains."""
    decisions_per_minute: int = 60
    local: bool = False
    """Whether this is the embedded stack of one machine, whose own tokens have no limit of decisions."""
    embedder: Embedder | None = None
    """None where episodes are searched by words."""


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Services]:
    """Open every client, and close them in the end.

    Raises: SystemExit where a variable is missing; the clients' own errors where a part does not answer.
    """
    keyring = settings.keyring()
    db = await Database.connect(
        needed(settings.database_url, "DATABASE_URL"),
        most=settings.pool_size,
        application="perdure-api",
        wait_seconds=DATABASE_SECONDS,
        keyring=keyring,
    )
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    live = LiveTokens(valkey)
    wakes = Wakes(db, valkey)
    client = await connect()
    ringing = asyncio.create_task(wakes.run())
    try:
        yield Services(
            db=db,
            live=live,
            valkey=valkey,
            wakes=wakes,
            streams=Streams(db, live, wakes),
            doorbell=Doorbell(client, db),
            routing=settings.route(),
            caps=Caps(settings.queue_depth, settings.live_turns_per_user),
            temporal_ui=settings.temporal_ui,
            temporal_namespace=client.namespace,
            keyring=keyring,
            audit_heads=settings.heads_file(),
            decisions_per_minute=settings.decisions_per_minute,
            local=settings.local,
            embedder=embedder_of(settings.embeddings, remote=False),
        )
    finally:
        ringing.cancel()
        with suppress(asyncio.CancelledError):
            await ringing
        await valkey.close()
        await db.close()
