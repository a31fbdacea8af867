"""What a model call takes out of its day's budgets: held by its claim, replaced by what it used when it settles.

An agent without day limits, of a tenant without any, costs no statement here. An attempt that nobody hears of again is
counted before its call is taken over, and with it what it held.
"""

from contracts.agents import PublishedAgent
from contracts.errors import UpstreamUnavailable
from contracts.model import ModelCall
from policy.day_budget import RESERVED_SECONDS, Caps, caps_of
from store import budgets, unsettled_calls
from store.database import Database
from store.model_calls import ModelClaim


def caps(agent: PublishedAgent, claimed: ModelClaim) -> Caps:
    """The day's budgets that this call must hold of."""
    return caps_of(agent.definition, claimed.day_limits, claimed.published_limits)


async def count_lost(db: Database, call: ModelCall) -> None:
    """Count the attempt of this call that was never heard of again with what its claim assumed."""
    address = call.address
    async with db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
        lost = await unsettled_calls.count_lost(tx, address.turn_id, call.call_id)
        await unsettled_calls.charge_lost(tx, address.turn_id, lost)


def reserved_for_now() -> UpstreamUnavailable:
    """What a claim fails with that other calls' reservations keep back: Temporal tries it again."""
    message = "the day's budget is reserved by calls under way; this one waits for them"
    return UpstreamUnavailable("day_budget_reserved", message, retry_after_seconds=RESERVED_SECONDS)
