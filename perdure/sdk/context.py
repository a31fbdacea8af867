"""The context of a tool call: its user, its idempotency key, its deadline, and access to HTTP, files and secrets."""

import asyncio
import time
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx
from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.ids import file_id
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits
from perdure.egress import AnswerWithheld, Call, DeadlineMissed, EgressRefused, calling
from perdure.sdk.outcomes import (
    READ_METHODS,
    ToolRefused,
    ToolUnavailable,
    answer_or_raise,
    is_unsent,
    raise_failure,
    raise_withheld,
)

_CONNECT_SECONDS = 5.0


class Transaction(Protocol):
    """The open Postgres transaction of a `local` tool. Its writes commit together with the ledger row."""

    async def execute(self, query: str, *args: Any) -> str:
        """Runs a statement and returns its status line."""
        ...

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Returns all rows of a query, with `$1`, `$2` … filled from `args`."""
        ...

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """Returns the first row of a query, or None."""
        ...


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file of the conversation."""

    id: str
    name: str
    media_type: str
    content: bytes = field(repr=False)


class Files(Protocol):
    """The files of the call's conversation."""

    async def read(self, file_id: str) -> GivenFile | None:
        """Returns the file, or None if the conversation has no file with this id."""
        ...

    async def uploads(self, media_types: Sequence[str], limit: int) -> Sequence[str]:
        """Returns the ids of the latest uploads of these types, newest first. Of several with one name, only the
        newest."""
        ...


class FilesForCoroutines:
    """The files of a plain function's call, which cannot await them: every use is an error."""

    def read(self, file_id: str) -> Coroutine[Any, Any, GivenFile | None]:
        """Raises: TypeError."""
        raise _no_loop("context.files")

    def uploads(self, media_types: Sequence[str], limit: int) -> Coroutine[Any, Any, Sequence[str]]:
        """Raises: TypeError."""
        raise _no_loop("context.files")


def require_loop(name: str) -> None:
    """Raises: TypeError with advice if no event loop runs in this thread. A coroutine that nothing awaits would do
    nothing, and the tool would report a success."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise _no_loop(name) from None


def _no_loop(name: str) -> TypeError:
    return TypeError(f"{name} must be awaited: define the tool with `async def`, or use your own HTTP client")


@dataclass(slots=True)
class SentRequest:
    """The requests of a call that `context.send` sent. Those that can change something are listed, also if they run at
    the same time."""

    requests: list["OneRequest"] = field(default_factory=list)
    is_used: bool = False
    """True if the tool called `context.send`, whatever it sent."""
    has_answer: bool = False
    """True if any request of the call was answered, also one that only reads."""
    raised: list[BaseException] = field(default_factory=list)
    """The refusals and unavailabilities that `context.send` raised."""

    def may_have_changed_before(self, error: BaseException) -> bool:
        """Returns whether any request may have changed something. If the author raises an error after his requests, it
        is trusted. A group is not: its first error cancels other requests, which may have been sent."""
        is_trusted = not isinstance(error, BaseExceptionGroup) and all(error is not each for each in self.raised)
        return not is_trusted and any(not request.did_nothing for request in self.requests)

    @property
    def method(self) -> str:
        """The method of the request of `status`; empty if none that can change something was sent."""
        return self._least_known.method if self.requests else ""

    @property
    def status(self) -> int | None:
        """The HTTP status of the last request that can change something; None if one of them has no answer."""
        return self._least_known.status if self.requests else None

    @property
    def _least_known(self) -> "OneRequest":
        return next((each for each in self.requests if each.status is None), self.requests[-1])

    def __str__(self) -> str:
        if not self.requests:
            return ""
        shown, others = self._least_known, len(self.requests) - 1
        answer = "was sent, and no answer was read" if shown.status is None else f"was answered with {shown.status}"
        besides = f", besides {others} other{'s' if others > 1 else ''}" if others else ""
        return f"{shown.method} to {shown.host} {answer}{besides}"


@dataclass(slots=True, eq=False)
class OneRequest:
    """A request that can change something."""

    method: str
    host: str
    status: int | None = None
    """The HTTP status of its answer; None without one."""
    did_nothing: bool = False
    """True if its answer means that the target did nothing, by the table in outcomes.py."""


class UndeclaredSecret(LookupError):
    """A tool requested a secret that its card does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """One tool call as the tool sees it. All values come from the engine, none from the model."""

    card: ToolCard
    tenant_id: str
    turn_id: str
    conversation_id: str
    call_id: str
    user_id: str
    idempotency_key: str
    """Key of this call: the same at every attempt, and different for every other call."""
    deadline: datetime
    """Time after which nothing may be sent, by this machine's clock. Another worker can own the call by then."""
    http: httpx.AsyncClient = field(repr=False)
    state: Mapping[str, JsonValue] = field(default_factory=dict)
    """The state fields that the card names, and no others."""
    transaction: Transaction | None = field(default=None, repr=False)
    """Only for `local` tools."""
    files: Files | None = field(default=None, repr=False)
    """Files of the conversation; None if a tool runs outside a turn."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of the secrets that the card names; use `secret` to read them. A worker reads the secret `x_y` from
    PERDURE_SECRET_X_Y."""

    reads_only: bool = False
    """True for a preview: nothing is sent that can change anything."""
    sent: SentRequest = field(default_factory=SentRequest, repr=False)
    """The request that was sent last, for the engine."""
    memory: MemoryLimits = DEFAULT_LIMITS
    """Limits for the engine's own memory tools."""

    def file_id(self, name: str) -> str:
        """Returns the id of the file `name` that this call makes. It is the same at every attempt."""
        return file_id(self.turn_id, self.call_id, name)

    def secret(self, name: str) -> str:
        """Returns the value of the secret `name`.

        Raises: UndeclaredSecret if the card does not name it. If a named secret is not set, the call is refused before
        the tool runs.
        """
        if name not in self.card.secrets:
            raise UndeclaredSecret(
                f"the tool {self.card.name} requested the secret {name!r}; add it to secrets=(...) in the decorator"
            )
        return self.secrets[name]

    def send(
        self,
        method: str,
        url: str,
        *,
        json: JsonValue | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        refusals: Collection[int] = (),
    ) -> Coroutine[Any, Any, httpx.Response]:
        """Sends one HTTP request and reads its response before the deadline. Returns a 2xx response.

        A `keyed` tool's request carries `Idempotency-Key`. Redirects are not followed, and nothing is retried here. The
        host must be public, or allowed by the operator or the app (docs/egress.md). A response with more bytes than the
        tool's `max_answer_bytes` is not read. `refusals` are statuses that mean a definite failure at this target,
        whatever the table in outcomes.py says.

        Raises: ToolRefused; ToolUnavailable; AnswerWithheld if the target did it and its response was not read;
        TimeoutError and httpx's own exceptions if the effect may have happened (table in outcomes.py). TypeError if
        a plain function calls it, which cannot await it.
        """
        require_loop("context.send")
        return self._send(method, url, json, params, headers, refusals)

    async def _send(
        self,
        method: str,
        url: str,
        json: JsonValue | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        refusals: Collection[int],
    ) -> httpx.Response:
        self.sent.is_used = True
        if self.reads_only and method.upper() not in READ_METHODS:
            raise ToolRefused(f"a preview can only read; {method.upper()} may change data")
        seconds_left = (self.deadline - datetime.now(UTC)).total_seconds()
        if seconds_left <= 0:
            raise ToolUnavailable("the call's deadline passed before anything was sent")
        effect = EffectClass.READ if self.reads_only else self.card.effect
        request_headers = httpx.Headers(headers)
        if effect is EffectClass.KEYED:
            request_headers["Idempotency-Key"] = self.idempotency_key
        connect_seconds = min(seconds_left, _CONNECT_SECONDS)
        request = self.http.request(
            method,
            url,
            json=json,
            params=params,
            headers=request_headers,
            follow_redirects=False,
            timeout=httpx.Timeout(seconds_left, connect=connect_seconds, pool=connect_seconds),
        )
        own = OneRequest(method.upper(), _host(url))
        try:
            response = await self._exchange(request, effect, own, seconds_left)
            return answer_or_raise(effect, response, refusals, self.secrets.values())
        except (ToolRefused, ToolUnavailable) as error:
            self.sent.raised.append(error)
            own.did_nothing = True
            raise

    async def _exchange(
        self, request: Awaitable[httpx.Response], effect: EffectClass, own: OneRequest, seconds: float
    ) -> httpx.Response:
        """Runs the whole exchange under the limits of this call.

        Raises: the exceptions of `send`, except those for a status.
        """
        if own.method not in READ_METHODS:
            self.sent.requests.append(own)
        try:
            with calling(Call(answer_bytes=self.card.max_answer_bytes, deadline=time.monotonic() + seconds)):
                response = await request
            self.sent.has_answer = True
            own.status = response.status_code
            return response
        except AnswerWithheld as error:
            raise_withheld(effect, error)
            raise
        except (httpx.HTTPError, httpx.InvalidURL, EgressRefused, DeadlineMissed) as error:
            if is_unsent(error) and own in self.sent.requests:
                self.sent.requests.remove(own)
            raise_failure(effect, own.host, error)
            raise


def _host(url: str) -> str:
    try:
        return httpx.URL(url).host or "the target"
    except httpx.InvalidURL:
        return "the target"
