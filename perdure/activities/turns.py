"""`turns.read` and `turns.finish`: whether a turn was asked to stop, its end, and the start of the next that waits."""

from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import edge
from perdure.contracts.turns import FinishAsk, Finished, StopAsk, StopRead
from perdure.store.turns.finish import finish, stop_asked


class TurnActivities:
    """The stops and ends of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="turns.read")
    async def read(self, ask: StopAsk) -> StopRead:
        """Whether the turn was asked to stop: the bell that said so may be anybody's.

        Effects: none. Retry: safe.
        """
        async with edge(), self._deps.db.transaction(ask.address.tenant_id) as tx:
            return StopRead(asked=await stop_asked(tx, ask))

    @activity.defn(name="turns.finish")
    async def finish(self, ask: FinishAsk) -> Finished:
        """End the turn and admit the next.

        Effects: one transaction; the next turn's start is in the outbox, rung at once where Temporal answers.
        Retry: safe, an ended turn stays as it ended.
        """
        async with edge():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                finished, note = await finish(tx, ask)
            await self._deps.live.wake(ask.address.conversation_id)
            if note is not None:
                await self._deps.doorbell.deliver_soon(note)
        if self._deps.traces is not None:
            self._deps.traces.ended(ask.address)
        return finished
