"""A call of the API as a value: made by pure functions, sent by either client, sent again without harm.

Every POST gets its Idempotency-Key when the value is made, so sending the same value twice is one request to the API.
"""

import uuid
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, JsonValue

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
