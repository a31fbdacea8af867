"""API calls as values. Pure functions build them; either client sends them and can retry them safely.

Every POST gets its Idempotency-Key when the value is built. Sending the same value twice is one request to the API.
"""

import uuid
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, JsonValue

from perdure.core.calls.retries import retry_after_seconds
from perdure.core.text import without_userinfo

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Query = Mapping[str, str | int | bool | None]

ANSWER_SECONDS = 30.0
"""Seconds that one attempt can take, in addition to the time for which the call asks the server to wait."""
UNREACHABLE = "unreachable"
UNREADABLE = "unreadable_answer"
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0
_NOT_RETRYABLE = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the function that parses its response."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T] = field(repr=False)
    query: Query = field(default_factory=dict)
    body: JsonValue = None
    idempotency_key: str | None = None
    wait_seconds: float = 0.0
    """Seconds for which the call asks the server to delay its response."""
    content: bytes | AsyncIterable[bytes] | None = field(default=None, repr=False)
    """The content of a file, instead of a JSON body. The asynchronous client also accepts a stream, which it sends
    once."""
    length: int | None = None
    """The size in bytes of a streamed `content`."""
    media_type: str = ""
    """The media type of `content`."""

    @property
    def may_repeat(self) -> bool:
        """Returns whether the request can be sent again, even if the first one may have arrived."""
        if self.content is not None and not isinstance(self.content, bytes):
            return False
        return self.method != "POST" or self.idempotency_key is not None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments for httpx, without the method and the URL."""
        arguments: dict[str, Any] = {
            "params": {name: _query_text(value) for name, value in self.query.items() if value is not None},
            "timeout": httpx.Timeout(ANSWER_SECONDS + self.wait_seconds, connect=5.0),
            "headers": {"Idempotency-Key": self.idempotency_key} if self.idempotency_key else {},
        }
        if self.content is not None:
            arguments["content"] = self.content
            arguments["headers"] = {**arguments["headers"], "Content-Type": self.media_type}
            if self.length is not None:
                arguments["headers"]["Content-Length"] = str(self.length)
        elif self.body is not None:
            arguments["json"] = self.body
        return arguments


def get(path: str, parse: Callable[[httpx.Response], T], query: Query | None = None) -> Call[T]:
    """Builds a GET request. Entries of `query` without a value are omitted."""
    return Call("GET", path, parse, query or {})


def post(
    path: str,
    parse: Callable[[httpx.Response], T],
    body: Mapping[str, JsonValue] | None = None,
    *,
    key: str | None = None,
    query: Query | None = None,
    wait_seconds: float = 0.0,
) -> Call[T]:
    """Builds a POST request with the idempotency key `key`, or with a new one. Fields without a value are omitted."""
    fields: dict[str, JsonValue] = {name: value for name, value in (body or {}).items() if value is not None}
    return Call("POST", path, parse, query or {}, fields, key or str(uuid.uuid4()), wait_seconds)


def path(*parts: str) -> str:
    """Returns `/v1/...` with every part escaped, so that an id is never more than one path segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def parsed_as(model: type[Model]) -> Callable[[httpx.Response], Model]:
    """Returns a function that parses the JSON of a response as a `model`. It raises ValidationError."""
    return lambda response: model.model_validate_json(response.content)


def _query_text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ApiError(Exception):
    """An error response of the API. If the API could not be reached, `status` is 0 and `code` is `unreachable`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        request_id: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        """A stable name in snake_case."""
        self.message = message
        self.details = dict(details or {})
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        """Seconds to wait before a retry, if the API requested a wait."""


def api_error(response: httpx.Response) -> ApiError:
    """Returns the error of a response that is not 2xx, even if it came from a proxy instead of the API."""
    wait_seconds = retry_after_seconds(response.headers, datetime.now(UTC))
    try:
        body = response.json()["error"]
        return ApiError(
            response.status_code,
            str(body["code"]),
            str(body["message"]),
            body.get("details") or {},
            str(body.get("request_id") or ""),
            wait_seconds,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(
            response.status_code,
            f"http_{response.status_code}",
            f"{bare_url(response)} answered {response.status_code} {response.reason_phrase}",
            retry_after_seconds=wait_seconds,
        )


def bare_url(response: httpx.Response) -> httpx.URL:
    """Returns the URL of the request, without its query, user name and password."""
    return response.request.url.copy_with(query=None, userinfo=b"")


def unreachable_error(base_url: str, error: Exception) -> ApiError:
    """Returns the error for an API that did not respond within the time for retries."""
    reason = str(error) or type(error).__name__
    url = without_userinfo(base_url)
    return ApiError(0, UNREACHABLE, f"{url} is unreachable ({reason})", {"url": url})


@dataclass(slots=True)
class RetryBudget:
    """The retries of one request, or of one stream, within `seconds` without a response.

    The waits are 0.2 0.4 0.8 1.6 3.2 5 5 … seconds.

    It neither sleeps nor sends. A request is sent again after a broken or refused connection, and after a 503 with
    `Retry-After`. Both are safe, because a change has its Idempotency-Key. A change without one is sent again only if
    it never left. Any other response is final.
    """

    base_url: str
    seconds: float
    _failing_since: float | None = None
    _failures: int = 0

    def reset(self) -> None:
        """Resets the time for retries after a response."""
        self._failing_since, self._failures = None, 0

    def wait_after_failure(self, error: httpx.TransportError, now: float, *, may_repeat: bool = True) -> float:
        """Returns the seconds to wait after a connection that broke or was never established.

        Without `may_repeat`, only a request that was never sent is sent again.

        Raises: ApiError `unreachable` if no time for retries is left or if a retry cannot help.
        """
        failure = unreachable_error(self.base_url, error)
        if isinstance(error, _NOT_RETRYABLE) or not (may_repeat or isinstance(error, _NEVER_SENT)):
            raise failure
        return self._wait(now, failure, 0.0)

    def wait_after_answer(self, response: httpx.Response, now: float) -> float:
        """Returns the seconds to wait after an error response whose body has been read.

        Raises: ApiError for the response, unless it is a 503 with `Retry-After`, or if no time for retries is left.
        """
        wait = retry_after_seconds(response.headers, datetime.now(UTC)) if response.status_code == 503 else None
        if wait is None:
            raise api_error(response)
        return self._wait(now, api_error(response), wait)

    def wait_after_stream_end(self, now: float) -> float:
        """Returns the seconds to wait after a stream's connection that closed normally before the last event.

        Raises: ApiError `unreachable` if no time for retries is left.
        """
        return self._wait(now, unreachable_error(self.base_url, ConnectionError("the stream ended repeatedly")), 0.0)

    def _wait(self, now: float, failure: ApiError, min_seconds: float) -> float:
        self._failing_since = now if self._failing_since is None else self._failing_since
        wait = max(min_seconds, min(FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_WAIT_SECONDS))
        self._failures += 1
        if now + wait - self._failing_since > self.seconds:
            raise failure
        return wait
