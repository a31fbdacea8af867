"""What a model call came to, in the words of a typed backend: three statuses, four types of error (S3-10 to S3-12)."""

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
UNREADABLE = frozenset({"model_unreadable"})
SPENT = TURN_CODES | DAY_CODES
OURS = frozenset({"stopped", "turn_ended", "stale_attempt"}) | SPENT
"""Ends that no backend brought about: a stop, a turn that is over, a budget that is spent."""


def classified(problem: Problem | None, text: str) -> tuple[AnswerStatus, ErrorType | None]:
    """Status and type of error. A success without a word is none (S3-12); a time-out may pass, whatever else a backend
    does wrong will not."""
    if problem is None:
        if text.strip():
            return AnswerStatus.SUCCESS, None
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT
    if problem.code in TIMEOUTS:
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.TIMEOUT
    if problem.code in UNREADABLE:
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT
    if problem.code in OURS:
        return AnswerStatus.FATAL_ERROR, ErrorType.UNKNOWN
    return AnswerStatus.FATAL_ERROR, ErrorType.BACKEND_UNAVAILABLE


def fallback_text(error_type: ErrorType) -> str:
    """What is said in place of an answer, marked with the type (S3-17)."""
    return f"[{error_type.value}] There is no answer: {_WHY[error_type]}."


_WHY = {
    ErrorType.TIMEOUT: "the model did not finish in time",
    ErrorType.BACKEND_UNAVAILABLE: "the model could not be used",
    ErrorType.INVALID_OUTPUT: "the model said nothing that could be used",
    ErrorType.UNKNOWN: "the turn ended before it had one",
}
