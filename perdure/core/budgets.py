"""Budgets of turns and days, and storage quotas.

A turn's budget is checked before every model call, and reaching it counts as spent. A running call can exceed it only
by its input and an answer of typical length: a longer answer is cut off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final

from perdure.contracts.agents import AgentDefinition, DayLimits
from perdure.contracts.errors import CallerError, Problem, UpstreamRejected
from perdure.contracts.turns import Limits, OnSpent
from perdure.core.text import format_size

USUAL_ANSWER_TOKENS: Final = 4_096
"""Tokens beyond the budget that an answer may use if it was started within the budget."""
ANSWER_OVER_BUDGET: Final = "answer_over_budget"
"""The code of an answer that was cut off at that limit."""
TOKENS_SPENT: Final = "token_budget_spent"
COST_SPENT: Final = "cost_budget_spent"
TURN_CODES: Final = frozenset({TOKENS_SPENT, COST_SPENT, ANSWER_OVER_BUDGET})
"""The codes of the turn's own limits, which a reviewer can raise."""
PRICED_TOKENS: Final = 1_000_000
"""Prices are per this many tokens, because a single one may cost less than a micro-dollar."""
TENANT = ""
"""Used instead of an agent's id for all agents of the tenant together."""
DAY_TOKENS_SPENT = "day_token_budget_spent"
DAY_COST_SPENT = "day_cost_budget_spent"
DAY_CODES = frozenset({DAY_TOKENS_SPENT, DAY_COST_SPENT})
"""The codes of a spent budget; such a turn ends as limited."""
RESERVED_SECONDS = 3.0
"""Seconds until a call that only other reservations prevent is retried."""
RESERVED_TRIES = 10
"""Number of retries before the turn ends as limited: half a minute, which is what most model calls take."""
FILES_VARIABLE = "PERDURE_FILES_PER_CONVERSATION"


def answer_token_limit(limits: Limits, *, tokens_used: int) -> int:
    """Returns the number of tokens after which an answer is cut off."""
    return max(0, limits.max_tokens - tokens_used) + USUAL_ANSWER_TOKENS


def affordable_tokens(max_tokens: int | None, left_microusd: int | None, price_microusd: int) -> int | None:
    """Returns the number of tokens after which an answer is cut off, given the money that the turn has left.

    `price_microusd` is the price of PRICED_TOKENS of an answer. Without a price, only `max_tokens` limits the answer.
    """
    if max_tokens is None or left_microusd is None or price_microusd <= 0:
        return max_tokens
    return min(max_tokens, max(0, left_microusd) * PRICED_TOKENS // price_microusd + USUAL_ANSWER_TOKENS)


def spent_limit(limits: Limits, *, tokens_used: int, cost_microusd: int) -> Problem | None:
    """Returns the limit that a turn has reached, or None if the next call is allowed."""
    if tokens_used >= limits.max_tokens:
        return Problem(
            code=TOKENS_SPENT,
            message=(
                f"The turn has used {tokens_used} of {limits.max_tokens} tokens; raise limits.max_tokens to continue"
            ),
        )
    if cost_microusd >= limits.max_cost_microusd:
        return Problem(
            code=COST_SPENT,
            message=(
                f"The turn has cost {cost_microusd / 1e6:.4f} of {limits.max_cost_microusd / 1e6:.4f} USD; raise "
                "limits.max_cost_usd to continue"
            ),
        )
    return None


def tighten_limits(base: Limits, requested: Limits | None) -> Limits:
    """Returns an agent's limits combined with those of a request. A request can lower a limit, never raise it. If
    either has `on_spent: ask`, a reviewer is asked."""
    if requested is None:
        return base
    return Limits(
        max_tokens=min(base.max_tokens, requested.max_tokens),
        max_cost_microusd=min(base.max_cost_microusd, requested.max_cost_microusd),
        max_iterations=min(base.max_iterations, requested.max_iterations),
        on_spent=OnSpent.ASK if OnSpent.ASK in (base.on_spent, requested.on_spent) else OnSpent.END,
    )


Caps = Mapping[str, DayLimits]
"""The budgets that apply to a call, by agent id."""


@dataclass(frozen=True, slots=True)
class RequestBound:
    """The maximum that one request can use."""

    tokens: int | None
    """Input and output tokens; None if the answer has no limit."""
    cost_microusd: int | None
    """Cost in millionths of a US dollar; None if the tokens or the price are unknown."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The amounts that a call reserves in its budgets while it runs. A call reserves the maximum that it can use; its
    settlement replaces that by its real use. It can start if the used and reserved amounts add up to less than the
    limit. So a day exceeds its limit by at most one call's reservation, however many calls run in parallel. Reaching
    the limit counts as spent, as for a turn."""

    tokens: int
    cost_microusd: int


@dataclass(frozen=True, slots=True)
class DayUse:
    """A budget's row: what the day's calls have used, and what running calls reserve."""

    agent_id: str
    day: date
    used_tokens: int
    used_cost_microusd: int
    held_tokens: int
    held_cost_microusd: int


def caps_of(agent: AgentDefinition, of_tenant: DayLimits | None, published: DayLimits | None = None) -> Caps:
    """Returns the budgets of a call of `agent`. `of_tenant` may have no limits any more; the tenant's use is still
    counted.

    `published` are the present limits of the agent if its turn pinned another version, so that a lowered limit also
    applies to turns that started before. They are empty if the agent no longer has limits.
    """
    own = agent.day_limits
    if published is not None:
        own = None if published == DayLimits() else published
    caps = {} if own is None else {agent.id: own}
    return caps if of_tenant is None else {**caps, TENANT: of_tenant}


def hold_of(caps: Caps, bound: RequestBound, model: str) -> Hold:
    """Returns what a call of `model` must reserve in these budgets.

    Raises: UpstreamRejected `output_unbounded` or `price_unknown`. A call without an upper bound is not started under a
    limit.
    """
    tokens_limited = any(cap.max_tokens is not None for cap in caps.values())
    cost_limited = any(cap.max_cost_microusd is not None for cap in caps.values())
    if bound.tokens is None and (tokens_limited or cost_limited):
        raise UpstreamRejected(
            "output_unbounded",
            f"A daily limit applies, and the maximum output of {model} is unknown; set max_tokens of this model",
        )
    if bound.cost_microusd is None and cost_limited:
        raise UpstreamRejected(
            "price_unknown",
            f"A daily cost limit applies, and the price of {model} is unknown; use a token limit instead",
        )
    return Hold(bound.tokens or 0, bound.cost_microusd or 0)


def reached_budget(caps: Caps, uses: Sequence[DayUse]) -> Problem | None:
    """Returns the first of these budgets that allows no further call today, as the problem that ends the turn."""
    for use in uses:
        cap = caps[use.agent_id]
        if cap.max_tokens is not None and use.used_tokens + use.held_tokens >= cap.max_tokens:
            figures = f"{use.used_tokens} of {cap.max_tokens} tokens are used and {use.held_tokens} reserved"
            return Problem(code=DAY_TOKENS_SPENT, message=_day_use_text(use, figures))
        if cap.max_cost_microusd is not None and use.used_cost_microusd + use.held_cost_microusd >= (
            cap.max_cost_microusd
        ):
            used, limit, held = (
                f"{microusd / 1e6:.4f}"
                for microusd in (use.used_cost_microusd, cap.max_cost_microusd, use.held_cost_microusd)
            )
            return Problem(
                code=DAY_COST_SPENT, message=_day_use_text(use, f"{used} of {limit} USD are used and {held} reserved")
            )
    return None


def only_reserved(caps: Caps, uses: Sequence[DayUse]) -> bool:
    """Returns whether only the reservations of running calls prevent another one. Such a call waits for a while:
    reservations are upper bounds, and most of each is released."""
    return reached_budget(caps, [replace(use, held_tokens=0, held_cost_microusd=0) for use in uses]) is None


def resets_at(day: date) -> datetime:
    """Returns when the budgets of `day` reset: the next midnight in UTC."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _day_use_text(use: DayUse, figures: str) -> str:
    whose = f"of the agent {use.agent_id}" if use.agent_id != TENANT else "of all agents"
    return (
        f"The daily budget {whose} is spent: {figures} by running calls. It resets at "
        f"{resets_at(use.day):%Y-%m-%d %H:%M} UTC"
    )


class Scope(StrEnum):
    """The scope of a quota."""

    CONVERSATION = "conversation"
    USER = "user"
    TENANT = "tenant"


VARIABLES = {
    Scope.CONVERSATION: "PERDURE_BYTES_PER_CONVERSATION",
    Scope.USER: "PERDURE_BYTES_PER_USER",
    Scope.TENANT: "PERDURE_BYTES_PER_TENANT",
}
_SUBJECTS = {
    Scope.CONVERSATION: "This conversation uses",
    Scope.USER: "You use",
    Scope.TENANT: "Your tenant uses",
}
_WAYS_OUT = {
    Scope.CONVERSATION: "Start another conversation, or delete files of this one",
    Scope.USER: "Delete files, or conversations with files",
    Scope.TENANT: "Ask an administrator",
}


@dataclass(frozen=True, slots=True)
class Quotas:
    """The deployment's quotas; 0 means no quota."""

    conversation_bytes: int = 0
    user_bytes: int = 0
    tenant_bytes: int = 0
    conversation_files: int = 0

    def of(self, scope: Scope) -> int:
        """Returns the quota of this scope in bytes, or 0 if it has none."""
        quotas = (self.conversation_bytes, self.user_bytes, self.tenant_bytes)
        return dict(zip(Scope, quotas, strict=True))[scope]


@dataclass(frozen=True, slots=True)
class UsedStorage:
    """The stored bytes."""

    conversation: int = 0
    user: int = 0
    tenant: int = 0

    def of(self, scope: Scope) -> int:
        """Returns the bytes that this scope stores."""
        return dict(zip(Scope, (self.conversation, self.user, self.tenant), strict=True))[scope]

    def without(self, written_bytes: int) -> "UsedStorage":
        """Returns the bytes before these were written."""
        return UsedStorage(*(max(0, held - written_bytes) for held in (self.conversation, self.user, self.tenant)))


def exceeded_scope(used: UsedStorage, quotas: Quotas, added_bytes: int = 0) -> Scope | None:
    """Returns the first quota that would be exceeded with `added_bytes` bytes, the narrowest first, or None."""
    return next((each for each in Scope if 0 < quotas.of(each) < used.of(each) + added_bytes), None)


def quota_reached(used: UsedStorage, quotas: Quotas, scope: Scope, added_bytes: int = 0) -> CallerError:
    """Returns the error 429 `quota_reached` of a request that would add `added_bytes` bytes to those of `used`.
    Waiting does not help, so it contains no retry time."""
    held, limit, variable = used.of(scope), quotas.of(scope), VARIABLES[scope]
    added = f", and this request would add {format_size(added_bytes)}" if added_bytes else ""
    message = (
        f"{_SUBJECTS[scope]} {format_size(held)} of storage; the quota is {format_size(limit)}{added}. "
        f"{_WAYS_OUT[scope]}. An operator can raise {variable}"
    )
    details: dict[str, object] = {
        "scope": scope.value,
        "used_bytes": held,
        "limit_bytes": limit,
        "added_bytes": added_bytes,
        "variable": variable,
        "retry_after_seconds": None,
    }
    return CallerError("quota_reached", message, details, status=429)


def check_bytes(used: UsedStorage, quotas: Quotas, added_bytes: int = 0) -> None:
    """Checks that `added_bytes` bytes fit in addition to those of `used`.

    Raises: CallerError 429 `quota_reached`.
    """
    scope = exceeded_scope(used, quotas, added_bytes)
    if scope is not None:
        raise quota_reached(used, quotas, scope, added_bytes)


def check_files(count: int, quotas: Quotas) -> None:
    """Checks that a conversation with `count` files can have another one.

    Raises: CallerError 429 `quota_reached`.
    """
    limit = quotas.conversation_files
    if 0 < limit <= count:
        message = (
            f"This conversation has {count} files; the limit is {limit}, and this request would add one. Delete some, "
            f"or start another conversation. An operator can raise {FILES_VARIABLE}"
        )
        details: dict[str, object] = {
            "scope": Scope.CONVERSATION.value,
            "used_files": count,
            "limit_files": limit,
            "added_files": 1,
            "variable": FILES_VARIABLE,
            "retry_after_seconds": None,
        }
        raise CallerError("quota_reached", message, details, status=429)
