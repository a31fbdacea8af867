"""What an HTTP answer, or the lack of one, says about the effect.

The question is always the same: may it have happened? By the tool's effect class:

| what came back                                                | read, local | keyed       | opaque      |
|---------------------------------------------------------------|-------------|-------------|-------------|
| 2xx                                                           | the answer  | the answer  | the answer  |
| 2xx to a GET or HEAD, with a body that is not read            | refused     | ambiguous   | ambiguous   |
| 2xx to anything else, with a body that is not read            | refused     | withheld    | withheld    |
| a host that the rules of outgoing requests forbid             | refused     | refused     | refused     |
| no connection: refused, no such host, TLS, time-out, no slot  | unavailable | unavailable | unavailable |
| an address that no client can use                             | refused     | refused     | refused     |
| the call's deadline passed before anything was sent           | unavailable | unavailable | unavailable |
| no answer before the deadline                                 | ambiguous   | ambiguous   | ambiguous   |
| reset or garbage after the request may have gone              | unavailable | ambiguous   | ambiguous   |
| 3xx (redirects are not followed)                              | refused     | ambiguous   | ambiguous   |
| 408                                                           | unavailable | ambiguous   | ambiguous   |
| 409                                                           | refused     | ambiguous   | refused     |
| 429                                                           | unavailable | unavailable | refused     |
| any other 4xx, 501                                            | refused     | refused     | refused     |
| 503 with Retry-After                                          | unavailable | unavailable | refused     |
| any other 5xx, 503 without Retry-After                        | unavailable | ambiguous   | ambiguous   |

unavailable = ToolUnavailable, with the wait that Retry-After names; refused = ToolRefused; withheld = AnswerWithheld:
the call is recorded as done, with a note in place of its result; ambiguous = httpx's own exception, AnswerWithheld of a
request that only reads, or TimeoutError at the deadline. Where the rows differ, this is why:

- A body is not read if it has more bytes than the tool may be answered, or an encoding that is not unpacked here. Its
  status has come, so a write was made: asking again would make it once more, or bring the same answer. A GET of a tool
  that writes says nothing about what that tool has sent before.
- A read changes nothing, so it may be made again; at its deadline it was given its time, and is not. A `local` tool's
  effect is in our Postgres; what it asks over HTTP must be a read.
- 3xx after a write is as often "done, look there" as "not here".
- 409 to a request with an idempotency key is how targets say that the first request with it still runs. A target that
  means a plain conflict by it is told so by `refusals={409}`.
- 429, and 503 that names a wait, are the target's own word that it did nothing. An `opaque` call is dispatched once
  all the same, so there it is a no. A bare 503 may come from a proxy that lost the target after passing the call on.
- "unavailable" and "refused" speak of this attempt alone: an earlier attempt of the same keyed call may have got
  through. The ledger knows whether there was one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite

import httpx
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from perdure.contracts.calls import EffectClass
from perdure.core.calls.retries import retry_after_seconds
from perdure.core.text import clean
from perdure.egress import AnswerWithheld, EgressRefused, OutOfTime

_MOST_WAIT_SECONDS = 3600.0
_REASON_CHARACTERS = 300
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_TIME_IS_UP = (httpx.ReadTimeout, httpx.WriteTimeout, OutOfTime)
_NO_ADDRESS = (httpx.InvalidURL, httpx.UnsupportedProtocol, EgressRefused)
READS = ("GET", "HEAD")
WITHHELD_ADVICE = "ask for less, or let the tool's author raise max_answer_bytes"


class Meaning(StrEnum):
    """What an answer says about the effect."""

    ANSWER = "answer"
    REFUSED = "refused"
    WITHHELD = "withheld"
    UNAVAILABLE = "unavailable"
    AMBIGUOUS = "ambiguous"


def meaning_of_status(effect: EffectClass, status: int, *, names_wait: bool) -> Meaning:
    """The table above, for an answer that came; `names_wait`: it has a Retry-After."""
    if 200 <= status < 300:
        return Meaning.ANSWER
    changes_nothing = effect in (EffectClass.READ, EffectClass.LOCAL)
    if status == 429 or (status == 503 and names_wait):
        return Meaning.REFUSED if effect is EffectClass.OPAQUE else Meaning.UNAVAILABLE
    if status == 409:
        return Meaning.AMBIGUOUS if effect is EffectClass.KEYED else Meaning.REFUSED
    if status == 408 or (status >= 500 and status != 501):
        return Meaning.UNAVAILABLE if changes_nothing else Meaning.AMBIGUOUS
    if 400 <= status < 500 or status == 501:
        return Meaning.REFUSED
    return Meaning.REFUSED if changes_nothing else Meaning.AMBIGUOUS


def meaning_of_withheld(effect: EffectClass, method: str) -> Meaning:
    """The table above, for a success whose body is not read."""
    if effect in (EffectClass.READ, EffectClass.LOCAL):
        return Meaning.REFUSED
    return Meaning.AMBIGUOUS if method.upper() in READS else Meaning.WITHHELD


def meaning_of_failure(effect: EffectClass, error: Exception) -> Meaning:
    """The table above, for an exception of httpx or of the way out."""
    if isinstance(error, _NEVER_SENT) or (isinstance(error, OutOfTime) and not error.sent):
        return Meaning.UNAVAILABLE
    if isinstance(error, _NO_ADDRESS):
        return Meaning.REFUSED
    changes_nothing = effect in (EffectClass.READ, EffectClass.LOCAL)
    return Meaning.UNAVAILABLE if changes_nothing and not isinstance(error, _TIME_IS_UP) else Meaning.AMBIGUOUS


def answer_or_raise(effect: EffectClass, response: httpx.Response, refusals: Collection[int]) -> httpx.Response:
    """`response`, where it is an answer.

    Raises: ToolRefused, ToolUnavailable, httpx.HTTPStatusError, by the table above.
    """
    wait = _wait_seconds(response)
    meaning = meaning_of_status(effect, response.status_code, names_wait=wait is not None)
    if response.status_code in refusals:
        meaning = Meaning.REFUSED
    if meaning is Meaning.ANSWER:
        return response
    said = f"{response.url.host} answered {response.status_code}{_reason(response)}"
    if meaning is Meaning.REFUSED:
        raise ToolRefused(said)
    if meaning is Meaning.UNAVAILABLE:
        raise ToolUnavailable(said, wait, response.status_code)
    raise httpx.HTTPStatusError(said, request=response.request, response=response)


def raise_withheld(effect: EffectClass, error: AnswerWithheld) -> None:
    """Raises what a success means whose body was not read; returns if the caller raises `error` itself.

    Raises: ToolRefused.
    """
    if meaning_of_withheld(effect, error.method) is Meaning.REFUSED:
        raise ToolRefused(f"{error.code}: {error}; {WITHHELD_ADVICE}") from error


def raise_failure(effect: EffectClass, host: str, error: Exception) -> None:
    """Raise what a failed request means; return where the caller lets `error` go on.

    Raises: ToolRefused, ToolUnavailable, TimeoutError at the deadline.
    """
    meaning = meaning_of_failure(effect, error)
    if meaning is Meaning.REFUSED:
        raise ToolRefused(f"the tool's address cannot be used: {error}") from error
    if meaning is Meaning.UNAVAILABLE:
        raise ToolUnavailable(f"{host} could not be reached ({type(error).__name__})") from error
    if isinstance(error, _TIME_IS_UP):
        raise TimeoutError(f"{host} did not answer in time") from error


def _wait_seconds(response: httpx.Response) -> float | None:
    """The wait that the answer names, at most an hour; None where it names none."""
    wait = retry_after_seconds(response.headers, datetime.now(UTC))
    return None if wait is None else min(wait, _MOST_WAIT_SECONDS)


def _reason(response: httpx.Response) -> str:
    """What the target said, from the usual places of a JSON error, else its text."""
    try:
        said = response.json()
    except ValueError:
        said = None
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and isinstance(said.get(name), str | dict):
            said = said[name]
    text = " ".join((said if isinstance(said, str) else response.text).split())
    return f": {text[:_REASON_CHARACTERS]}" if text else ""


# --- How a tool answers: a value, a definite no, or "nothing was sent".
# What a tool raises decides whether its effect is retried, refused or handed to a person, so the two exceptions here
# are promises, not labels. Any other exception means "it may have happened", and the effect class decides (design
# section 4).

_MOST_BITS = 14_000
"""Python writes no integer of more than 4,300 digits (14,284 bits)."""


class ToolRefused(Exception):
    """A definite no, and nothing happened: `message` is shown to the model, and the call is settled as failed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ToolUnavailable(Exception):
    """This attempt did nothing and may be made again, after `retry_after_seconds` where the target named a wait; by
    `status` where the target answered with one."""

    def __init__(self, message: str, retry_after_seconds: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status


@dataclass(frozen=True, slots=True)
class Audited:
    """What is written into the audit when the call is recorded, under `tool.<name>` and the user's name."""

    subject: str
    """What it happened to: an id, never a name, since it outlives the erasure of a person."""
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that a call made: kept with the call's record, under `ToolContext.file_id(name)`."""

    name: str
    """Its own among the files of the call."""
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call came to. A state-aware tool returns one itself (S0-48); any other a bare JSON value.

    It only says what shall be changed: the engine does it, in the transaction that records the call.
    """

    output: JsonValue
    """What the model reads."""
    state: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the turn's state fields."""
    working: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the conversation's working memory; None removes a field."""
    audited: Audited | None = None
    """None where the call's own record is enough."""
    files: tuple[MadeFile, ...] = ()


def result_of(returned: object) -> ToolResult:
    """Whatever a tool function returned, as a result that can be stored. Never raises: the effect has happened."""
    if not isinstance(returned, ToolResult):
        return ToolResult(_json_of(returned))
    noted = returned.audited
    return ToolResult(
        _json_of(returned.output),
        _fields_of(returned.state),
        _fields_of(returned.working),
        None if noted is None else Audited(clean(str(noted.subject)), _fields_of(noted.data)),
        tuple(returned.files),
    )


def _fields_of(value: object) -> dict[str, JsonValue]:
    stored = _json_of(value)
    return stored if isinstance(stored, dict) else {}


def _json_of(value: object) -> JsonValue:
    try:
        return _storable(value)
    except Exception as error:  # a value that holds itself, a __str__ that raises
        return f"the tool answered with something that is not JSON ({type(error).__name__})"


def _storable(value: object) -> JsonValue:
    """`value` as JSON without what jsonb cannot hold: NUL, lone surrogates, NaN, infinities, giant integers."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else None
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key)): _storable(item) for key, item in value.items()}
    return _storable(to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=str))
