"""The budget of a turn, checked before every model call (S0-40). Equality trips. A call that is under way may go past
it by what it asks and a usual answer, and no further: an endless one is broken off."""

from typing import Final

from contracts.errors import Problem
from contracts.turns import Limits, OnSpent

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
