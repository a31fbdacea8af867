"""Activities for turns: `turns.read` checks for a requested stop; `turns.finish` ends a turn and starts the next queued
one."""

from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard
from perdure.contracts.turns import Finished, FinishRequest, StopRead, StopRequest
from perdure.store.turns.finish import finish, stop_requested


class TurnActivities:
    """The stops and ends of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="turns.read")
    async def read(self, request: StopRequest) -> StopRead:
        """Returns whether the turn was asked to stop. A wake signal carries no decision, so the record decides.

        Effects: none. Retry: safe.
        """
        async with activity_guard(), self._deps.db.transaction(request.address.tenant_id) as tx:
            return StopRead(asked=await stop_requested(tx, request))

    @activity.defn(name="turns.finish")
    async def finish(self, request: FinishRequest) -> Finished:
        """Ends the turn and starts the next queued one.

        Effects: one transaction. The next turn's start is in the outbox, and it is delivered at once if Temporal
        answers. Retry: safe, an ended turn keeps its status.
        """
        async with activity_guard():
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                finished, note = await finish(tx, request)
            self._deps.live.wake(request.address.conversation_id)
            if note is not None:
                await self._deps.notifier.deliver_soon(note)
        if self._deps.traces is not None:
            self._deps.traces.ended(request.address)
        return finished
