"""The reconciler: repairs turns and requests whose signals or workflows were lost.

It compares open turns with Temporal. If the workflow of a turn was terminated, failed, timed out or vanished, the turn
is finished as `failed` and the next turn of its conversation is admitted. So is a turn whose workflow runs and fails at
every attempt (perdure/worker/stuck_turns.py). A paused turn whose approval is decided is
signaled again, and so is a turn that was asked to stop. Undecided requests are escalated or go to a fallback reviewer,
as their policy says. Each step of a pass has its own transaction, so that a failing step does not block the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog
from prometheus_client import Gauge
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.contracts.activities import TURN_RUN, TURN_WAIT
from perdure.contracts.errors import Problem
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress
from perdure.store.approvals.review import MAX_ROWS_PER_TRANSACTION, escalate_all_overdue, fall_back
from perdure.store.database import Connection, Database
from perdure.store.idempotency import forget_old
from perdure.store.memory.working_memory import forget_expired
from perdure.store.turns.finish import finish_broken
from perdure.store.turns.reconcile import (
    OpenTurn,
    list_tenants,
    open_turns,
    paused_among,
    start_stranded,
    unmoved_paused,
    wake_answered,
    wake_decided,
    wake_stopped,
)
from perdure.store.turns.summaries import MAX_STORED, store_missed
from perdure.telemetry.metrics import LastingProblem
from perdure.temporal.workflow_client import Notifier, is_workflow_missing
from perdure.worker.stuck_turns import STUCK, StuckTurns, ended_before

PAGE_SIZE = 1_000
ENDED_WITHIN = timedelta(minutes=10)
"""Twice the interval at which the waiting runs are listed. That list finds every run that this one leaves out."""
MAX_ENDED = 500
"""If many runs were ended by hand together, the list holds the latest. The others are missing from the list of waiting
runs and are found there."""
_WAITING = f"WorkflowType = '{TURN_WAIT}' AND ExecutionStatus = 'Running'"
_ENDED = (
    f"WorkflowType IN ('{TURN_WAIT}', '{TURN_RUN}') "
    "AND ExecutionStatus IN ('Terminated', 'TimedOut', 'Failed', 'Canceled') AND CloseTime > '{}'"
)
INTERVAL_SECONDS = 5.0
SETTLING_SECONDS = 8.0
"""A turn younger than this may not have reached Temporal yet."""
PARALLEL_CHECKS = 20
PAUSED_EVERY = 4
"""Paused turns are numerous and wait for a long time, so they are compared in every fourth pass, within 20 s."""
MAX_CHECKED_ONE_BY_ONE = 50
"""Up to this many paused turns of a tenant are checked one by one. Beyond it, only those whose run Temporal lists as
recently ended are checked. Checking 3,000 one by one took all of the server's time (measured)."""
LISTED_EVERY = 60
"""Runs that ended earlier or vanished are missing from Temporal's list of waiting runs. That list is long, so it is
read in every 60th pass, within five minutes."""
LISTED_AT = 12
"""The first of these passes is a minute after the start, since more urgent work comes first."""
MAX_REASSIGNED = 1_000
"""The maximum of a tenant's requests that one pass escalates or assigns to fallback reviewers, in transactions of
MAX_ROWS_PER_TRANSACTION. The next pass continues."""
SWEPT_EVERY = 720
"""Expired working memory is invisible, so it is deleted only in every 720th pass, within an hour."""
MAX_FAILED_SUMMARIES = 3
"""The maximum of summaries that one pass fails to store."""
MISSING_SUMMARIES = Gauge("perdure_summaries_missing", "Completed turns whose summary could not be stored yet")
T = TypeVar("T")
_ALIVE_STATUSES = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW})


class TemporalLists:
    """Temporal's lists in one pass. Each list is read at most once in a pass, for all tenants together. A list can be
    slightly old: a later pass finds a run that has ended since. If Temporal does not respond, no turn counts as
    lost."""

    def __init__(self, client: Client, problems: LastingProblem) -> None:
        self._client = client
        self._problems = problems
        self._lists: dict[str, frozenset[str] | None] = {}

    async def waiting(self) -> frozenset[str] | None:
        """Returns the ids of the waiting workflows of all tenants, or None if Temporal does not respond."""
        return await self._list("waiting_runs_not_listed", _WAITING, None)

    async def ended(self) -> frozenset[str]:
        """Returns the turns whose run recently failed, timed out, or was terminated or cancelled."""
        since = datetime.now(UTC) - ENDED_WITHIN
        workflow_ids = await self._list("ended_runs_not_listed", _ENDED.format(since.isoformat()), MAX_ENDED)
        return frozenset(turn_id for workflow_id in workflow_ids or () if (turn_id := _turn_of(workflow_id)))

    async def _list(self, problem: str, query: str, limit: int | None) -> frozenset[str] | None:
        if problem not in self._lists:
            self._lists[problem] = await self._run_query(problem, query, limit)
        return self._lists[problem]

    async def _run_query(self, problem: str, query: str, limit: int | None) -> frozenset[str] | None:
        try:
            runs = self._client.list_workflows(query, page_size=PAGE_SIZE, limit=limit)
            workflow_ids = frozenset([run.id async for run in runs])
        except RPCError as error:
            self._problems.is_on(problem, error=error)
            return None
        self._problems.is_over(problem)
        return workflow_ids


def _turn_of(workflow_id: str) -> str:
    """Returns the turn of a workflow; empty if the id is like Perdure's but names no turn."""
    try:
        return str(UUID(workflow_id.removeprefix(turn_workflow_id(""))))
    except ValueError:
        return ""


OnEnded = Callable[[TurnAddress], None]
_log = structlog.get_logger(__name__)


class Reconciler:
    """Runs one pass after another over all tenants."""

    def __init__(
        self,
        relay: Database,
        client: Client,
        notifier: Notifier,
        on_ended: OnEnded = lambda address: None,
        stuck_after: float = 0.0,
    ) -> None:
        """`on_ended` is called with each turn that the reconciler ended. It must not raise or block. Turns whose
        workflow task fails are ended after `stuck_after` seconds; 0 means never."""
        self._relay = relay
        self._on_ended = on_ended
        self._client = client
        self._notifier = notifier
        self._problems = LastingProblem()
        self._stuck = StuckTurns(relay, client, stuck_after)
        self._passes = -1
        self._missing_summaries = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Runs passes until `stop`; waits during outages."""
        while not stop.is_set():
            try:
                await self.run_pass()
                self._problems.is_over("reconciler_waits")
            except (RPCError, OSError, *self._relay.outages) as error:
                self._problems.is_on("reconciler_waits", error=error)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def run_pass(self) -> int:
        """Runs one pass and returns how many turns it finished."""
        finished = stuck = self._missing_summaries = 0
        self._passes += 1
        lists = TemporalLists(self._client, self._problems)
        tenants = await list_tenants(self._relay)
        for tenant_id in tenants:
            turns = await self._repair(tenant_id)
            stuck += sum(turn.stuck is not None for turn in turns)
            if sum(turn.is_paused for turn in turns) > MAX_CHECKED_ONE_BY_ONE:
                turns = await self._suspects(tenant_id, turns, lists)
            for start in range(0, len(turns), PARALLEL_CHECKS):
                batch = turns[start : start + PARALLEL_CHECKS]
                finished += sum(await asyncio.gather(*(self._check(turn) for turn in batch)))
        await self._store_summaries(tenants)
        STUCK.set(stuck)
        MISSING_SUMMARIES.set(self._missing_summaries)
        return finished

    @property
    def _reads_waiting_list(self) -> bool:
        """True if this pass reads Temporal's list of waiting runs, for tenants with many paused turns."""
        return self._passes % LISTED_EVERY == LISTED_AT

    async def _suspects(self, tenant_id: str, turns: list[OpenTurn], lists: TemporalLists) -> list[OpenTurn]:
        """Returns the turns to check for a tenant with many paused turns: all running and stuck ones, and some paused
        ones. According to Temporal's lists, their run has ended or does not wait, or a signal did not move them."""
        running = [turn for turn in turns if not turn.is_paused or turn.stuck]
        paused = [turn for turn in turns if turn.is_paused and not turn.stuck]
        if self._reads_waiting_list:
            waiting = await lists.waiting()
            if waiting is None:
                return running
            return [*running, *(t for t in paused if turn_workflow_id(t.address.turn_id) not in waiting)]
        ended = await lists.ended()

        async def lost_and_unmoved(tx: Connection) -> list[OpenTurn]:
            lost = await paused_among(tx, ended) if ended else []
            return [*lost, *await unmoved_paused(tx, MAX_CHECKED_ONE_BY_ONE)]

        found = await self._step("open_turns_not_listed", tenant_id, lost_and_unmoved) or []
        checked = {turn.address.turn_id: turn for turn in found if not turn.stuck}
        return [*running, *checked.values()]

    async def _repair(self, tenant_id: str) -> list[OpenTurn]:
        """Repairs what was lost in Postgres itself, and returns the turns to compare."""
        await self._step("stops_not_signaled", tenant_id, lambda tx: wake_stopped(tx, tenant_id))
        await self._in_parts("deadlines_not_escalated", tenant_id, escalate_all_overdue)
        await self._in_parts("requests_not_reassigned", tenant_id, fall_back)
        stuck = await self._step("decisions_not_signaled", tenant_id, lambda tx: wake_decided(tx, tenant_id))
        await self._step("answers_not_signaled", tenant_id, lambda tx: wake_answered(tx, tenant_id))
        for turn_id in stuck or ():
            self._problems.is_on("decided_turn_still_waits", turn_id)
        await self._step("stranded_turns_not_started", tenant_id, lambda tx: start_stranded(tx, tenant_id))
        await self._step("old_keys_not_deleted", tenant_id, forget_old)
        if self._passes % SWEPT_EVERY == 0:
            await self._step("expired_memory_not_deleted", tenant_id, forget_expired)
        turns = await self._step(
            "open_turns_not_listed", tenant_id, lambda tx: open_turns(tx, SETTLING_SECONDS, self._max_paused)
        )
        return turns or []

    async def _store_summaries(self, tenants: Sequence[str]) -> None:
        """Stores missing summaries, last, because they only advise. After a few failures, each of which can take
        seconds, the other tenants are only counted."""
        failures = 0
        for tenant_id in tenants:
            most = MAX_STORED if failures < MAX_FAILED_SUMMARIES else 0
            stored = await self._step("summaries_not_read", tenant_id, partial(store_missed, most=most))
            missing, has_failed = stored or (0, True)
            failures += has_failed
            self._missing_summaries += missing
            if missing:
                self._problems.is_on("summaries_missing", tenant_id)
            elif stored is not None:
                self._problems.is_over("summaries_missing", tenant_id)

    @property
    def _max_paused(self) -> int | None:
        """The number of a tenant's paused turns that this pass reads. It is zero, or just enough to see whether there
        are few, or unlimited (None) for a comparison with Temporal's list."""
        if self._passes % PAUSED_EVERY:
            return 0
        return None if self._reads_waiting_list else MAX_CHECKED_ONE_BY_ONE + 1

    async def _in_parts(self, problem: str, tenant_id: str, work: Callable[[Connection], Awaitable[int]]) -> None:
        """Runs `work` until it finds fewer rows than its maximum, each time in its own transaction."""
        for _ in range(MAX_REASSIGNED // MAX_ROWS_PER_TRANSACTION):
            if await self._step(problem, tenant_id, work) != MAX_ROWS_PER_TRANSACTION:
                return

    async def _step(self, problem: str, tenant_id: str, work: Callable[[Connection], Awaitable[T]]) -> T | None:
        """Runs `work` in its own transaction. Returns None if it failed, which is logged once as `problem`."""
        try:
            async with self._relay.transaction(tenant_id) as tx:
                result = await work(tx)
        except Exception as error:  # A failing statement or tenant must not block the others.
            self._problems.is_on(problem, tenant_id, error=error)
            return None
        self._problems.is_over(problem, tenant_id)
        return result

    async def _check(self, turn: OpenTurn) -> bool:
        try:
            return await self._finish_if_gone(turn)
        except Exception as error:  # A turn that cannot be read must not block the others.
            _log.warning("turn_not_compared", turn_id=turn.address.turn_id, error=type(error).__name__)
            return False

    async def _finish_if_gone(self, turn: OpenTurn) -> bool:
        problem = await self._problem_of(turn)
        if problem is None:
            return False
        async with self._relay.transaction(turn.address.tenant_id) as tx:
            was_open, note = await finish_broken(tx, turn.address, problem)
        if not was_open:
            return False
        _log.warning("turn_finished_by_reconciler", turn_id=turn.address.turn_id, code=problem.code)
        self._on_ended(turn.address)
        if note is not None:
            await self._notifier.deliver_soon(note)
        return True

    async def _problem_of(self, turn: OpenTurn) -> Problem | None:
        """Returns why the turn must end: its workflow is gone, or is terminated here because it does not continue."""
        try:
            run = await self._client.get_workflow_handle(turn_workflow_id(turn.address.turn_id)).describe()
        except RPCError as error:
            if not is_workflow_missing(error):
                raise
            return Problem(code="run_vanished", message="Temporal has no workflow for this turn.")
        if run.status is None or run.status in _ALIVE_STATUSES:
            return await self._stuck.check(turn, run)
        if (problem := ended_before(turn)) is not None:
            return problem
        name = run.status.name.lower()
        return Problem(code=f"run_{name}", message=f"The workflow of this turn was {name.replace('_', ' ')}.")
