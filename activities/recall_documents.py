"""Documents that come near to what a user says: found, shown within their budget, and noted in the turn's usage rows.

The text is one system message of this turn alone: whoever fixes it as the turn's memory text sends the same at every
model call, and the next turn makes its own (S2-18).
"""

import asyncio

import structlog
from pydantic import JsonValue

from activities.deps import Deps
from contracts.documents import DEFAULT_LIMITS, MemoryLimits, Recalled, Use
from contracts.events import MEMORY_CONTEXT_LOADED
from contracts.turns import TurnAddress
from policy.documents.context import context_message, within_budget
from store.database import Connection
from store.documents_search import Question, search, shown
from store.documents_usage import note
from store.journal import NewEvent

RECALL_SECONDS = 1.5
"""All of a search that no caller waits for any longer."""
NOTHING = Recalled()
_log = structlog.get_logger(__name__)


async def recall(tx: Connection, address: TurnAddress, query: str, limits: MemoryLimits = DEFAULT_LIMITS) -> Recalled:
    """What memory has for this turn's user about `query` (S2-07, S2-12); nothing for a query of blanks.

    Effects: usage rows, once a turn and version. Retry: safe. `loaded_event` is the caller's to write, last.
    """
    user_id = await tx.fetchval("SELECT user_id FROM turns WHERE id = $1", address.turn_id) if query.strip() else None
    if user_id is None:
        return NOTHING
    question = Question(query, str(user_id), address.conversation_id)
    found = await search(tx, question, limits.context_documents)
    fitting = within_budget(await shown(tx, question, found), limits.context_tokens)
    if not fitting:
        return NOTHING
    await note(tx, address, Use.INJECTED, [each.ref.version_id for each in fitting])
    return Recalled(text=context_message(fitting), hits=tuple(each.ref for each in fitting))


def loaded_event(recalled: Recalled) -> NewEvent | None:
    """The event that tells of it (S2-15); None where nothing was found."""
    if not recalled.hits:
        return None
    documents: list[JsonValue] = [ref.model_dump(mode="json") for ref in recalled.hits]
    return NewEvent(MEMORY_CONTEXT_LOADED, {"scope": "documents", "documents": documents})


async def recall_or_nothing(deps: Deps, address: TurnAddress, query: str) -> Recalled:
    """`recall` in a transaction of its own: whatever goes wrong there is logged, and the turn goes on (S2-17)."""
    try:
        async with asyncio.timeout(RECALL_SECONDS):
            async with deps.db.transaction(address.tenant_id) as tx:
                return await recall(tx, address, query, deps.memory)
    except Exception as error:  # a mistake of ours too: what is remembered only advises, and no turn fails for it
        _log.warning("document_recall_failed", error=type(error).__name__)
        return NOTHING
