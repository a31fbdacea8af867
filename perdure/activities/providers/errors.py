"""The meaning of each vendor's exceptions: one table per vendor, and the two functions that read them.

Keys are qualified class names, looked up along the exception's bases, so that the nearest class decides. No vendor is
imported to read a table: LiteLLM alone takes 5 s and 200 MB (measured). BY_STATUS means that the exception's HTTP
status decides. Messages never contain a vendor's text, which may quote the payload.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from perdure.contracts.errors import InvariantBroken, LimitReached, PerdureError, UpstreamRejected, UpstreamUnavailable
from perdure.core.calls.retries import retry_after_seconds
from perdure.egress import EgressRefused, refusal_in

CONTEXT_OVERFLOW = "context_overflow"
"""The conversation is too long for the model: the call is retried once with half of it."""
CONTENT_REFUSED = "content_refused"
"""The provider will not answer this content. This is an answer, not an error."""

BILLED_ERRORS = frozenset({"model_timeout", "model_cut_off", "model_unreadable", "model_empty_answer", "output_limit"})
"""Errors of a provider that had accepted the request. It bills for the request, whatever the result."""


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
MODEL_AUTH = _permanent("model_auth", "The model provider rejected the API key; check the agent's credentials.")
MODEL_BILLING = _permanent("model_billing", "The model provider's account has no credit left.")
MODEL_REQUEST = _permanent(
    "model_bad_request", "The model provider rejected the request; check the agent's model parameters."
)
MODEL_SETUP = _permanent("model_setup", "The model is not configured; check the agent's model name and parameters.")

PROVIDER_STATUS: Mapping[int, Meaning] = {
    401: MODEL_AUTH,
    402: MODEL_BILLING,
    403: MODEL_AUTH,
    404: _permanent("model_not_found", "The model provider does not have this model; check the agent's model name."),
    408: MODEL_TIMEOUT,
    409: MODEL_DOWN,
    413: MODEL_OVERFLOW,
    425: MODEL_DOWN,
    429: _retryable("model_rate_limited", "The model provider's rate limit is reached; the call is retried."),
    529: _retryable("model_overloaded", "The model provider is overloaded; the call is retried."),
}
"""Other 5xx: MODEL_DOWN; other 4xx: MODEL_REQUEST."""

OUT_OF_CREDIT = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active"})
"""Codes in an error body that mean missing credit, whatever the status: OpenAI sends `insufficient_quota` with a 429.
"""

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
STORE_CONFLICT = _retryable("store_conflict", "The transaction conflicted with another one; it is retried.")
STORE_REFUSED = _internal("store_refused", "Postgres rejected a statement.")

STORE: MeaningTable = {
    "asyncpg.exceptions.PostgresConnectionError": STORE_DOWN,
    "asyncpg.exceptions.InsufficientResourcesError": STORE_DOWN,
    "asyncpg.exceptions.OperatorInterventionError": STORE_DOWN,
    "asyncpg.exceptions.PostgresSystemError": STORE_DOWN,
    "asyncpg.exceptions.ReadOnlySQLTransactionError": STORE_DOWN,
    "asyncpg.exceptions.TransactionRollbackError": STORE_CONFLICT,
    "asyncpg.exceptions.LockNotAvailableError": STORE_CONFLICT,
    "asyncpg.exceptions.InvalidCachedStatementError": STORE_CONFLICT,
    "asyncpg.exceptions._base.OutdatedSchemaCacheError": STORE_CONFLICT,
    "asyncpg.exceptions._base.PostgresError": STORE_REFUSED,
    "asyncpg.exceptions._base.UnsupportedClientFeatureError": STORE_REFUSED,
    "asyncpg.exceptions._base.UnsupportedServerFeatureError": STORE_REFUSED,
    "asyncpg.exceptions._base.ClientConfigurationError": STORE_REFUSED,
    "asyncpg.exceptions._base.DataError": STORE_REFUSED,
    "asyncpg.exceptions._base.InterfaceWarning": STORE_REFUSED,
    "asyncpg.exceptions._base.InterfaceError": STORE_DOWN,
    "asyncpg.exceptions._base.ProtocolError": STORE_DOWN,
    "asyncpg.exceptions._base.TargetServerAttributeNotMatched": STORE_DOWN,
    "asyncpg.exceptions._base.InternalClientError": STORE_DOWN,
    "builtins.TimeoutError": STORE_DOWN,
    "builtins.OSError": STORE_DOWN,
}
"""InterfaceError mostly means a closed connection or pool. asyncpg raises InternalClientError if Postgres dies in the
middle of a statement (seen when many processes were killed)."""

UNEXPECTED = _internal("unexpected_error", "An unexpected error occurred; the worker's log has the details.")


MAX_FRAMES = 12
"""Number of innermost frames of an unexpected exception that are logged."""

_log = structlog.get_logger(__name__)


def provider_error(error: Exception) -> PerdureError:
    """Converts an exception of LiteLLM, openai or their HTTP client into the error of a model call."""
    if isinstance(error, PerdureError):
        return error
    refusal = refusal_in(error)  # LiteLLM wraps it in several layers
    if isinstance(refusal, EgressRefused):
        return UpstreamRejected("egress_refused", f"The model provider cannot be reached: {refusal}.")
    if refusal is not None:
        return UpstreamRejected(refusal.code, f"The model's response was not read: {refusal}.")
    # LiteLLM wraps errors of a running stream; the inner exception is the real cause.
    inner = getattr(error, "original_exception", None)
    error = inner if isinstance(inner, Exception) else error
    body_code = _body_code(error)
    if body_code in OUT_OF_CREDIT or "credit balance is too low" in str(getattr(error, "message", "")):
        return _as_perdure_error(MODEL_BILLING, error)  # the sentence is Anthropic's, sent with a plain 400
    if body_code == "context_length_exceeded":
        return _as_perdure_error(MODEL_OVERFLOW, error)
    return _look_up(PROVIDER, error, PROVIDER_STATUS, MODEL_REQUEST, MODEL_DOWN)


def store_error(error: Exception) -> PerdureError:
    """Converts an exception of asyncpg."""
    return _look_up(STORE, error, {}, UNEXPECTED, UNEXPECTED)


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


def _body_code(error: Exception) -> str:
    """Returns `code`, else `type`, of an error body in OpenAI's format."""
    body = getattr(error, "body", None)
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error", body)
    return str(inner.get("code") or inner.get("type") or "") if isinstance(inner, Mapping) else ""
