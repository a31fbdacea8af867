"""What a model call came to, in the words of a typed backend: three statuses, four types of error (S3-10 to S3-12)."""

from collections.abc import Mapping
from enum import StrEnum

from contracts.errors import Problem
from policy.budget import TURN_CODES
from policy.day_budget import DAY_CODES


class AnswerStatus(StrEnum):
    """Whether there is an answer, and whether the same request might get one another time."""

    SUCCESS = "success"
    RECOVERABLE_ERROR = "recoverable_error"
    FATAL_ERROR = "fatal_error"


class ErrorType(StrEnum):
    """What was wrong; `unknown` is the last resort."""

    TIMEOUT = "timeout"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    INVALID_OUTPUT = "invalid_output"
    UNKNOWN = "unknown"


TIMEOUTS = frozenset({"model_timeout", "activity_timeout"})
UNUSABLE = frozenset({"model_unreadable", "model_empty_answer", "output_limit", "answer_too_large"})
"""The backend was there, and what it said is no answer."""
UNAVAILABLE = frozenset(
    {
        *("model_unavailable", "model_cut_off", "model_rate_limited", "model_overloaded", "model_not_found"),
        *("model_auth", "model_billing", "model_budget", "model_bad_request", "model_setup", "bad_script"),
        *("context_overflow", "content_refused", "activity_failed", "unexpected_error"),
        *("store_unavailable", "store_conflict", "store_refused", "day_budget_reserved"),
    }
)
"""No backend was there that took the request. A code that nobody knows counts as one of these (S3-11)."""
SPENT = TURN_CODES | DAY_CODES
OURS = frozenset({"stopped", "turn_ended", "stale_attempt"}) | SPENT
"""Ends that no backend brought about: a stop, a turn that is over, a budget that is spent."""


_NO_BACKEND = (AnswerStatus.FATAL_ERROR, ErrorType.BACKEND_UNAVAILABLE)
_MEANS: Mapping[str, tuple[AnswerStatus, ErrorType]] = {
    **dict.fromkeys(TIMEOUTS, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.TIMEOUT)),
    **dict.fromkeys(UNUSABLE, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT)),
    **dict.fromkeys(UNAVAILABLE, _NO_BACKEND),
    **dict.fromkeys(OURS, (AnswerStatus.FATAL_ERROR, ErrorType.UNKNOWN)),
}


def classified(problem: Problem | None, text: str) -> tuple[AnswerStatus, ErrorType | None]:
    """Status and type of error. A success without a word is none (S3-12); a time-out may pass, whatever else a backend
    does wrong will not."""
    if problem is None:
        if text.strip():
            return AnswerStatus.SUCCESS, None
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT
    return _MEANS.get(problem.code, _NO_BACKEND)


def fallback_text(error_type: ErrorType) -> str:
    """What is said in place of an answer, marked with the type (S3-17)."""
    return f"[{error_type.value}] There is no answer: {_WHY[error_type]}."


_WHY = {
    ErrorType.TIMEOUT: "the model did not finish in time",
    ErrorType.BACKEND_UNAVAILABLE: "the model could not be used",
    ErrorType.INVALID_OUTPUT: "the model said nothing that could be used",
    ErrorType.UNKNOWN: "the turn ended before it had one",
}
