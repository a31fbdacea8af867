"""Waits and numbers of attempts for each retry class.

Only Temporal retries. A wait that a server requests replaces the next of these waits. The first wait is at most one
second: Temporal's dev server rounds shorter waits up to about a second anyway (measured).
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
"""The longest requested wait that a turn accepts."""

NO_CAP = 0
"""`maximum_attempts` of a class without a maximum; zero has the same meaning in Temporal."""

PROVIDER_ERRORS = 4
"""The number of provider errors after which a model call fails. They are counted in the call's row: the crash of a
worker is not a provider error and does not count."""
FALLBACK_SECONDS = 0.1
"""The wait before the call to the agent's fallback model, which has not requested any wait."""
NO_MODEL = frozenset({"model_not_found", "model_billing", "model_setup"})
"""Errors that no retry can fix but another model may: the provider does not have this model, does not serve the
account, or is not a model server."""
REJECTED_KEY = "model_auth"
"""The error that only another key can fix."""
TOO_LONG = "model_timeout"
"""The error of a whole answer that takes too long, if it is not retryable. Another model may be faster."""
TOOL_ERRORS = 5
"""The number of failed attempts after which a tool call fails."""
ATTEMPTS = 30
"""Temporal's own maximum, which also counts crashes. Beyond that, the fault is probably one that no attempt can fix.
`tools.run` counts its attempts itself, without those that only waited for a worker."""
# Six attempts at most to get an object from a model: first a JSON schema, then a function call, three times.
ROUNDS = 3
TRIES: tuple[OutputForm, ...] = (OutputForm.JSON_SCHEMA, OutputForm.FUNCTION) * ROUNDS
"""The forms in order, one per call."""
PERMANENT_CODES = frozenset(
    {
        *("model_auth", "model_billing", "model_not_found", "model_setup", "model_budget", "model_refused"),
        STOPPED.code,
        *TURN_CODES,
        *DAY_CODES,
    }
)
"""Problems that every further attempt would run into again."""


@dataclass(frozen=True, slots=True)
class RetryNumbers:
    """The numbers of a retry class: wait n is `initial_interval * backoff ** (n - 1)`, at most `maximum_interval`."""

    initial_interval: timedelta
    backoff: float
    maximum_interval: timedelta
    maximum_attempts: int
    """The first attempt counts; `NO_CAP` means no maximum."""

    def wait_before(self, attempt: int) -> timedelta:
        """Returns Temporal's wait before `attempt` (2 is the first retry)."""
        doublings = min(attempt - 2, 30)  # 30 doublings exceed every maximum and do not overflow.
        return min(self.initial_interval * self.backoff**doublings, self.maximum_interval)


NUMBERS: Mapping[RetryClass, RetryNumbers] = MappingProxyType(
    {
        # 0.2 0.4 0.8 1.6 3.2 5 5 ...: a restarted Postgres is back in under a second (measured).
        RetryClass.UNTIL_BACK: RetryNumbers(timedelta(seconds=0.2), 2.0, timedelta(seconds=5), NO_CAP),
        # 1 2 4: four calls, with min(30, 2^n) between them.
        RetryClass.PROVIDER: RetryNumbers(timedelta(seconds=1), 2.0, timedelta(seconds=30), ATTEMPTS),
        # 0.5 1 2 4: the effect class decides what a repeated attempt can do.
        RetryClass.TOOL: RetryNumbers(timedelta(seconds=0.5), 2.0, timedelta(seconds=30), ATTEMPTS),
    }
)


def errors_allowed(*, strict: bool) -> int:
    """Returns the number of provider errors after which a model call fails: one in the strict profile."""
    return 1 if strict else PROVIDER_ERRORS


def gives_up(code: str, *, retryable: bool, errors: int, other_key: bool) -> bool:
    """Returns whether a model cannot answer a call, so that the agent's fallback model is called.

    That is the case if the model is not available, if its errors are exhausted, or if its whole answer takes too long.
    It is also the case if its key is rejected and the fallback model has another one (`other_key`). Rejected content or
    a rejected request is not such a case: another model would reject it, too.
    """
    lasts = errors >= PROVIDER_ERRORS if retryable else code == TOO_LONG
    return lasts or code in NO_MODEL or (code == REJECTED_KEY and other_key)


def next_delay(retry_after: float | None) -> timedelta | None:
    """Returns the wait that the other side requested, within the maximum. For none or zero it returns None: the retry
    class decides."""
    if not retry_after:
        return None
    return timedelta(seconds=min(retry_after, RETRY_AFTER_CAP.total_seconds()))


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Returns the wait in seconds, or None if none is requested or it is unreadable. A past date is zero.

    `retry-after-ms`, which OpenAI sends, is preferred because it is more precise. A date counts from `now`.

    The header Retry-After has seconds or a date (RFC 9110, 10.2.3).
    """
    lower = {name.lower(): value for name, value in headers.items()}
    finer = _number(lower.get("retry-after-ms", ""))
    if finer is not None:
        return finer / 1000
    value = lower.get("retry-after", "").strip()
    seconds = _number(value)
    return seconds if seconds is not None else _seconds_until(value, now)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds_until(value: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:  # "-0000" means UTC with an unknown local offset.
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def is_permanent(problem: Problem) -> bool:
    """Returns whether further attempts are useless. The problem needs another configuration (a key, a model name),
    another request (`model_refused`), or a shorter answer."""
    return problem.code in PERMANENT_CODES or problem.details.get("still_answering") is True


def assumed_usage(request_tokens: int, price: Callable[[Usage], int], reserved: Hold | None = None) -> Usage:
    """Returns the assumed usage of an attempt with this many prompt tokens, with the cost from `price` or the
    reservation.

    An attempt that was lost may have been charged for by its provider. If the attempt reserved a part of daily budgets,
    the whole reservation counts: it cannot have used more, and the daily limit is kept in any case. Otherwise its
    prompt and an answer of typical length count. The assumption ends when the attempt returns and reports its usage.
    """
    if reserved is None or not reserved.tokens:
        usage = Usage(input_tokens=request_tokens, output_tokens=USUAL_ANSWER_TOKENS)
        return usage.model_copy(update={"cost_microusd": price(usage)})
    input_tokens = min(request_tokens, reserved.tokens)
    output_tokens = reserved.tokens - input_tokens
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_microusd=reserved.cost_microusd)
