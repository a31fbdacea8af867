"""Embeds stored episodes in the relay process, away from the workers that run turns.

Several loops can run at the same time: rows are claimed with a lock, and become due again if they get no vector. After
a rollout with another model, the new loop prevails. Every few minutes it deletes the vectors of all other models,
including those that an old loop added late.
"""

import asyncio
import time

import structlog

from perdure.embedding.embedder import BATCH_TEXTS, Embedder, EmbeddingUnavailable, VectorRejected
from perdure.store.database import Database
from perdure.store.memory import episodes
from perdure.store.memory.episodes import Vector
from perdure.store.turns.reconcile import list_tenants
from perdure.telemetry.metrics import LastingProblem

POLL_SECONDS = 1.0
"""The polling interval. A search finds the summary of a turn by its vector about this long after the turn."""
OUTAGE_SECONDS = 5.0
SWEEP_SECONDS = 300.0
"""The interval is long enough that the loops of a rollout, which run side by side for minutes, do not repeatedly embed
everything again."""
_log = structlog.get_logger(__name__)


async def embed_due(relay: Database, embedder: Embedder, tenant_id: str) -> int:
    """Embeds a few of a tenant's pending episodes and returns their number.

    Raises: EmbeddingUnavailable. The claimed episodes are due again after a minute.
    """
    async with relay.transaction(tenant_id) as tx:
        pending = await episodes.to_embed(tx, BATCH_TEXTS)
    if not pending:
        return 0
    vectors = await _embed(embedder, pending)
    async with relay.transaction(tenant_id) as tx:
        await episodes.set_vectors(tx, vectors)
    return len(vectors)


async def _embed(embedder: Embedder, pending: list[tuple[str, str]]) -> list[tuple[str, Vector]]:
    """Returns the vectors by id. If a text has no usable vector, only that text is left out.

    Raises: EmbeddingUnavailable; VectorRejected if none of the texts has a vector.
    """
    try:
        vectors = await embedder.embed([summary for _, summary in pending])
    except VectorRejected:
        if len(pending) == 1:
            raise
    else:
        return [(row[0], Vector(embedder.name, vector)) for row, vector in zip(pending, vectors, strict=True)]
    embedded, refusals = list[tuple[str, Vector]](), list[VectorRejected]()
    for row in pending:
        try:
            embedded += await _embed(embedder, [row])
        except VectorRejected as error:
            refusals.append(error)
    if not embedded:
        raise refusals[0]
    _log.warning("episodes_without_vector", count=len(refusals), error=str(refusals[0]) if refusals else "")
    return embedded


async def run_embedding(relay: Database, embedder: Embedder, stop: asyncio.Event) -> None:
    """Embeds until `stop`; waits during outages of Postgres and of the model."""
    problems, swept_at = LastingProblem(), dict[str, float]()
    while not stop.is_set():
        embedded, wait = 0, POLL_SECONDS
        try:
            for tenant_id in await list_tenants(relay):
                if time.monotonic() - swept_at.get(tenant_id, -SWEEP_SECONDS) >= SWEEP_SECONDS:
                    async with relay.transaction(tenant_id) as tx:
                        await episodes.drop_vectors_of_others(tx, embedder.name)
                    swept_at[tenant_id] = time.monotonic()
                embedded += await embed_due(relay, embedder, tenant_id)
            problems.is_over("episodes_wait_for_vectors")
        except (EmbeddingUnavailable, OSError, *relay.outages) as error:
            problems.is_on("episodes_wait_for_vectors", error=error)
            wait = OUTAGE_SECONDS
        if not embedded:
            await asyncio.sleep(wait)
