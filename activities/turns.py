"""`turns.finish`: the end of a turn, and the start of the next one that waits."""

from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from contracts.turns import FinishAsk, Finished
from store.finish import finish


class TurnActivities:
    """The ends of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

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
        return finished
