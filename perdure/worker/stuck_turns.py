"""Stuck turns: their workflow runs, but its workflow task fails at every attempt.

The reconciler describes the workflows of open turns anyway, so that a healthy turn costs no further request. A stuck
turn is stored with its failure, for the API and the pages. After a time its workflow is terminated.
"""

from datetime import UTC, datetime

import structlog
from prometheus_client import Gauge
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from perdure.contracts.activities import WAKE
from perdure.contracts.errors import Problem
from perdure.contracts.turns import StuckTask, WakeSignal
from perdure.core.status import StuckStep, is_suspect, join_failures, stuck_problem, stuck_step
from perdure.store.database import Database
from perdure.store.turns.reconcile import OpenTurn, record_stuck
from perdure.temporal.workflow_client import is_workflow_missing
from perdure.temporal.workflow_tasks import attempt_of, read_failures

STUCK = Gauge("perdure_turns_stuck", "Open turns that do not continue, because their workflow task fails")
_log = structlog.get_logger(__name__)


class StuckTurns:
    """Finds stuck turns among open ones."""

    def __init__(self, relay: Database, client: Client, after_seconds: float) -> None:
        """Stuck turns are ended after `after_seconds`; 0 means never."""
        self._relay = relay
        self._client = client
        self._after_seconds = after_seconds

    async def check(self, turn: OpenTurn, run: WorkflowExecutionDescription) -> Problem | None:
        """Records whether the turn is stuck. If it has been for too long, terminates its workflow and returns the
        problem with which the turn ends.

        Raises: RPCError; errors of Postgres.
        """
        if not is_suspect(attempt_of(run), turn.stuck):
            return None
        stuck = join_failures(turn.stuck, await read_failures(self._client, run))
        if stuck != turn.stuck:
            await self._record(turn, stuck)
        now = datetime.now(UTC)
        step = stuck_step(stuck, now, self._after_seconds) if stuck is not None else StuckStep.WAIT
        if stuck is None or step is StuckStep.WAIT:
            return None
        if step is StuckStep.PROBE:
            probed = {"probed_at": now, "probed_event": stuck.failed_event}
            await self._store(turn, stuck.model_copy(update=probed))
            await self._signal(run)
            return None
        return stuck_problem(stuck, now) if await self._end(turn, run, stuck) else None

    async def _signal(self, run: WorkflowExecutionDescription) -> None:
        """Sends the signal to read the records again, which every run accepts at any time."""
        try:
            await self._client.get_workflow_handle(run.id).signal(WAKE, WakeSignal(kind="request"))
        except RPCError as error:
            if not is_workflow_missing(error):
                raise

    async def _end(self, turn: OpenTurn, run: WorkflowExecutionDescription, stuck: StuckTask) -> bool:
        """Terminates the run. Returns False if it has ended or continued since it was described."""
        await self._store(turn, stuck.model_copy(update={"given_up": True}))
        latest = await read_failures(self._client, run)
        if latest is None or latest.completed_event != stuck.completed_event:
            await self._record(turn, latest)
            return False
        return await self._terminate(run, stuck)

    async def _record(self, turn: OpenTurn, stuck: StuckTask | None) -> None:
        """Stores the failure, and logs its beginning and its end."""
        await self._store(turn, stuck)
        turn_id = turn.address.turn_id
        if stuck is None:
            _log.info("turn_stuck_resolved", turn_id=turn_id)
        elif turn.stuck is None:
            _log.error("turn_stuck", turn_id=turn_id, attempt=stuck.failures, failure=stuck.message)

    async def _store(self, turn: OpenTurn, stuck: StuckTask | None) -> None:
        async with self._relay.transaction(turn.address.tenant_id) as tx:
            await record_stuck(tx, turn.address.turn_id, stuck)

    async def _terminate(self, run: WorkflowExecutionDescription, stuck: StuckTask) -> bool:
        """Terminates the run. Returns False if it has ended."""
        handle = self._client.get_workflow_handle(run.id, run_id=run.run_id)
        try:
            await handle.terminate(reason=f"Perdure: the workflow task failed {stuck.failures} times")
        except RPCError as error:
            if not is_workflow_missing(error):
                raise
            return False
        return True


def ended_before(turn: OpenTurn) -> Problem | None:
    """Returns the problem of a turn whose workflow an earlier pass terminated without ending the turn."""
    if turn.stuck is None or not turn.stuck.given_up:
        return None
    return stuck_problem(turn.stuck, datetime.now(UTC))
