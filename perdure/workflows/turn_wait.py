"""`TurnWait`: a paused turn. It holds a timer and a mailbox, so that a pause can outlive any number of deploys.

It runs on a separate task queue, whose workers cache nothing. A paused turn therefore uses no memory of a worker, and
waking it replays five events.

Determinism: there is one wait. A wake signal, a stop signal, the expiry or a cancellation continues as `TurnRun`, which
reads the records.
"""

from contextlib import suppress
from typing import Any

from temporalio import workflow

from perdure.contracts.activities import TURN_RUN, TURN_WAIT, WAKE
from perdure.contracts.turns import TurnInput
from perdure.core.approvals.deadlines import deadlines_of, wait_before_check
from perdure.workflows.mailbox import Mailbox, attributes


@workflow.defn(name=TURN_WAIT)
class TurnWait:
    """Waits for a wake signal or the deadline. The deadline itself is stored in Postgres."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._mailbox = Mailbox(turn.carried)

    @workflow.signal(name=WAKE)
    def wake(self, *arguments: Any) -> None:
        """Handles a wake signal: the run reads its records again, or checks for a stop."""
        self._mailbox.put(arguments)

    @workflow.run
    async def run(self, turn: TurnInput) -> str:
        """Waits, and then continues as `TurnRun`; it never returns.

        Raises: ValueError if `turn` has no carried state.
        """
        carried = turn.carried
        if carried is None:
            raise ValueError("TurnWait needs the carried state")
        workflow.set_current_details(
            "waits for: " + ", ".join(f"{request.tool} ({request.request_id})" for request in carried.requests)
        )
        with suppress(TimeoutError):  # The deadline has the same effect as a wake signal.
            woken_or_stopped = workflow.wait_condition(
                lambda: self._mailbox.wake_pending or self._mailbox.stop_pending or self._mailbox.stop,
                timeout=wait_before_check(workflow.now(), deadlines_of(carried.requests), carried.looks),
            )
            await self._mailbox.uncancelled(woken_or_stopped)
        box = self._mailbox
        woken = carried.model_copy(update={"rung": box.wake_pending, "stop": box.stop, "stop_rung": box.stop_pending})
        workflow.continue_as_new(
            args=[turn.model_copy(update={"carried": woken})],
            workflow=TURN_RUN,
            task_queue=turn.routing.turns,
            search_attributes=attributes(turn, "running"),
        )
