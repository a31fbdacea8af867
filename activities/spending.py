"""What a model call takes out of its day's budgets: held by its claim, replaced by what it used when it settles.

An agent without day limits, of a tenant without any, costs no statement here.
"""

from activities.clients.provider import Provider, ProviderRequest
from contracts.agents import PublishedAgent
from contracts.errors import UpstreamUnavailable
from contracts.model import ModelCall
from contracts.turns import Usage
from policy.day_budget import RESERVED_SECONDS, caps_of, hold_of
from store import budgets
from store.database import Connection
from store.model_calls import ModelClaim


def is_counted(agent: PublishedAgent, claimed: ModelClaim) -> bool:
    """Whether this call counts in any day's budget."""
    return claimed.holds or bool(caps_of(agent.definition, claimed.day_limits))


async def hold(
    tx: Connection,
    call: ModelCall,
    agent: PublishedAgent,
    claimed: ModelClaim,
    provider: Provider,
    request: ProviderRequest,
) -> None:
    """Reserve the most that `request` can use, as the last statement of the claim; a dead attempt's hold is given back.

    Raises: LimitReached, where a budget is met; UpstreamRejected, where nobody can bound the request. Both must roll
    the claim back.
    """
    if claimed.holds:
        await budgets.release(tx, call.address.turn_id, call.call_id)
    caps = caps_of(agent.definition, claimed.day_limits)
    if caps:
        await budgets.reserve(tx, call, caps, hold_of(caps, provider.most(request), claimed.model))


def reserved_for_now() -> UpstreamUnavailable:
    """What a claim fails with that other calls' reservations keep back: Temporal tries it again."""
    message = "the day's budget is reserved by calls under way; this one waits for them"
    return UpstreamUnavailable("day_budget_reserved", message, retry_after_seconds=RESERVED_SECONDS)


async def charge(tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, used: Usage) -> None:
    """Put what the attempt used in the place of what it held, as the last statement of its transaction."""
    if is_counted(agent, claimed):
        await budgets.charge(tx, call, claimed.epoch, used)
