"""Past episodes that come near to what a user says now, for an agent that asks for them.

A search that fails or takes long finds nothing, and the turn goes on (S0-28).
"""

import asyncio
from dataclasses import dataclass

import structlog
from pydantic import JsonValue

from activities.deps import Deps
from contracts.events import MEMORY_SEARCH
from embedding.embedder import query_vector
from policy.memory_text import Recalled
from store import episodes
from store.episodes import Vector
from store.journal import NewEvent

RECALL_SECONDS = 1.5
"""All of a search: `memory.load` may run inside a workflow task, where it has three seconds."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for, and among whose episodes."""

    tenant_id: str
    user_id: str
    agent_id: str
    text: str
    most: int


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a search found, and the event that tells of it."""

    hits: tuple[Recalled, ...]
    event: NewEvent


async def recall(deps: Deps, query: Query) -> Recollection:
    """The nearest episodes; none where memory is away."""
    try:
        async with asyncio.timeout(RECALL_SECONDS):
            made = await query_vector(deps.embedder, query.text)
            vector = Vector(*made) if made is not None else None
            async with deps.db.transaction(query.tenant_id) as tx:
                found = await episodes.find(tx, query.user_id, query.agent_id, query.text, vector, query.most)
    except (OSError, *deps.db.outages) as error:
        _log.warning("memory_search_failed", error=type(error).__name__)
        return Recollection((), NewEvent(MEMORY_SEARCH, {"scope": "episodic", "status": "unavailable", "hits": []}))
    by = episodes.BY_COSINE if vector is not None else episodes.BY_FULL_TEXT
    hits: list[JsonValue] = [{"episode_id": each.id, "similarity": each.similarity, "by": each.by} for each in found]
    event = NewEvent(MEMORY_SEARCH, {"scope": "episodic", "status": "ok", "by": by, "hits": hits})
    return Recollection(tuple(Recalled(each.summary, each.similarity or 0.0, each.by) for each in found), event)
