"""Workers inside the test process serve the test app's queues, so that whole turns run on the real server."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Worker

from perdure.contracts.activities import WAKE
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import approval_id, effect_key, turn_workflow_id
from perdure.contracts.turns import ENDED, Kind, Limits, Routing, TurnAddress, TurnStatus, WakeSignal
from perdure.core.approvals.decisions import Decision
from perdure.core.turns import Caps, OnBusy
from perdure.store.delivery.outbox import Note
from perdure.worker.queues import workers_for
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, own_queues

PAUSED = TurnStatus.AWAITING_APPROVAL
PAY: tuple[str, dict[str, Any]] = ("pay", {"amount": 5})
POST: tuple[str, dict[str, Any]] = ("post", {"text": "hello"})
DONE = Line("well")
MANY = Caps(turns_a_user=100_000)
ALL_KINDS = (Kind.APPROVALS, Kind.MEMORY, Kind.TOOLS, Kind.LLM, Kind.TURNS)
"""The turns kind last: where kinds share a queue it serves them all."""


@dataclass(slots=True)
class Served:
    """Turns of the test app: starts them, watches them and decides."""

    harness: Harness
    client: Client
    workers: dict[str, Worker] = field(default_factory=dict)
    """The workers by task queue."""

    async def begin(
        self,
        *lines: Line,
        agent_id: str = "desk",
        conversation_id: str | None = None,
        on_busy: OnBusy = OnBusy.REJECT,
        limits: Limits | None = None,
    ) -> TurnAddress:
        address, started = await self.harness.start(
            *lines, agent_id=agent_id, conversation_id=conversation_id, on_busy=on_busy, limits=limits, caps=MANY
        )
        if started.note is not None:
            assert await self.harness.deps.notifier.deliver_soon(started.note)
        return address

    async def row(self, address: TurnAddress) -> asyncpg.Record:
        return await self.harness.turn(address.turn_id)

    async def until(self, address: TurnAddress, *statuses: TurnStatus, seconds: float = 90.0) -> asyncpg.Record:
        """The turn's row once it has one of `statuses` (by default: ended or paused)."""
        wanted = {status.value for status in statuses or (*ENDED, PAUSED)}

        async def look() -> asyncpg.Record | None:
            row = await self.row(address)
            found = row["status"] in wanted
            assert found or row["ended_at"] is None, f"{row['status']} ({row['problem']}), not {sorted(wanted)}"
            return row if found else None

        return await until(look, seconds, every=0.02)

    async def run_to_end(self, *lines: Line, **given: Any) -> tuple[TurnAddress, asyncpg.Record]:
        address = await self.begin(*lines, **given)
        return address, await self.until(address, *ENDED)

    async def paused(self, *lines: Line, **given: Any) -> TurnAddress:
        address = await self.begin(*lines, **given)
        await self.until(address, PAUSED)
        await self.waits(address)
        return address

    async def waits(self, address: TurnAddress) -> str:
        return await self.waits_again(address, "")

    async def waits_again(self, address: TurnAddress, before: str) -> str:
        """The run id of another wait than `before`: the turn has looked, and pauses again."""

        async def look() -> str | None:
            found = await self.handle(address).describe()
            return found.run_id if found.workflow_type == "TurnWait" and found.run_id != before else None

        return await until(look)

    async def fails_once(self, address: TurnAddress) -> None:
        """Waits until a call of the turn has failed and its next attempt is not due yet."""

        async def failed_once() -> bool:
            pending = (await self.handle(address).describe()).raw_description.pending_activities
            return any(activity.attempt > 1 for activity in pending)

        await until(failed_once)

    async def waits_for(self, address: TurnAddress, *request_ids: str) -> str:
        """Waits until the turn waits for exactly these requests."""

        async def look() -> bool:
            row = await self.row(address)
            found = bool(row["waiting"]) and row["waiting"]["ids"] == [*request_ids]
            assert found or row["ended_at"] is None, row["problem"]
            return found

        await until(look)
        return await self.waits(address)

    async def decide(
        self, address: TurnAddress, call_id: str = "t1.0", decision: Decision = Decision.APPROVE, **given: Any
    ) -> None:
        _, note = await self.harness.decide(approval_id(address.turn_id, call_id), decision, **given)
        await self._ring(note)

    async def settle(self, address: TurnAddress, call_id: str, outcome: str = "happened") -> None:
        await self._ring(await self.harness.settle(address, call_id, outcome))

    async def stop(self, address: TurnAddress) -> None:
        await self._ring(await self.harness.stop(address.turn_id))

    async def _ring(self, note: Note | None) -> None:
        if note is not None:
            await self.harness.deps.notifier.deliver_soon(note)

    async def wake(self, address: TurnAddress, bell: WakeSignal | Mapping[str, Any] | str | None) -> None:
        await self.handle(address).signal(WAKE, bell)

    def handle(self, address: TurnAddress) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(turn_workflow_id(address.turn_id))

    async def history(self, address: TurnAddress, run_id: str | None = None) -> WorkflowHistory:
        return await self.client.get_workflow_handle(turn_workflow_id(address.turn_id), run_id=run_id).fetch_history()

    async def runs(self, address: TurnAddress) -> list[WorkflowHistory]:
        found: list[WorkflowHistory] = []
        run_id = (await self.handle(address).describe()).run_id
        while run_id:
            history = await self.history(address, run_id)
            found.insert(0, history)
            run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        return found

    async def nodes(self, address: TurnAddress) -> list[str]:
        return await self.harness.nodes(address.turn_id)

    async def states(self, address: TurnAddress) -> dict[str, str]:
        sql = "SELECT call_id, state FROM tool_calls WHERE turn_id = $1 ORDER BY call_id"
        return {row["call_id"]: row["state"] for row in await self.harness.rows(sql, address.turn_id)}

    async def transcript(self, address: TurnAddress) -> list[tuple[str, str]]:
        sql = "SELECT role, content FROM messages WHERE turn_id = $1 AND in_transcript ORDER BY seq"
        rows = await self.harness.rows(sql, address.turn_id)
        return [(row["role"], row["content"]) for row in rows if row["role"] != "user"]

    def effects(self, address: TurnAddress, path: str, call_id: str = "t1.0") -> int:
        keys = {effect_key(address.turn_id, call_id), f"{address.turn_id}/{call_id}"}
        return sum(1 for done, key in self.harness.world.effects if done == path and key in keys)

    def sent_to_model(self, address: TurnAddress) -> list[list[dict[str, Any]]]:
        seen = self.harness.model.seen
        return [[*asked.messages[1:]] for asked in seen if asked.idempotency_key.startswith(address.turn_id)]


async def serve(stack: AsyncExitStack, harness: Harness, kinds: tuple[Kind, ...]) -> dict[str, Worker]:
    workers = {}
    for queue, kind in {harness.routing.queue(kind): kind for kind in kinds}.items():
        for worker in workers_for(harness.deps, kind, queue):
            await stack.enter_async_context(worker)
            workers[worker.task_queue] = worker
    return workers


def apart(harness: Harness, temporal: Client, base: Routing | None = None) -> Served:
    """The test app on separate queues, without workers yet."""
    return Served(replace(harness, routing=own_queues(base)), temporal)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Checks that the block is refused with this code."""
    with pytest.raises(CallerError) as raised:
        yield
    assert raised.value.code == code


@pytest.fixture(scope="module")
async def served(harness: Harness, temporal: Client) -> AsyncIterator[Served]:
    """The test app with workers for every queue of the module."""
    async with AsyncExitStack() as stack:
        yield Served(harness, temporal, await serve(stack, harness, ALL_KINDS))
