"""The reconciler: nothing is left behind (design section 2).

It compares open turns with Temporal. A turn whose workflow was terminated, failed, timed out or vanished is finished
as `failed`, and the next turn of its conversation is admitted. A paused turn whose approval is decided is rung again,
and so is one that was asked to stop. What nobody decides on is given to somebody else, as its policy says. Each step
of a pass is a transaction of its own: one that fails holds up no other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import structlog
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.contracts.activities import TURN_RUN, TURN_WAIT
from perdure.contracts.errors import Problem
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress
from perdure.store.approvals.review import MOST_AT_ONCE, escalate_all_overdue, fall_back
from perdure.store.database import Connection, Database
from perdure.store.idempotency import forget_old
from perdure.store.memory.working_memory import forget_expired
from perdure.store.turns.finish import finish_broken
from perdure.store.turns.reconcile import (
    OpenTurn,
    open_turns,
    paused_among,
    ring_answered,
    ring_decided,
    ring_stopped,
    start_stranded,
    tenants,
)
from perdure.telemetry.metrics import Trouble
from perdure.temporal.workflow_client import Doorbell, workflow_gone

# --- What Temporal's own lists say of paused turns, read at most once in a pass of the reconciler, whatever the
# tenants. A list may be a moment old: a run that has ended since is found in a later pass. Where Temporal does not say,
# nothing is known, so that nobody is taken for lost.

PAGE = 1_000
ENDED_WITHIN = timedelta(minutes=10)
"""Twice as long as it takes until the waiting runs are listed again, which finds whatever this list left out."""
MOST_ENDED = 500
"""Of many that were ended by hand at once, the last ones first; the others are found among those that do not wait."""
_WAITING = f"WorkflowType = '{TURN_WAIT}' AND ExecutionStatus = 'Running'"
_ENDED = (
    f"WorkflowType IN ('{TURN_WAIT}', '{TURN_RUN}') "
    "AND ExecutionStatus IN ('Terminated', 'TimedOut', 'Failed', 'Canceled') AND CloseTime > '{}'"
)


class Listed:
    """The lists of one pass."""

    def __init__(self, client: Client, trouble: Trouble) -> None:
        self._client = client
        self._trouble = trouble
        self._found: dict[str, frozenset[str] | None] = {}

    async def waiting(self) -> frozenset[str] | None:
        """The workflows that wait, of all tenants."""
        return await self._list("waiting_runs_not_listed", _WAITING, None)

    async def ended(self) -> frozenset[str]:
        """The turns whose run somebody has ended a short while ago, or that failed or ran out of time."""
        since = datetime.now(UTC) - ENDED_WITHIN
        found = await self._list("ended_runs_not_listed", _ENDED.format(since.isoformat()), MOST_ENDED)
        return frozenset(turn_id for each in found or () if (turn_id := _turn_of(each)))

    async def _list(self, trouble: str, query: str, most: int | None) -> frozenset[str] | None:
        if trouble not in self._found:
            self._found[trouble] = await self._asked(trouble, query, most)
        return self._found[trouble]

    async def _asked(self, trouble: str, query: str, most: int | None) -> frozenset[str] | None:
        try:
            runs = self._client.list_workflows(query, page_size=PAGE, limit=most)
            found = frozenset([run.id async for run in runs])
        except RPCError as error:
            self._trouble.is_on(trouble, error=error)
            return None
        self._trouble.is_over(trouble)
        return found


def _turn_of(workflow_id: str) -> str:
    """The turn that a workflow runs; empty where somebody else's workflow is called like one of ours."""
    try:
        return str(UUID(workflow_id.removeprefix(turn_workflow_id(""))))
    except ValueError:
        return ""


INTERVAL_SECONDS = 5.0
SETTLING_SECONDS = 8.0
"""A turn younger than this may not have reached Temporal yet."""
AT_ONCE = 20
PAUSED_EVERY = 4
"""Paused turns are many and wait long: they are compared in every fourth pass, so within 20 s."""
FEW = 50
"""So many paused turns of a tenant are asked about one by one; of more, those whose run Temporal lists as ended a short
while ago. Asked one by one, 3,000 took all of the server's time (measured)."""
LISTED_EVERY = 60
"""What ended longer ago, or has vanished, is not on Temporal's list of waiting runs. That one is long: it is read in
every 60th pass, so within five minutes."""
LISTED_AT = 12
"""The first of these passes: a minute after a start, when there is other work to catch up with."""
MOST_HANDED_ON = 1_000
"""Requests of a tenant that one pass hands on, in transactions of MOST_AT_ONCE; the others wait for the next."""
SWEPT_EVERY = 720
"""Working memory that has expired is seen by nobody: it is removed in every 720th pass, so within an hour."""
T = TypeVar("T")
Ended = Callable[[TurnAddress], None]
_log = structlog.get_logger(__name__)

_ALIVE = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW})


class Reconciler:
    """One pass after another over all tenants."""

    def __init__(
        self, relay: Database, client: Client, doorbell: Doorbell, ended: Ended = lambda address: None
    ) -> None:
        """`ended` is told of each turn that it ended; it neither raises nor waits."""
        self._relay = relay
        self._ended = ended
        self._client = client
        self._doorbell = doorbell
        self._trouble = Trouble()
        self._passes = -1

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop`; an outage is waited out."""
        while not stop.is_set():
            try:
                await self.once()
                self._trouble.is_over("reconciler_waits")
            except (RPCError, OSError, *self._relay.outages) as error:
                self._trouble.is_on("reconciler_waits", error=error)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def once(self) -> int:
        """One pass; how many turns it finished."""
        finished = 0
        self._passes += 1
        listed = Listed(self._client, self._trouble)
        for tenant_id in await tenants(self._relay.pool):
            turns = await self._prepare(tenant_id)
            if sum(turn.is_paused for turn in turns) > FEW:
                turns = await self._suspects(tenant_id, turns, listed)
            for start in range(0, len(turns), AT_ONCE):
                batch = turns[start : start + AT_ONCE]
                finished += sum(await asyncio.gather(*(self._look_at(turn) for turn in batch)))
        return finished

    @property
    def _lists(self) -> bool:
        """Whether Temporal's list of waiting runs is read in this pass, where a tenant has many paused turns."""
        return self._passes % LISTED_EVERY == LISTED_AT

    async def _suspects(self, tenant_id: str, turns: list[OpenTurn], listed: Listed) -> list[OpenTurn]:
        """Those to ask about where a tenant has many paused turns: all that run, and of the paused ones the few of
        which Temporal's lists say that they may be lost."""
        running = [turn for turn in turns if not turn.is_paused]
        if self._lists:
            waiting = await listed.waiting()
            if waiting is None:
                return running
            return [t for t in turns if not t.is_paused or turn_workflow_id(t.address.turn_id) not in waiting]
        ended = await listed.ended()
        paused = (
            await self._step("open_turns_not_listed", tenant_id, lambda tx: paused_among(tx, ended)) if ended else ()
        )
        return [*running, *(paused or ())]

    async def _prepare(self, tenant_id: str) -> list[OpenTurn]:
        """Make good what was lost in Postgres itself; the turns to compare."""
        await self._step("stops_not_rung", tenant_id, lambda tx: ring_stopped(tx, tenant_id))
        await self._in_parts("deadlines_not_escalated", tenant_id, escalate_all_overdue)
        await self._in_parts("requests_not_handed_on", tenant_id, fall_back)
        stuck = await self._step("decisions_not_rung", tenant_id, lambda tx: ring_decided(tx, tenant_id))
        await self._step("answers_not_rung", tenant_id, lambda tx: ring_answered(tx, tenant_id))
        for turn_id in stuck or ():
            self._trouble.is_on("decided_turn_still_waits", turn_id)
        await self._step("stranded_turns_not_started", tenant_id, lambda tx: start_stranded(tx, tenant_id))
        await self._step("old_keys_not_forgotten", tenant_id, forget_old)
        if self._passes % SWEPT_EVERY == 0:
            await self._step("expired_memory_not_forgotten", tenant_id, forget_expired)
        turns = await self._step(
            "open_turns_not_listed", tenant_id, lambda tx: open_turns(tx, SETTLING_SECONDS, self._most_paused)
        )
        return turns or []

    @property
    def _most_paused(self) -> int | None:
        """How many paused turns of a tenant this pass reads: none, so many that it is seen whether there are few, or
        all, to be held against Temporal's list."""
        if self._passes % PAUSED_EVERY:
            return 0
        return None if self._lists else FEW + 1

    async def _in_parts(self, failed: str, tenant_id: str, work: Callable[[Connection], Awaitable[int]]) -> None:
        """Do `work` until it finds less than it takes at once, each time in a transaction of its own."""
        for _ in range(MOST_HANDED_ON // MOST_AT_ONCE):
            if await self._step(failed, tenant_id, work) != MOST_AT_ONCE:
                return

    async def _step(self, failed: str, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T | None:
        """Do `work` in a transaction of its own; None where it failed, which the log says once as `failed`."""
        try:
            async with self._relay.transaction(tenant_id) as tx:
                done = await work(tx)
        except Exception as error:  # one statement or tenant must not keep the others from being looked at
            self._trouble.is_on(failed, tenant_id, error=error)
            return None
        self._trouble.is_over(failed, tenant_id)
        return done

    async def _look_at(self, turn: OpenTurn) -> bool:
        try:
            return await self._finish_if_gone(turn)
        except Exception as error:  # one that cannot be read must not keep the others from being looked at
            _log.warning("turn_not_compared", turn_id=turn.address.turn_id, error=type(error).__name__)
            return False

    async def _finish_if_gone(self, turn: OpenTurn) -> bool:
        problem = await self._why_gone(turn.address.turn_id)
        if problem is None:
            return False
        async with self._relay.transaction(turn.address.tenant_id) as tx:
            was_open, note = await finish_broken(tx, turn.address, problem)
        if not was_open:
            return False
        _log.warning("turn_finished_by_reconciler", turn_id=turn.address.turn_id, code=problem.code)
        self._ended(turn.address)
        if note is not None:
            await self._doorbell.deliver_soon(note)
        return True

    async def _why_gone(self, turn_id: str) -> Problem | None:
        try:
            found = await self._client.get_workflow_handle(turn_workflow_id(turn_id)).describe()
        except RPCError as error:
            if not workflow_gone(error):
                raise
            return Problem(code="run_vanished", message="Temporal knows no run of this turn any more.")
        if found.status is None or found.status in _ALIVE:
            return None
        name = found.status.name.lower()
        return Problem(code=f"run_{name}", message=f"The run of this turn was {name.replace('_', ' ')}.")
