"""What Temporal's own lists say of paused turns, read at most once in a pass of the reconciler, whatever the tenants.

A list may be a moment old: a run that has ended since is found in a later pass. Where Temporal does not say, nothing is
known, so that nobody is taken for lost.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from temporalio.client import Client
from temporalio.service import RPCError

from contracts.ids import turn_workflow_id
from contracts.workflows import TURN_RUN, TURN_WAIT
from relay.trouble import Trouble

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
