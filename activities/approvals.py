"""`approvals.open` and `approvals.read`: a pause's requests, and what the records say of them."""

from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from contracts.approvals import OpenAsk, Opened, Verdicts, VerdictsAsk
from policy.refusals import OVER
from store.approvals import open_requests
from store.verdicts import read_verdicts


class ApprovalActivities:
    """The requests of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="approvals.open")
    async def open(self, ask: OpenAsk) -> Opened:
        """Open all requests of a pause, to be decided by the policy that is in force now.

        Effects: one transaction; a request is unique by (turn, call id). Retry: safe, answers with what is open.
        """
        async with edge():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                agent = await self._deps.shelf.at(tx, ask.agent_id, ask.agent_version)
                in_force = await self._deps.shelf.published(tx, ask.agent_id) or agent
                opened = await open_requests(tx, ask, agent, in_force.definition.approvals)
            await self._deps.live.wake(ask.address.conversation_id)
        return opened or Opened(problem=OVER)

    @activity.defn(name="approvals.read")
    async def read(self, ask: VerdictsAsk) -> Verdicts:
        """Read the verdicts fresh; overdue requests expire here.

        Effects: one transaction. Retry: safe.
        """
        async with edge():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                verdicts = await read_verdicts(tx, ask)
            await self._deps.live.wake(ask.address.conversation_id)
        return verdicts
