"""Budgets of a day: whose they are, what a call must hold of them, when one is met (S0-75).

A call holds the most that it can use from its claim on; its settle puts what it has used in that place. It may begin
where what is used and held is below the limit, so that however many calls run at once, a day ends at most one call's
hold above its limit. Equality trips, as for a turn (S0-40). Where only the holds of others stand in the way, a call
waits for them a while: they are bounds, and most of what they hold comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta

from contracts.agents import AgentDefinition, DayLimits
from contracts.errors import Problem, UpstreamRejected

TENANT = ""
"""In the place of an agent's id: all agents of the tenant together."""
TOKENS_MET = "day_token_budget_spent"
COST_MET = "day_cost_budget_spent"
DAY_CODES = frozenset({TOKENS_MET, COST_MET})
"""The codes of a budget that is met: such a turn ends as limited."""
RESERVED_SECONDS = 3.0
"""A call that only others' reservations keep back is tried again after this long."""
RESERVED_TRIES = 10
"""So often, then its turn ends as limited: half a minute is what most model calls take."""

Caps = Mapping[str, DayLimits]
"""The budgets that a call counts in, by agent id."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that one request can use."""

    tokens: int | None
    """Input and output; None where nothing bounds the answer."""
    cost_microusd: int | None
    """None where nobody knows the price, too."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a call takes out of its budgets while it runs."""

    tokens: int
    cost_microusd: int


@dataclass(frozen=True, slots=True)
class DayUse:
    """A budget's row: what its day's calls have used, and what those under way hold."""

    agent_id: str
    day: date
    used_tokens: int
    used_cost_microusd: int
    held_tokens: int
    held_cost_microusd: int


def caps_of(agent: AgentDefinition, of_tenant: DayLimits | None, published: DayLimits | None = None) -> Caps:
    """The budgets of a call of `agent`. A tenant that once had a limit counts on without one.

    `published` are the limits of the agent as it is now, where its turn pinned another version: a limit that was
    lowered binds the turns that began before. Empty, where it has none any more.
    """
    own = agent.day_limits
    if published is not None:
        own = None if published == DayLimits() else published
    caps = {} if own is None else {agent.id: own}
    return caps if of_tenant is None else {**caps, TENANT: of_tenant}


def hold_of(caps: Caps, most: Bound, model: str) -> Hold:
    """What a call of `model` must hold of these budgets.

    Raises: UpstreamRejected `output_unbounded`, `price_unknown`: what nobody can bound is not begun under a limit.
    """
    tokens_limited = any(cap.max_tokens is not None for cap in caps.values())
    cost_limited = any(cap.max_cost_microusd is not None for cap in caps.values())
    if most.tokens is None and (tokens_limited or cost_limited):
        raise UpstreamRejected(
            "output_unbounded",
            f"a day limit holds, and nobody knows how long an answer of {model} may be; set model_params.max_tokens",
        )
    if most.cost_microusd is None and cost_limited:
        raise UpstreamRejected(
            "price_unknown",
            f"a day limit in money holds, and nobody knows the price of {model}; limit tokens instead of money",
        )
    return Hold(most.tokens or 0, most.cost_microusd or 0)


def met(caps: Caps, uses: Sequence[DayUse]) -> Problem | None:
    """The first of these budgets that allows no further call today, as what ends the turn."""
    for use in uses:
        cap = caps[use.agent_id]
        if cap.max_tokens is not None and use.used_tokens + use.held_tokens >= cap.max_tokens:
            figures = f"{use.used_tokens} of {cap.max_tokens} tokens are used and {use.held_tokens} reserved"
            return Problem(code=TOKENS_MET, message=_told(use, figures))
        if cap.max_cost_microusd is not None and use.used_cost_microusd + use.held_cost_microusd >= (
            cap.max_cost_microusd
        ):
            used, limit, held = (
                f"{microusd / 1e6:.4f}"
                for microusd in (use.used_cost_microusd, cap.max_cost_microusd, use.held_cost_microusd)
            )
            return Problem(code=COST_MET, message=_told(use, f"{used} of {limit} USD are used and {held} reserved"))
    return None


def only_reserved(caps: Caps, uses: Sequence[DayUse]) -> bool:
    """Whether nothing but calls under way stands before a further one."""
    return met(caps, [replace(use, held_tokens=0, held_cost_microusd=0) for use in uses]) is None


def resets_at(day: date) -> datetime:
    """When the budgets of `day` begin anew."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _told(use: DayUse, figures: str) -> str:
    whose = f"of the agent {use.agent_id}" if use.agent_id != TENANT else "of all agents together"
    return (
        f"the day's budget {whose} is spent: {figures} by calls under way; "
        f"it begins anew at {resets_at(use.day):%Y-%m-%d %H:%M} UTC"
    )
