"""What an attempt of a model call counts with that nobody hears of again: its provider may have been paid.

Where it reserved of a day's budgets, all that it reserved: more it cannot have used, and a day's limit holds whatever
became of it. Else what it asked, and a usual answer. It counts until the attempt comes back and says what it used.
"""

from collections.abc import Callable

from contracts.turns import Usage
from policy.budget import USUAL_ANSWER_TOKENS
from policy.day_budget import Hold


def assumed(asked_tokens: int, price: Callable[[Usage], int], reserved: Hold | None = None) -> Usage:
    """The usage of an attempt that asked about so many tokens, priced where `price` knows how."""
    if reserved is None or not reserved.tokens:
        usage = Usage(input_tokens=asked_tokens, output_tokens=USUAL_ANSWER_TOKENS)
        return usage.model_copy(update={"cost_microusd": price(usage)})
    asked = min(asked_tokens, reserved.tokens)
    said = reserved.tokens - asked
    return Usage(input_tokens=asked, output_tokens=said, cost_microusd=reserved.cost_microusd)
