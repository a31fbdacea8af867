"""A call of the API as a value: made by pure functions, sent by either client, sent again without harm.

Every POST gets its Idempotency-Key when the value is made, so sending the same value twice is one request to the API.
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

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Query = Mapping[str, str | int | bool | None]

ANSWER_SECONDS = 30.0
"""How long one attempt may take, on top of what the call itself asks the server to wait."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T] = field(repr=False)
    query: Query = field(default_factory=dict)
    body: JsonValue = None
    idempotency_key: str | None = None
    wait_seconds: float = 0.0
    """How long the server was asked to hold its answer back."""
    content: bytes | AsyncIterable[bytes] | None = field(default=None, repr=False)
    """The bytes of a file, in place of a JSON body. The asynchronous client also sends a stream, once."""
    length: int | None = None
    """Of a `content` that is a stream."""
    media_type: str = ""
    """Of `content`."""

    @property
    def may_repeat(self) -> bool:
        """Whether sending it again is harmless even where the first one may have arrived."""
        if self.content is not None and not isinstance(self.content, bytes):
            return False
        return self.method != "POST" or self.idempotency_key is not None

    def arguments(self) -> dict[str, Any]:
        """What httpx is given beside the method and the address."""
        given: dict[str, Any] = {
            "params": {name: _written(value) for name, value in self.query.items() if value is not None},
            "timeout": httpx.Timeout(ANSWER_SECONDS + self.wait_seconds, connect=5.0),
            "headers": {"Idempotency-Key": self.idempotency_key} if self.idempotency_key else {},
        }
        if self.content is not None:
            given["content"] = self.content
            given["headers"] = {**given["headers"], "Content-Type": self.media_type}
            if self.length is not None:
                given["headers"]["Content-Length"] = str(self.length)
        elif self.body is not None:
            given["json"] = self.body
        return given


def get(path: str, read: Callable[[httpx.Response], T], query: Query | None = None) -> Call[T]:
    """A read."""
    return Call("GET", path, read, query or {})


def post(
    path: str,
    read: Callable[[httpx.Response], T],
    body: Mapping[str, JsonValue] | None = None,
    *,
    key: str | None = None,
    query: Query | None = None,
    wait_seconds: float = 0.0,
) -> Call[T]:
    """A change, under `key` or a key of its own; fields that are None are left out."""
    given: dict[str, JsonValue] = {name: value for name, value in (body or {}).items() if value is not None}
    return Call("POST", path, read, query or {}, given, key or str(uuid.uuid4()), wait_seconds)


def path(*parts: str) -> str:
    """`/v1/...` with every part escaped: an id is never more than one segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def one(model: type[Model]) -> Callable[[httpx.Response], Model]:
    """Reads an answer that is one `model`."""
    return lambda response: model.model_validate_json(response.content)


def _written(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- The one exception of the client.

UNREACHABLE = "unreachable"
UNREADABLE = "unreadable_answer"


class ApiError(Exception):
    """The API said no, or could not be reached: `status` is 0 then and `code` is `unreachable`."""

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
        """Stable, snake_case."""
        self.message = message
        self.details = dict(details or {})
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        """How long to wait before it is worth asking again, where the API said so."""


def error_of(response: httpx.Response) -> ApiError:
    """The error in an answer that is not 2xx, also where something before the API answered."""
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
            f"{response.request.url.copy_with(query=None)} answered {response.status_code} {response.reason_phrase}",
            retry_after_seconds=wait_seconds,
        )


def unreachable(base_url: str, error: Exception) -> ApiError:
    """What is raised once patience is at its end."""
    why = str(error) or type(error).__name__
    return ApiError(0, UNREACHABLE, f"nothing answers at {base_url} ({why})", {"url": base_url})


# --- When a request may be sent again, and when to give up.
# Pure: neither sleeps nor sends.
#
# Sent again: after a broken or refused connection, and after a 503 that names a wait. Both are safe, because a change
# carries its Idempotency-Key; one without is sent again only if it never left. Anything else is the API's answer.

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 5.0
_NEVER_AGAIN = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(slots=True)
class Patience:
    """For how long one request, or one stream, may go unanswered. The waits are 0.2 0.4 0.8 1.6 3.2 5 5 … seconds."""

    base_url: str
    seconds: float
    _since: float | None = None
    _failures: int = 0

    def answered(self) -> None:
        """It answers: all patience is back."""
        self._since, self._failures = None, 0

    def after_break(self, error: httpx.TransportError, now: float, *, may_repeat: bool = True) -> float:
        """How long to wait after a connection that broke or never was.

        Without `may_repeat` only a request that was never sent is sent again.

        Raises: ApiError `unreachable` where patience is at its end or waiting cannot help.
        """
        failure = unreachable(self.base_url, error)
        if isinstance(error, _NEVER_AGAIN) or not (may_repeat or isinstance(error, _NEVER_SENT)):
            raise failure
        return self._wait(now, failure, 0.0)

    def after_answer(self, response: httpx.Response, now: float) -> float:
        """How long to wait after an answer that is an error; the answer's body has been read.

        Raises: ApiError, the answer itself, unless it is a 503 that names a wait.
        """
        wait = retry_after_seconds(response.headers, datetime.now(UTC)) if response.status_code == 503 else None
        if wait is None:
            raise error_of(response)
        return self._wait(now, error_of(response), wait)

    def after_end(self, now: float) -> float:
        """How long to wait after a stream's connection that ended in order, before its last event."""
        return self._wait(now, unreachable(self.base_url, ConnectionError("the stream ends again and again")), 0.0)

    def _wait(self, now: float, failure: ApiError, at_least: float) -> float:
        self._since = now if self._since is None else self._since
        wait = max(at_least, min(FIRST_WAIT_SECONDS * 2.0 ** min(self._failures, 10), LONGEST_WAIT_SECONDS))
        self._failures += 1
        if now + wait - self._since > self.seconds:
            raise failure
        return wait
