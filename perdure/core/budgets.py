"""The budget of a turn, checked before every model call (S0-40). Equality trips. A call that is under way may go past
it by what it asks and a usual answer, and no further: an endless one is broken off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final

from perdure.contracts.agents import AgentDefinition, DayLimits
from perdure.contracts.errors import CallerError, Problem, UpstreamRejected
from perdure.contracts.turns import Limits, OnSpent
from perdure.core.text import size

USUAL_ANSWER_TOKENS: Final = 4_096
"""What an answer that was begun within the budget may still say beyond it."""
ANSWER_OVER_BUDGET: Final = "answer_over_budget"
"""The code of an answer that was broken off there."""
TOKENS_SPENT: Final = "token_budget_spent"
COST_SPENT: Final = "cost_budget_spent"
TURN_CODES: Final = frozenset({TOKENS_SPENT, COST_SPENT, ANSWER_OVER_BUDGET})
"""The codes of a limit of the turn's own: a reviewer may raise it."""


def most_of_answer(limits: Limits, *, tokens_used: int) -> int:
    """The tokens after which an answer is broken off."""
    return max(0, limits.max_tokens - tokens_used) + USUAL_ANSWER_TOKENS


PRICED_TOKENS: Final = 1_000_000
"""So many are priced at once: a single one may cost less than a micro-dollar."""


def affordable(most_tokens: int | None, left_microusd: int | None, price_microusd: int) -> int | None:
    """The tokens after which an answer is broken off, where the turn has so much money left and PRICED_TOKENS of an
    answer cost so much; without a price tokens alone bound it."""
    if most_tokens is None or left_microusd is None or price_microusd <= 0:
        return most_tokens
    return min(most_tokens, max(0, left_microusd) * PRICED_TOKENS // price_microusd + USUAL_ANSWER_TOKENS)


def spent(limits: Limits, *, tokens_used: int, cost_microusd: int) -> Problem | None:
    """The limit that a turn has met, or None where the next call may be made."""
    if tokens_used >= limits.max_tokens:
        return Problem(
            code=TOKENS_SPENT,
            message=f"the turn used {tokens_used} of {limits.max_tokens} tokens; raise limits.max_tokens",
        )
    if cost_microusd >= limits.max_cost_microusd:
        return Problem(
            code=COST_SPENT,
            message=f"the turn cost {cost_microusd / 1e6:.4f} of {limits.max_cost_microusd / 1e6:.4f} USD; "
            "raise limits.max_cost_usd",
        )
    return None


def tightened(base: Limits, asked: Limits | None) -> Limits:
    """An agent's limits with a request's own: a request may lower a limit, never raise it. Either may ask people."""
    if asked is None:
        return base
    return Limits(
        max_tokens=min(base.max_tokens, asked.max_tokens),
        max_cost_microusd=min(base.max_cost_microusd, asked.max_cost_microusd),
        max_iterations=min(base.max_iterations, asked.max_iterations),
        on_spent=OnSpent.ASK if OnSpent.ASK in (base.on_spent, asked.on_spent) else OnSpent.END,
    )


# --- Budgets of a day: whose they are, what a call must hold of them, when one is met (S0-75).
# A call holds the most that it can use from its claim on; its settle puts what it has used in that place. It may begin
# where what is used and held is below the limit, so that however many calls run at once, a day ends at most one call's
# hold above its limit. Equality trips, as for a turn (S0-40). Where only the holds of others stand in the way, a call
# waits for them a while: they are bounds, and most of what they hold comes back.

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


# --- How many bytes a conversation, a user and a tenant may keep, and the refusal when a quota is reached.


class Scope(StrEnum):
    """Whose quota it is."""

    CONVERSATION = "conversation"
    USER = "user"
    TENANT = "tenant"


VARIABLES = {
    Scope.CONVERSATION: "PERDURE_BYTES_PER_CONVERSATION",
    Scope.USER: "PERDURE_BYTES_PER_USER",
    Scope.TENANT: "PERDURE_BYTES_PER_TENANT",
}
FILES_VARIABLE = "PERDURE_FILES_PER_CONVERSATION"
_SUBJECTS = {
    Scope.CONVERSATION: "this conversation keeps",
    Scope.USER: "you keep",
    Scope.TENANT: "all users of your tenant together keep",
}
_WAYS_OUT = {
    Scope.CONVERSATION: "begin another conversation, or delete files of this one",
    Scope.USER: "delete files or whole conversations with files",
    Scope.TENANT: "ask an administrator",
}


@dataclass(frozen=True, slots=True)
class Quotas:
    """The deployment's quotas; 0 is none."""

    conversation_bytes: int = 0
    user_bytes: int = 0
    tenant_bytes: int = 0
    conversation_files: int = 0

    def of(self, scope: Scope) -> int:
        """The bytes that this scope may keep, 0 if it has no quota."""
        quotas = (self.conversation_bytes, self.user_bytes, self.tenant_bytes)
        return dict(zip(Scope, quotas, strict=True))[scope]


@dataclass(frozen=True, slots=True)
class Used:
    """What is kept now, in bytes."""

    conversation: int = 0
    user: int = 0
    tenant: int = 0

    def of(self, scope: Scope) -> int:
        """The bytes that this scope keeps."""
        return dict(zip(Scope, (self.conversation, self.user, self.tenant), strict=True))[scope]


def exceeded(used: Used, quotas: Quotas, more: int = 0) -> Scope | None:
    """The first quota that is exceeded with `more` bytes added, the narrowest first; None if it all fits."""
    return next((each for each in Scope if 0 < quotas.of(each) < used.of(each) + more), None)


def quota_reached(used: Used, quotas: Quotas, scope: Scope) -> CallerError:
    """The refusal 429 `quota_reached`. Waiting does not help, so it names no time to come back."""
    held, limit, variable = used.of(scope), quotas.of(scope), VARIABLES[scope]
    message = (
        f"{_SUBJECTS[scope]} {size(held)}, and the quota is {size(limit)}: {_WAYS_OUT[scope]}; "
        f"an operator can raise {variable}"
    )
    details: dict[str, object] = {
        "scope": scope.value,
        "used_bytes": held,
        "limit_bytes": limit,
        "variable": variable,
        "retry_after_seconds": None,
    }
    return CallerError("quota_reached", message, details, status=429)


def check(used: Used, quotas: Quotas, more: int = 0) -> None:
    """Raises: CallerError 429 `quota_reached` if `more` bytes do not fit."""
    scope = exceeded(used, quotas, more)
    if scope is not None:
        raise quota_reached(used, quotas, scope)


def check_files(count: int, quotas: Quotas) -> None:
    """Raises: CallerError 429 `quota_reached` if a conversation with so many files may have no more."""
    most = quotas.conversation_files
    if 0 < most <= count:
        message = f"this conversation has {count} files, the most ({FILES_VARIABLE}): delete some, or begin another"
        details: dict[str, object] = {
            "scope": Scope.CONVERSATION.value,
            "used_files": count,
            "limit_files": most,
            "variable": FILES_VARIABLE,
            "retry_after_seconds": None,
        }
        raise CallerError("quota_reached", message, details, status=429)
