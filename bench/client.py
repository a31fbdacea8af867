"""The client of all stacks: starts a turn as each stack does it, and sees its end as a reader of its events would.

The end is the commit of the turn's last event. Every stack publishes on the conversation's channel in Valkey after a
commit, as the API's streams need it. On each message, this client checks Postgres for turns that have ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from bench.baselines import records
from bench.baselines.values import Turn
from bench.reference import AGENT, MESSAGE, Visitor
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import Routing
from perdure.core.turns import Caps
from perdure.store import agents
from perdure.store.database import Database
from perdure.store.events.live import WOKEN_BY_EVENTS, channel
from perdure.store.turns.start import NewTurn, start_turn
from perdure.store.valkey import Valkey
from perdure.temporal.workflow_client import Notifier

Begin = Callable[[str], Awaitable[str]]
"""Starts a turn in a conversation and returns the turn's id."""
_CAPS = Caps(turns_a_user=1_000)


@dataclass(slots=True)
class Client:
    """Starts turns and waits for their ends."""

    db: Database
    notifier: Notifier
    visitor: Visitor
    _waiting: dict[str, asyncio.Future[float]]
    _wake_signal: asyncio.Event

    @classmethod
    @asynccontextmanager
    async def open(cls, db: Database, notifier: Notifier, valkey: Valkey, visitor: Visitor) -> AsyncIterator["Client"]:
        """Opens a client that listens to the channels."""
        client = cls(db, notifier, visitor, {}, asyncio.Event())
        subscription = valkey.client.pubsub(ignore_subscribe_messages=True)
        await subscription.psubscribe(channel("*"))

        async def listen() -> None:
            while True:
                message = await subscription.get_message(timeout=30.0)
                if message is not None and message["data"] == WOKEN_BY_EVENTS:
                    client._wake_signal.set()

        tasks = [asyncio.create_task(listen()), asyncio.create_task(client._watch_ends())]
        try:
            yield client
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            await subscription.aclose()  # type: ignore[no-untyped-call]

    async def turn(self, begin: Begin, conversation_id: str) -> tuple[str, float]:
        """Runs one whole turn; returns its id, and the seconds from the request until its end was seen."""
        started_at = time.perf_counter()
        turn_id = await begin(conversation_id)
        end = asyncio.get_running_loop().create_future()
        self._waiting[turn_id] = end
        self._wake_signal.set()
        async with asyncio.timeout(60):
            return turn_id, await end - started_at

    async def _watch_ends(self) -> None:
        while True:
            await self._wake_signal.wait()
            self._wake_signal.clear()
            if not self._waiting:
                continue
            async with self.db.transaction(self.visitor.tenant_id) as tx:
                rows = await tx.fetch(
                    "SELECT id FROM turns WHERE id = ANY($1) AND ended_at IS NOT NULL", list(self._waiting)
                )
            now = time.perf_counter()
            for row in rows:
                self._waiting.pop(str(row["id"])).set_result(now)

    def on_perdure(self, routing: Routing) -> Begin:
        """Starts a turn as POST .../turns does: admission, turn, message and outbox row in one transaction, then the
        wake signal."""

        async def begin(conversation_id: str) -> str:
            visitor = self.visitor
            new = NewTurn(visitor.tenant_id, conversation_id, visitor.user_id, MESSAGE, routing=routing)
            async with self.db.transaction(visitor.tenant_id) as tx:
                agent = await agents.current_agent(tx, AGENT)
                started = await start_turn(tx, new, agent, _CAPS)
            if started.note is not None:
                await self.notifier.deliver_soon(started.note)
            return started.turn_id

        return begin

    def on_workflow(self, workflow: str, task_queue: str) -> Begin:
        """Starts a turn of a hand-written Temporal stack: the turn's rows, then its workflow."""

        async def begin(conversation_id: str) -> str:
            turn = await self._begin(conversation_id)
            turn_id = turn.address.turn_id
            await self.notifier.client.start_workflow(
                workflow, turn, id=turn_workflow_id(turn_id), task_queue=task_queue
            )
            return turn_id

        return begin

    def on_graph(self, feed: Callable[[bytes], None]) -> Begin:
        """Starts a turn of the LangGraph stack: the turn's rows, then a line to its process."""

        async def begin(conversation_id: str) -> str:
            turn = await self._begin(conversation_id)
            feed(turn.model_dump_json().encode())
            return turn.address.turn_id

        return begin

    async def _begin(self, conversation_id: str) -> Turn:
        async with self.db.transaction(self.visitor.tenant_id) as tx:
            stored_turn = await records.begin_turn(tx, self.visitor, conversation_id)
        return Turn(address=stored_turn.address, agent_version=stored_turn.agent_version)
