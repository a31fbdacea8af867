"""Episodes get their vectors here, beside the delivery of wake-ups and away from the workers that run turns.

Safe to run twice: rows are taken with a lock and come due again where nothing came of it. The last loop of a roll-out
to another model wins: it drops the vectors of every other.
"""

import asyncio

import structlog

from embedding.embedder import AT_ONCE, Embedder, EmbeddingUnavailable
from relay.trouble import Trouble
from store import episodes
from store.database import Database
from store.episodes import Vector
from store.open_turns import tenants

POLL_SECONDS = 1.0
"""A turn's summary can be found by its vector about this much after the turn."""
OUTAGE_SECONDS = 5.0
_log = structlog.get_logger(__name__)


async def embed_due(relay: Database, embedder: Embedder, tenant_id: str) -> int:
    """Embed a few of a tenant's episodes that wait; how many.

    Raises: EmbeddingUnavailable; those taken come due again after a minute.
    """
    async with relay.transaction(tenant_id) as tx:
        waiting = await episodes.to_embed(tx, AT_ONCE)
    if not waiting:
        return 0
    vectors = await embedder.embed([summary for _, summary in waiting])
    made = [(row[0], Vector(embedder.name, vector)) for row, vector in zip(waiting, vectors, strict=True)]
    async with relay.transaction(tenant_id) as tx:
        await episodes.set_vectors(tx, made)
    return len(made)


async def run_embedding(relay: Database, embedder: Embedder, stop: asyncio.Event) -> None:
    """Embed until `stop`; outages of Postgres and of the model are waited out."""
    trouble, begun = Trouble(), set[str]()
    while not stop.is_set():
        done, wait = 0, POLL_SECONDS
        try:
            for tenant_id in await tenants(relay.pool):
                if tenant_id not in begun:
                    async with relay.transaction(tenant_id) as tx:
                        await episodes.drop_vectors_of_others(tx, embedder.name)
                    begun.add(tenant_id)
                done += await embed_due(relay, embedder, tenant_id)
            trouble.is_over("episodes_wait_for_vectors")
        except (EmbeddingUnavailable, OSError, *relay.outages) as error:
            trouble.is_on("episodes_wait_for_vectors", error=error)
            wait = OUTAGE_SECONDS
        if not done:
            await asyncio.sleep(wait)
