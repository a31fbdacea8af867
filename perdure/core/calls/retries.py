"""How long to wait and how often to try, for each retry class.

Temporal is the only retry owner (design section 8); a wait that the other side asked for replaces the next of these.
The first retry comes after a second at most: the dev server rounds it up to about one anyway (measured).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import MappingProxyType

from perdure.contracts.activities import RetryClass
from perdure.contracts.calls import OutputForm
from perdure.contracts.errors import Problem
from perdure.contracts.turns import Usage
from perdure.core.budgets import DAY_CODES, TURN_CODES, USUAL_ANSWER_TOKENS, Hold
from perdure.core.calls.ledger import STOPPED

RETRY_AFTER_CAP = timedelta(seconds=60)
"""The longest wait that another side may ask of a turn (S2-27)."""

NO_CAP = 0
"""`maximum_attempts` of a class that tries until it succeeds; Temporal's own meaning of zero."""

PROVIDER_ERRORS = 4
"""Provider errors after which a model call is given up (S2-27: four calls). Counted in the call's own row: a worker's
death is no error of the provider's, and spends none of them."""
FALLBACK_SECONDS = 0.1
"""The wait before the agent's other model is asked: nobody there has asked for any."""
NO_MODEL = frozenset({"model_not_found", "model_billing"})
"""Refusals that no repetition mends and another model may: the provider has not got this one, or does not serve us."""
TOOL_ERRORS = 5
"""The same for a tool's failed tries."""
ATTEMPTS = 30
"""Temporal's own cap, which counts deaths too: beyond it something is broken that no attempt mends."""


@dataclass(frozen=True, slots=True)
class RetryNumbers:
    """Wait n is `initial_interval * backoff ** (n - 1)`, at most `maximum_interval`."""

    initial_interval: timedelta
    backoff: float
    maximum_interval: timedelta
    maximum_attempts: int
    """The first attempt counts; NO_CAP for none."""

    def wait_before(self, attempt: int) -> timedelta:
        """How long Temporal waits before `attempt` (2 is the first retry)."""
        doublings = min(attempt - 2, 30)  # far past every maximum, and no overflow
        return min(self.initial_interval * self.backoff**doublings, self.maximum_interval)


NUMBERS: Mapping[RetryClass, RetryNumbers] = MappingProxyType(
    {
        # 0.2 0.4 0.8 1.6 3.2 5 5 ...: a restarted Postgres is back in under a second (measured).
        RetryClass.UNTIL_BACK: RetryNumbers(timedelta(seconds=0.2), 2.0, timedelta(seconds=5), NO_CAP),
        # 1 2 4: four calls, min(30, 2^n) between them (S2-27, S2-28).
        RetryClass.PROVIDER: RetryNumbers(timedelta(seconds=1), 2.0, timedelta(seconds=30), ATTEMPTS),
        # 0.5 1 2 4: what a repeated attempt may do, the effect class decides.
        RetryClass.TOOL: RetryNumbers(timedelta(seconds=0.5), 2.0, timedelta(seconds=30), ATTEMPTS),
    }
)


def errors_allowed(*, strict: bool) -> int:
    """The provider error after which a model call is given up: the first, in the strict profile (S3-13)."""
    return 1 if strict else PROVIDER_ERRORS


def gives_up(code: str, *, retryable: bool, errors: int) -> bool:
    """Whether a model cannot answer a call, so that the agent's other one is asked (S0-76): it has failed as often as
    it is asked at all, or it is not there. A refused content or request is an answer that another model would give too.
    """
    return code in NO_MODEL or (retryable and errors >= PROVIDER_ERRORS)


def next_delay(asked_seconds: float | None) -> timedelta | None:
    """The wait that another side asked for, within the cap; None, as for a wait of zero, where the class decides."""
    if not asked_seconds:
        return None
    return timedelta(seconds=min(asked_seconds, RETRY_AFTER_CAP.total_seconds()))


# --- The wait that another side asks for: the Retry-After header, in seconds or as a date (RFC 9110, 10.2.3).


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """The wait in seconds, or None where none is asked for or it cannot be read; a date gone by is zero.

    `retry-after-ms`, which OpenAI sends, is preferred: it is the finer one. A date counts from `now`.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    finer = _number(lower.get("retry-after-ms", ""))
    if finer is not None:
        return finer / 1000
    value = lower.get("retry-after", "").strip()
    seconds = _number(value)
    return seconds if seconds is not None else _until(value, now)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(value: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:  # "-0000" means UTC without a place
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


# --- How often a model is asked for an object, and in which form (S4-23, S4-24).
# Six tries at most: a JSON schema first, then a function to call, three times over. What only another set-up could mend
# (a key, a model's name) ends them at once.

ROUNDS = 3
TRIES: tuple[OutputForm, ...] = (OutputForm.JSON_SCHEMA, OutputForm.FUNCTION) * ROUNDS
"""The forms in their order, one a call."""
HOPELESS = frozenset(
    {
        *("model_auth", "model_billing", "model_not_found", "model_setup", "model_budget", STOPPED.code),
        *TURN_CODES,
        *DAY_CODES,
    }
)
"""Problems that another try would meet again."""


def is_hopeless(problem: Problem) -> bool:
    """Whether no further try is worth its price."""
    return problem.code in HOPELESS


# --- What an attempt of a model call counts with that nobody hears of again: its provider may have been paid.
# Where it reserved of a day's budgets, all that it reserved: more it cannot have used, and a day's limit holds whatever
# became of it. Else what it asked, and a usual answer. It counts until the attempt comes back and says what it used.


def assumed(asked_tokens: int, price: Callable[[Usage], int], reserved: Hold | None = None) -> Usage:
    """The usage of an attempt that asked about so many tokens, priced where `price` knows how."""
    if reserved is None or not reserved.tokens:
        usage = Usage(input_tokens=asked_tokens, output_tokens=USUAL_ANSWER_TOKENS)
        return usage.model_copy(update={"cost_microusd": price(usage)})
    asked = min(asked_tokens, reserved.tokens)
    said = reserved.tokens - asked
    return Usage(input_tokens=asked, output_tokens=said, cost_microusd=reserved.cost_microusd)
