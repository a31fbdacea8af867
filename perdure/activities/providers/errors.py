"""The meaning of each vendor's exceptions and error codes: tables, and the two functions that read them.

Keys are qualified class names, looked up along the exception's bases, so that the nearest class decides. No vendor is
imported to read a table: LiteLLM alone takes 5 s and 200 MB (measured). BY_STATUS means that the exception's HTTP
status decides. Messages never contain a vendor's text, which may quote the payload: a masked sentence of it is in the
details (perdure/activities/providers/masking.py).
"""

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from perdure.activities.providers.masking import NO_TEXTS, RequestTexts, mask
from perdure.activities.providers.refusals import Refusal, read_refusal
from perdure.contracts.errors import (
    InvariantBroken,
    LimitReached,
    PerdureError,
    Problem,
    UpstreamRejected,
    UpstreamUnavailable,
)
from perdure.core.calls.retries import retry_after_seconds
from perdure.egress import EgressRefused, refusal_in
from perdure.store.faults import StoreFault, object_names, store_fault

CONTEXT_OVERFLOW = "context_overflow"
"""The conversation is too long for the model: the call is retried once with half of it."""
CONTENT_REFUSED = "content_refused"
"""The provider will not answer this content. This is an answer, not an error."""

BILLED_ERRORS = frozenset({"model_timeout", "model_cut_off", "model_unreadable", "model_empty_answer", "output_limit"})
"""Errors of a provider that had accepted the request. It bills for the request, whatever the result."""
_OVERFLOW = re.compile(
    "|".join(
        [
            *("prompt is too long", "prompt too long", "input is too long", "input length exceeds"),
            *("maximum input length", r"exceed(s|ed)? (the )?(max(imum)? )?context", "maximum context l(ength|imit)"),
            *("maximum prompt length", "maximum number of tokens allowed", "longer than the model's context"),
            *("exceeds the available context size", "input tokens exceed the configured limit"),
            *("reduce the length of the (messages|prompt)", "loaded with context length of only"),
            *(r"tokens \+ `max_new_tokens` must be", "tokens in the prompt cannot exceed", "request too large for"),
        ]
    ),
    re.IGNORECASE,
)
"""Sentences of providers that send no code for a conversation that is too long. The last one is OpenAI's for a
request above the limit of tokens per minute, which no wait helps."""
_OVERFLOW_STATUSES = frozenset({None, 400, 413, 422, 429, 500})
_NO_CREDIT = "credit balance is too low"
"""Anthropic's sentence, sent with a plain 400."""
_BAD_KEY = re.compile(
    r"\bapi[ _-]?key (is )?(not valid|invalid|expired)|\b(invalid|incorrect) api[ _-]?key", re.IGNORECASE
)
"""Sentences of Google and others, sent with a plain 400."""
_FILTERED = re.compile(r"blocked by content filtering|content management policy", re.IGNORECASE)
"""Sentences of Anthropic and Azure."""
MAX_FRAMES = 12
"""Number of innermost frames of an unexpected exception that are logged."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The error family, which determines who acts next, the stable code, and a message for a person."""

    family: type[PerdureError]
    code: str
    message: str


class ByStatus:
    """Marks rows where the HTTP status decides."""


BY_STATUS = ByStatus()
MeaningTable = Mapping[str, Meaning | ByStatus]


def _retryable(code: str, message: str) -> Meaning:
    return Meaning(UpstreamUnavailable, code, message)


def _permanent(code: str, message: str) -> Meaning:
    return Meaning(UpstreamRejected, code, message)


def _internal(code: str, message: str) -> Meaning:
    return Meaning(InvariantBroken, code, message)


MODEL_DOWN = _retryable("model_unavailable", "The model provider is unreachable or closed the connection.")
MODEL_TIMEOUT = _retryable("model_timeout", "The model did not respond in time.")
MODEL_UNREADABLE = _retryable("model_unreadable", "The model provider's response is invalid.")
MODEL_OVERFLOW = _permanent(CONTEXT_OVERFLOW, "The conversation is too long for this model.")
MODEL_REFUSED = _permanent(CONTENT_REFUSED, "The model provider refused this content.")
MODEL_AUTH = _permanent(
    "model_auth", "The model provider refused access; check the agent's API key and what it may use."
)
MODEL_BILLING = _permanent("model_billing", "The model provider's account has no credit left.")
MODEL_REQUEST = _permanent(
    "model_bad_request", "The model provider rejected the request; check the agent's model parameters."
)
MODEL_SETUP = _permanent("model_setup", "The model is not configured; check the agent's model name and parameters.")
MODEL_BODY_LIMIT = _permanent(
    "model_bad_request",
    "A server before the model refused the request as too large (413); raise its limit for the body of a request.",
)
MODEL_MOVED = _permanent(
    "model_setup",
    "The model provider redirected the request, which is not followed; set the agent's `api_base` to its new address.",
)
MODEL_NOT_FOUND = _permanent(
    "model_not_found", "The model provider does not have this model; check the agent's model name."
)
MODEL_RATE_LIMITED = _retryable("model_rate_limited", "The model provider's rate limit is reached; try again later.")
MODEL_OVERLOADED = _retryable("model_overloaded", "The model provider is overloaded; try again later.")

PROVIDER_STATUS: Mapping[int, Meaning] = {
    **dict.fromkeys((301, 302, 303, 307, 308), MODEL_MOVED),
    401: MODEL_AUTH,
    402: MODEL_BILLING,
    403: MODEL_AUTH,
    404: MODEL_NOT_FOUND,
    408: MODEL_TIMEOUT,
    409: MODEL_DOWN,
    413: MODEL_OVERFLOW,
    425: MODEL_DOWN,
    429: MODEL_RATE_LIMITED,
    504: MODEL_TIMEOUT,
    529: MODEL_OVERLOADED,
}
"""Other 5xx: MODEL_DOWN; other 4xx: MODEL_REQUEST."""

CODES: Mapping[str, Meaning] = {
    **dict.fromkeys(
        ("insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active"), MODEL_BILLING
    ),
    **dict.fromkeys(("context_length_exceeded", "exceed_context_size_error", "request_too_large"), MODEL_OVERFLOW),
    **dict.fromkeys(("content_filter", "content_policy_violation", "responsibleaipolicyviolation"), MODEL_REFUSED),
    **dict.fromkeys(("invalid_api_key", "api_key_invalid"), MODEL_AUTH),
    **dict.fromkeys(("model_not_found", "deploymentnotfound", "invalid_model"), MODEL_NOT_FOUND),
}
"""Codes in an error body, in lower case, that decide whatever the status. OpenAI sends `insufficient_quota` with a 429.
Azure sends its content filter with a 400, and Mistral `invalid_model`."""

STREAM_CODES: Mapping[str, Meaning] = {
    **dict.fromkeys(("authentication_error", "unauthenticated", "permission_error", "permission_denied"), MODEL_AUTH),
    **dict.fromkeys(("not_found_error", "not_found"), MODEL_NOT_FOUND),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "resource_exhausted"), MODEL_RATE_LIMITED),
    **dict.fromkeys(("timeout_error", "deadline_exceeded"), MODEL_TIMEOUT),
    **dict.fromkeys(("invalid_request_error", "invalid_argument", "failed_precondition"), MODEL_REQUEST),
    "overloaded_error": MODEL_OVERLOADED,
}
"""Codes that decide only if there is no status, as for an error in a stream. Others: MODEL_DOWN."""


PROVIDER: MeaningTable = {
    "litellm.exceptions.ContextWindowExceededError": MODEL_OVERFLOW,
    "litellm.exceptions.ContentPolicyViolationError": MODEL_REFUSED,
    "litellm.exceptions.GuardrailRaisedException": MODEL_REFUSED,
    "litellm.exceptions.BlockedPiiEntityError": MODEL_REFUSED,
    "litellm.exceptions.ModifyResponseException": MODEL_REFUSED,
    "litellm.exceptions.SensitiveDataRouteException": MODEL_REFUSED,
    "litellm.exceptions.PaymentRequiredError": MODEL_BILLING,
    "litellm.exceptions.BudgetExceededError": Meaning(
        LimitReached, "model_budget", "The budget of the provider's gateway is used up; raise it there."
    ),
    "litellm.exceptions.UnsupportedParamsError": MODEL_SETUP,
    "litellm.exceptions.LiteLLMUnknownProvider": MODEL_SETUP,
    "litellm.exceptions.ModelNotMappedError": MODEL_SETUP,
    "litellm.exceptions.OpenAIError": MODEL_SETUP,
    "openai.ContentFilterFinishReasonError": MODEL_REFUSED,
    "openai.LengthFinishReasonError": _permanent(
        "output_limit", "The model reached its output limit before it answered."
    ),
    "openai.APITimeoutError": MODEL_TIMEOUT,
    "openai.APIConnectionError": MODEL_DOWN,
    "openai.APIResponseValidationError": MODEL_UNREADABLE,
    "openai.APIError": BY_STATUS,
    "openai.WebSocketConnectionClosedError": MODEL_DOWN,
    "openai.WebSocketQueueFullError": MODEL_DOWN,
    "openai.OpenAIError": MODEL_SETUP,
    "openai.InvalidWebhookSignatureError": MODEL_UNREADABLE,
    "httpx.TimeoutException": MODEL_TIMEOUT,
    "httpx.HTTPStatusError": BY_STATUS,
    "httpx.HTTPError": MODEL_DOWN,
    "httpx.StreamError": MODEL_DOWN,
    "httpx.InvalidURL": MODEL_SETUP,
    "httpx.CookieConflict": MODEL_DOWN,
    "builtins.TimeoutError": MODEL_TIMEOUT,
    "builtins.OSError": MODEL_DOWN,
    "builtins.ValueError": MODEL_UNREADABLE,
}

STORE_DOWN = _retryable("store_unavailable", "Postgres is unavailable.")
STORE_UNREADABLE = _retryable(STORE_DOWN.code, "Postgres lacks a table, a column or a right; an operator must mend it.")
STORE_CONFLICT = _retryable("store_conflict", "The transaction conflicted with another one; it is retried.")
STORE_REFUSED = _internal("store_refused", "Postgres rejected a statement.")

STORE: Mapping[StoreFault, Meaning] = {
    StoreFault.UNAVAILABLE: STORE_DOWN,
    StoreFault.UNREADABLE: STORE_UNREADABLE,
    StoreFault.CONFLICT: STORE_CONFLICT,
    StoreFault.REFUSED: STORE_REFUSED,
}

UNEXPECTED = _internal("unexpected_error", "An unexpected error occurred; the worker's log has the details.")


_log = structlog.get_logger(__name__)


def provider_error(error: Exception, request: RequestTexts = NO_TEXTS) -> PerdureError:
    """Converts an exception of LiteLLM, openai or their HTTP client into the error of a model call.

    `details["refusal"]` has the provider's status, code, parameter and masked sentence; of the request, it can contain
    only names.
    """
    if isinstance(error, PerdureError):
        return error
    refusal = refusal_in(error)  # LiteLLM wraps it in several layers
    if isinstance(refusal, EgressRefused):
        return UpstreamRejected("egress_refused", f"The model provider cannot be reached: {refusal}.")
    if refusal is not None:
        return UpstreamRejected(refusal.code, f"The model's response was not read: {refusal}.")
    answer = read_refusal(error)
    # LiteLLM wraps errors of a running stream; the inner exception is the real cause.
    inner = getattr(error, "original_exception", None)
    error = inner if isinstance(inner, Exception) else error
    if answer is None:
        return _look_up(PROVIDER, error, PROVIDER_STATUS, MODEL_REQUEST, MODEL_DOWN)
    found = _as_perdure_error(_meaning_of(answer, error), error)
    found.details.pop("status", None)  # LiteLLM invents one for an error in a stream
    if answer.status is not None:
        found.details["status"] = answer.status
    if found.code == MODEL_DOWN.code:
        status = f" with status {answer.status}" if answer.status is not None else " while it answered"
        found.message = f"The model provider failed{status}; try again later."
    if found.code == MODEL_REQUEST.code and answer.param:
        found.message = (
            f"The model provider rejected {answer.param} of the request; check the agent's parameters and tools."
        )
    shown = answer.shown(request)
    if shown:
        found.details["refusal"] = shown
    return found


def problem_of(error: PerdureError, model: str) -> Problem:
    """Returns a failed model call's problem. If the provider answered, its details have `model`, and the answer's
    `status`, `vendor_code`, `param` and `sentence`."""
    refusal = error.details.get("refusal")
    if not isinstance(refusal, dict):
        return error.as_problem()
    return error.as_problem().model_copy(update={"details": {"model": model, **refusal}})


def problem_of_both(first: Problem, problem: Problem, model: str) -> Problem:
    """Returns the problem of a call whose fallback model `model` failed too. `details["first"]` has the first one."""
    first_model = first.details.get("model")
    message = f"{first_model}: {first.message} The fallback model {model} failed too: {problem.message}"
    told = {"code": first.code, "message": first.message, **first.details}
    return problem.model_copy(
        update={"message": message, "details": {"model": model, **problem.details, "first": told}}
    )


def _meaning_of(answer: Refusal, error: Exception) -> Meaning:
    """Returns the meaning of a provider's answer: its code decides, then its sentence, then LiteLLM's class for content
    and length, then the status."""
    codes = [code.lower() for code in answer.codes]
    for code in codes:
        if code in CODES:
            return CODES[code]
    if _NO_CREDIT in answer.message:
        return MODEL_BILLING
    said = mask(answer.message)  # a quoted text must not decide
    if answer.status == 400 and _BAD_KEY.search(said):
        return MODEL_AUTH
    if answer.status in _OVERFLOW_STATUSES and _OVERFLOW.search(said):
        return MODEL_OVERFLOW
    if answer.status in (None, 400) and _FILTERED.search(said):
        return MODEL_REFUSED
    if answer.status == 413 and not codes:
        return MODEL_BODY_LIMIT
    for base in type(error).__mro__:
        row = PROVIDER.get(f"{base.__module__}.{base.__qualname__}")
        if row in (MODEL_OVERFLOW, MODEL_REFUSED):
            return row
    if answer.status is None:
        return next((STREAM_CODES[code] for code in codes if code in STREAM_CODES), MODEL_DOWN)
    return PROVIDER_STATUS.get(answer.status, MODEL_REQUEST if 400 <= answer.status < 500 else MODEL_DOWN)


def store_error(error: Exception) -> PerdureError:
    """Converts an exception of asyncpg."""
    if isinstance(error, PerdureError):
        return error
    fault = store_fault(error)
    if fault is StoreFault.UNREADABLE:
        _log.error("store_unreadable", error=type(error).__name__, reason=object_names(error))
    return _as_perdure_error(STORE[fault] if fault is not None else UNEXPECTED, error)


def _look_up(
    table: MeaningTable, error: Exception, statuses: Mapping[int, Meaning], client: Meaning, server: Meaning
) -> PerdureError:
    """Returns the error of the nearest row among the bases of `error`, or of its HTTP status if the row requires it."""
    if isinstance(error, PerdureError):
        return error
    for base in type(error).__mro__:
        row = table.get(f"{base.__module__}.{base.__qualname__}")
        if isinstance(row, Meaning):
            return _as_perdure_error(row, error)
        if isinstance(row, ByStatus):
            status = _status(error)
            fallback = client if status is not None and 400 <= status < 500 else server
            return _as_perdure_error(statuses.get(status or 0, fallback), error)
    return _as_perdure_error(UNEXPECTED, error)


def _as_perdure_error(meaning: Meaning, error: Exception) -> PerdureError:
    details: dict[str, object] = {"vendor": f"{type(error).__module__}.{type(error).__qualname__}"[:120]}
    if meaning.family is InvariantBroken:
        _log.error(meaning.code, error=details["vendor"], frames=_frames(error))
    status = _status(error)
    if status is not None:
        details["status"] = status
    if meaning.family is UpstreamUnavailable:
        wait = retry_after_seconds(_headers(error), datetime.now(UTC))
        return UpstreamUnavailable(meaning.code, meaning.message, details, retry_after_seconds=wait)
    return meaning.family(meaning.code, meaning.message, details)


def _frames(error: Exception) -> list[str]:
    """Returns the code locations of an exception, the innermost last. Its message and values are left out: they may
    quote a row or a payload."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _status(error: Exception) -> int | None:
    """Returns the HTTP status. The exception's own comes before its response's, which LiteLLM sometimes invents."""
    for holder in (error, getattr(error, "response", None)):
        status = getattr(holder, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _headers(error: Exception) -> Mapping[str, str]:
    """Returns the headers of the answer. LiteLLM stores them separately from the response that it invents."""
    own_headers = getattr(error, "litellm_response_headers", None)
    headers = own_headers if own_headers is not None else getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}
