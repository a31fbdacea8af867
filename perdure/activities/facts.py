"""The activity `memory.facts`: reads and stores facts for a running graph."""

import asyncio

import structlog
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard
from perdure.contracts.memory import FactsAnswer, FactsCall, FactScope, FactStatus
from perdure.embedding.embedder import EmbeddingUnavailable, query_vector
from perdure.store.database import Connection
from perdure.store.memory import facts
from perdure.store.memory.episodes import Vector

FACTS_SECONDS = 2.0
"""The limit of a whole operation. It can run inside a workflow task, which has three seconds."""
_log = structlog.get_logger(__name__)


class FactsActivities:
    """The fact activities of one worker. A running graph reads and stores facts with `memory.facts`. Failures become a
    status of the answer."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.facts")
    async def facts(self, call: FactsCall) -> FactsAnswer:
        """Reads or stores facts, if both the graph and the agent's definition allow it.

        Effects: one transaction. Retry: safe: a conversation's fact is written again with the same value, and a
        person's fact is stored once. Nothing is written for a turn that has ended.
        """
        async with activity_guard():
            try:
                async with asyncio.timeout(FACTS_SECONDS):
                    return await self._answer(call)
            except Exception as error:  # memory only advises, so its failures must not fail a turn
                _log.warning("facts_unavailable", scope=call.ask.scope.value, error=type(error).__name__)
                return FactsAnswer(status=call.ask.failed(), refused_change=facts.is_rejected_change(error))

    async def _answer(self, call: FactsCall) -> FactsAnswer:
        if not call.ask.authorized:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        if not self._deps.keeps_facts:
            return FactsAnswer(status=call.ask.failed())
        vectors = await self._vectors(call)
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            agent = await self._deps.agent_cache.read_pinned(tx, call.agent_id, call.agent_version)
            memory = agent.definition.memory
            if memory is None or call.ask.scope not in memory.facts:
                return FactsAnswer(status=FactStatus.UNAUTHORIZED)
            user_id = await facts.user_of_open_turn(tx, call)
            if user_id is None:
                return FactsAnswer(status=call.ask.failed())
            return await (_store_facts if call.ask.write else _read_facts)(tx, call, user_id, vectors)

    async def _vectors(self, call: FactsCall) -> list[Vector | None]:
        """Returns the vector for a search of a person's facts, or one for each fact that is stored.

        Runs before the transaction, so that the transaction does not wait for a model.
        """
        if call.ask.scope is FactScope.CONVERSATION:
            return []
        if not call.ask.write:
            embedded = await query_vector(self._deps.embedder, call.ask.about) if call.ask.about else None
            return [Vector(*embedded) if embedded else None]
        embedder, texts = self._deps.embedder, [fact.content for fact in call.ask.facts]
        if embedder is None or not texts:
            return [None] * len(texts)
        try:
            async with asyncio.timeout(FACTS_SECONDS / 2):
                return [Vector(embedder.name, values) for values in await embedder.embed(texts)]
        except (EmbeddingUnavailable, TimeoutError):
            return [None] * len(texts)  # without a vector, full-text search still finds the fact


async def _store_facts(tx: Connection, call: FactsCall, user_id: str, vectors: list[Vector | None]) -> FactsAnswer:
    if call.ask.scope is FactScope.CONVERSATION:
        await facts.keep_in_conversation(tx, call)
    else:
        await facts.add_for_user(tx, call, user_id, vectors)
    return FactsAnswer(status=FactStatus.SUCCESS)


async def _read_facts(tx: Connection, call: FactsCall, user_id: str, vectors: list[Vector | None]) -> FactsAnswer:
    """Reads facts. An empty result is `not_found` for a conversation and `success` for a person."""
    ask = call.ask
    if ask.scope is FactScope.CONVERSATION:
        found = await facts.of_conversation(tx, call.address.conversation_id, ask.types)
        return FactsAnswer(status=FactStatus.SUCCESS if found else FactStatus.NOT_FOUND, facts=tuple(found))
    found = await facts.of_user(tx, user_id, ask.types, ask.about, vectors[0])
    return FactsAnswer(status=FactStatus.SUCCESS, facts=tuple(found))
