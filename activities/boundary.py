"""Errors at the edge: a vendor's exception becomes one of ours, ours becomes Temporal's, Temporal's becomes data.

Three doors in a row. `provider_error`, `tool_error`, `store_error` and `cache_error` read the tables of
activities/vendors.py. `to_temporal` is the last thing an activity does with an error. `problem_of` gives the reader
of a failed activity the problem back.

Nothing of a vendor's text passes: it may quote the payload, and Temporal stores failures unencrypted and cuts them
at 4 KiB. What passes is code, sentence, wait, class name and status.
"""

from collections.abc import Mapping
from datetime import timedelta

from temporalio import exceptions as temporal

from activities.retry_after import retry_after_seconds
from activities.vendors import (
    CACHE,
    MODEL_BILLING,
    MODEL_DOWN,
    MODEL_OVERFLOW,
    MODEL_REQUEST,
    OUT_OF_CREDIT,
    PROVIDER,
    PROVIDER_STATUS,
    STORE,
    TOOL,
    TOOL_DOWN,
    TOOL_REQUEST,
    TOOL_STATUS,
    UNEXPECTED,
    ByStatus,
    Meaning,
    Table,
)
from contracts.errors import PerdureError, Problem, UpstreamUnavailable
from policy.retries import RETRY_AFTER_CAP

MESSAGE_CHARACTERS = 300
"""A problem's sentence is cut here on its way into a history."""


def provider_error(error: Exception) -> PerdureError:
    """What an exception of LiteLLM, openai or their HTTP client means for a model call."""
    if isinstance(error, PerdureError):
        return error
    # LiteLLM wraps what breaks a running stream; the inner exception has the truth.
    inner = getattr(error, "original_exception", None)
    error = inner if isinstance(inner, Exception) else error
    body_code = _body_code(error)
    if body_code in OUT_OF_CREDIT or "credit balance is too low" in str(getattr(error, "message", "")):
        return _ours(MODEL_BILLING, error)  # the sentence is Anthropic's, with a plain 400
    if body_code == "context_length_exceeded":
        return _ours(MODEL_OVERFLOW, error)
    return _read(PROVIDER, error, PROVIDER_STATUS, MODEL_REQUEST, MODEL_DOWN)


def tool_error(error: Exception) -> PerdureError:
    """What an exception from a tool's own code or its HTTP client means for its call.

    Whether a repeated attempt may act is for the tool's effect class, not for this answer.
    """
    return _read(TOOL, error, TOOL_STATUS, TOOL_REQUEST, TOOL_DOWN)


def store_error(error: Exception) -> PerdureError:
    """What an exception of asyncpg means."""
    return _read(STORE, error, {}, UNEXPECTED, UNEXPECTED)


def cache_error(error: Exception) -> PerdureError:
    """What an exception of redis means."""
    return _read(CACHE, error, {}, UNEXPECTED, UNEXPECTED)


def to_temporal(error: PerdureError) -> temporal.ApplicationError:
    """`error` as an activity raises it: type is the code, a wait that was asked for is the next delay (60 s at most).

    The chain of causes is left out: Temporal would store the vendor's text with it.
    """
    problem = error.as_problem()
    detail = problem.model_copy(update={"message": problem.message[:MESSAGE_CHARACTERS]}).model_dump(mode="json")
    failure = temporal.ApplicationError(
        detail["message"],
        {**detail, "family": type(error).__name__, **_small(error.details)},
        type=error.code,
        non_retryable=not error.retryable,
        next_retry_delay=_next_delay(problem.retry_after_seconds),
    )
    failure.__suppress_context__ = True
    return failure


def problem_of(error: BaseException) -> Problem:
    """What a failed activity says, as data; reads what `to_temporal` wrote, through Temporal's own wrapping."""
    if isinstance(error, PerdureError):
        return error.as_problem()
    if isinstance(error, temporal.ActivityError) and error.cause is not None:
        return problem_of(error.cause)
    if isinstance(error, temporal.ApplicationError):
        detail = error.details[0] if error.details else None
        if isinstance(detail, dict) and {"code", "message"} <= detail.keys():
            return Problem.model_validate(detail)
        return Problem(code=UNEXPECTED.code, message=UNEXPECTED.message)
    if isinstance(error, temporal.TimeoutError):
        return Problem(code="activity_timeout", message="The work did not report back in time.")
    if temporal.is_cancelled_exception(error):
        return Problem(code="cancelled", message="The work was cancelled.")
    return Problem(code=UNEXPECTED.code, message=UNEXPECTED.message)


def _read(
    table: Table, error: Exception, statuses: Mapping[int, Meaning], client: Meaning, server: Meaning
) -> PerdureError:
    """The nearest row among the bases of `error`, or its HTTP status where the row says so."""
    if isinstance(error, PerdureError):
        return error
    for kind in type(error).__mro__:
        row = table.get(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(row, Meaning):
            return _ours(row, error)
        if isinstance(row, ByStatus):
            status = _status(error)
            other = client if status is not None and 400 <= status < 500 else server
            return _ours(statuses.get(status or 0, other), error)
    return _ours(UNEXPECTED, error)


def _ours(meaning: Meaning, error: Exception) -> PerdureError:
    details: dict[str, object] = {"vendor": f"{type(error).__module__}.{type(error).__qualname__}"[:120]}
    status = _status(error)
    if status is not None:
        details["status"] = status
    if meaning.family is UpstreamUnavailable:
        wait = retry_after_seconds(_headers(error))
        return UpstreamUnavailable(meaning.code, meaning.message, details, retry_after_seconds=wait)
    return meaning.family(meaning.code, meaning.message, details)


def _status(error: Exception) -> int | None:
    """The HTTP status; the exception's own before its response's, which LiteLLM sometimes makes up."""
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    """The headers of the answer; LiteLLM keeps them beside the response that it makes up."""
    own = getattr(error, "litellm_response_headers", None)
    headers = own if own is not None else getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def _body_code(error: Exception) -> str:
    """`code`, else `type`, of an error body in OpenAI's form."""
    body = getattr(error, "body", None)
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error", body)
    return str(inner.get("code") or inner.get("type") or "") if isinstance(inner, Mapping) else ""


def _next_delay(wait_seconds: float | None) -> timedelta | None:
    """The next delay, or None where the retry class decides; a wait of zero leaves it to the class too."""
    if not wait_seconds:
        return None
    return timedelta(seconds=min(wait_seconds, RETRY_AFTER_CAP.total_seconds()))


def _small(details: Mapping[str, object]) -> dict[str, object]:
    """Details that are surely small: numbers, flags, short strings; eight of them at most."""
    small = {
        name: value
        for name, value in details.items()
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 120)
    }
    return dict(list(small.items())[:8])
