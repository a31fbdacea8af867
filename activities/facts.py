"""`memory.facts`: facts read and kept for a running graph. Whatever goes wrong is a status of the answer (S3-22)."""

import asyncio

import structlog
from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from contracts.facts import FactsAnswer, FactsCall, FactScope, FactStatus
from embedding.embedder import EmbeddingUnavailable, query_vector
from store import facts
from store.database import Connection
from store.episodes import Vector

FACTS_SECONDS = 2.0
"""All of an operation: it may run inside a workflow task, where it has three seconds."""
_log = structlog.get_logger(__name__)


class FactsActivities:
    """The facts of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.facts")
    async def facts(self, call: FactsCall) -> FactsAnswer:
        """Read or keep facts, where both the graph and the agent's own definition allow it.

        Effects: one transaction. Retry: safe: of a conversation the same is written again, a person's fact is kept
        once, and nothing is written for a turn that has ended.
        """
        async with edge():
            try:
                async with asyncio.timeout(FACTS_SECONDS):
                    return await self._answer(call)
            except Exception as error:  # memory advises: no trouble of it may be a turn's
                _log.warning("facts_unavailable", scope=call.ask.scope.value, error=type(error).__name__)
                return FactsAnswer(status=call.ask.failed(), refused_change=facts.was_change(error))

    async def _answer(self, call: FactsCall) -> FactsAnswer:
        if not call.ask.authorized:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        if not self._deps.keeps_facts:
            return FactsAnswer(status=call.ask.failed())
        vectors = await self._vectors(call)
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            agent = await self._deps.shelf.at(tx, call.agent_id, call.agent_version)
            memory = agent.definition.memory
            if memory is None or call.ask.scope not in memory.facts:
                return FactsAnswer(status=FactStatus.UNAUTHORIZED)
            user_id = await facts.whose_turn(tx, call)
            if user_id is None:
                return FactsAnswer(status=call.ask.failed())
            return await (_kept if call.ask.write else _read)(tx, call, user_id, vectors)

    async def _vectors(self, call: FactsCall) -> list[Vector | None]:
        """Of what a person's facts are searched by, or of each that is kept; before the transaction, which waits for no
        model."""
        if call.ask.scope is FactScope.CONVERSATION:
            return []
        if not call.ask.write:
            found = await query_vector(self._deps.embedder, call.ask.about) if call.ask.about else None
            return [Vector(*found) if found else None]
        embedder, texts = self._deps.embedder, [fact.content for fact in call.ask.facts]
        if embedder is None or not texts:
            return [None] * len(texts)
        try:
            async with asyncio.timeout(FACTS_SECONDS / 2):
                return [Vector(embedder.name, values) for values in await embedder.embed(texts)]
        except (EmbeddingUnavailable, TimeoutError):
            return [None] * len(texts)  # such a fact is found by its words


async def _kept(tx: Connection, call: FactsCall, user_id: str, vectors: list[Vector | None]) -> FactsAnswer:
    if call.ask.scope is FactScope.CONVERSATION:
        await facts.keep_in_conversation(tx, call)
    else:
        await facts.add_for_user(tx, call, user_id, vectors)
    return FactsAnswer(status=FactStatus.SUCCESS)


async def _read(tx: Connection, call: FactsCall, user_id: str, vectors: list[Vector | None]) -> FactsAnswer:
    """An empty answer about a conversation is `not_found`; about a person it is a success like any other (S3-30)."""
    ask = call.ask
    if ask.scope is FactScope.CONVERSATION:
        found = await facts.of_conversation(tx, call.address.conversation_id, ask.types)
        return FactsAnswer(status=FactStatus.SUCCESS if found else FactStatus.NOT_FOUND, facts=tuple(found))
    found = await facts.of_user(tx, user_id, ask.types, ask.about, vectors[0])
    return FactsAnswer(status=FactStatus.SUCCESS, facts=tuple(found))
