"""What a model call takes out of its day's budgets: held by its claim, replaced by what it used when it settles.

An agent without day limits, of a tenant without any, costs no statement here.
"""

from contracts.agents import PublishedAgent
from contracts.errors import UpstreamUnavailable
from contracts.model import ModelCall
from policy.day_budget import RESERVED_SECONDS, Bound, Caps, caps_of, hold_of
from store import budgets
from store.database import Connection
from store.model_calls import ModelClaim


def is_counted(agent: PublishedAgent, claimed: ModelClaim) -> bool:
    """Whether this call must hold of a day's budgets, or give back what a dead attempt of it holds."""
    return claimed.holds or bool(_caps(agent, claimed))


async def hold(tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, most: Bound) -> None:
    """Reserve `most`, which the call can use, as the last statement of the claim; a dead attempt's hold is given back.

    Raises: LimitReached, where a budget is met; UpstreamRejected, where nobody can bound the request. Both must roll
    the claim back.
    """
    caps = _caps(agent, claimed)
    if claimed.holds:
        if caps:
            await budgets.open_day(tx, list(caps))  # it waits for settles, and must not while a day's row is locked
        await budgets.release(tx, call.address.turn_id, call.call_id)
    if caps:
        await budgets.reserve(tx, call, caps, hold_of(caps, most, claimed.model))


def reserved_for_now() -> UpstreamUnavailable:
    """What a claim fails with that other calls' reservations keep back: Temporal tries it again."""
    message = "the day's budget is reserved by calls under way; this one waits for them"
    return UpstreamUnavailable("day_budget_reserved", message, retry_after_seconds=RESERVED_SECONDS)


def _caps(agent: PublishedAgent, claimed: ModelClaim) -> Caps:
    return caps_of(agent.definition, claimed.day_limits, claimed.published_limits)
