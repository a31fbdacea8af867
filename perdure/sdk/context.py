"""What a tool is given: whose call it is, the key to send, the clock it runs against, and its ways out."""

import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx
from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.ids import file_id
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits
from perdure.egress import AnswerWithheld, Call, EgressRefused, OutOfTime, calling
from perdure.sdk.outcomes import READS, ToolRefused, ToolUnavailable, answer_or_raise, raise_failure, raise_withheld

_CONNECT_SECONDS = 5.0


class Transaction(Protocol):
    """The open Postgres transaction of a `local` tool: what it writes commits together with the ledger row."""

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement; its status line."""
        ...

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """All rows of a query."""
        ...

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """The first row of a query, or None."""
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
        """The file, or None where the conversation has none of this id."""
        ...

    async def uploads(self, media_types: Sequence[str], most: int) -> Sequence[str]:
        """The ids of the last uploads of these types, newest first; of several with one name the newest."""
        ...


class UndeclaredSecret(LookupError):
    """A tool asked for a credential that its card does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """One tool call, seen by the tool. Everything here is the engine's word, none of it the model's."""

    card: ToolCard
    tenant_id: str
    turn_id: str
    conversation_id: str
    call_id: str
    user_id: str
    idempotency_key: str
    """The same at every attempt of this call, and of no other call."""
    deadline: datetime
    """Nothing may be sent after this moment, by this machine's clock: somebody else may own the call by then."""
    http: httpx.AsyncClient = field(repr=False)
    state: Mapping[str, JsonValue] = field(default_factory=dict)
    """The state fields that the card wants (S0-48), and no other."""
    transaction: Transaction | None = field(default=None, repr=False)
    """For `local` tools only."""
    files: Files | None = field(default=None, repr=False)
    """None where a tool is run by itself."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of the credentials that the card names; read them by `secret`. A worker takes the credential `x_y` from
    PERDURE_SECRET_X_Y."""

    reads_only: bool = False
    """For a preview: nothing is sent that may change anything."""
    memory: MemoryLimits = DEFAULT_LIMITS
    """For the engine's own memory tools."""

    def file_id(self, name: str) -> str:
        """The id of the file `name` that this call makes; the same at every attempt."""
        return file_id(self.turn_id, self.call_id, name)

    def secret(self, name: str) -> str:
        """The value of the credential `name`.

        Raises: UndeclaredSecret where the card does not name it. (A named one that is not set refuses the call before
        the tool runs.)
        """
        if name not in self.card.secrets:
            raise UndeclaredSecret(
                f"tool {self.card.name} asks for {name!r}: name it in secrets=(...) of its decorator"
            )
        return self.secrets[name]

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: JsonValue | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        refusals: Collection[int] = (),
    ) -> httpx.Response:
        """Sends one HTTP request and reads its answer by the deadline; returns a 2xx answer.

        A `keyed` tool's request carries `Idempotency-Key`. Redirects are not followed and nothing is retried here. The
        host must be public, or named by the operator or the app (docs/egress.md). An answer of more than
        `max_answer_bytes` of the tool is not read. `refusals` are statuses by which this target says a definite no,
        whatever the table in outcomes.py makes of them.

        Raises: ToolRefused, ToolUnavailable; AnswerWithheld if the target did it and its answer was not read;
        TimeoutError and httpx's own exceptions if it may have happened (table in outcomes.py).
        """
        if self.reads_only and method.upper() not in READS:
            raise ToolRefused(f"a preview only reads, and {method.upper()} may change something")
        left = (self.deadline - datetime.now(UTC)).total_seconds()
        if left <= 0:
            raise ToolUnavailable("the time for this call had passed before anything was sent")
        effect = EffectClass.READ if self.reads_only else self.card.effect
        sent = httpx.Headers(headers)
        if effect is EffectClass.KEYED:
            sent["Idempotency-Key"] = self.idempotency_key
        soon = min(left, _CONNECT_SECONDS)
        asked = self.http.request(
            method,
            url,
            json=json,
            params=params,
            headers=sent,
            follow_redirects=False,
            timeout=httpx.Timeout(left, connect=soon, pool=soon),
        )
        return answer_or_raise(effect, await self._exchanged(asked, effect, _host(url), left), refusals)

    async def _exchanged(
        self, asked: Awaitable[httpx.Response], effect: EffectClass, host: str, seconds: float
    ) -> httpx.Response:
        """The whole exchange, under the limits of this call.

        Raises: what `send` raises, but for what a status means.
        """
        try:
            with calling(Call(answer_bytes=self.card.max_answer_bytes, deadline=time.monotonic() + seconds)):
                return await asked
        except AnswerWithheld as error:
            raise_withheld(effect, error)
            raise
        except (httpx.HTTPError, httpx.InvalidURL, EgressRefused, OutOfTime) as error:
            raise_failure(effect, host, error)
            raise


def _host(url: str) -> str:
    try:
        return httpx.URL(url).host or "the target"
    except httpx.InvalidURL:
        return "the target"
