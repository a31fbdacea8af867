"""The meaning of an HTTP response, or of a missing one, for the effect of a call.

The question is always whether the effect may have happened. The meaning depends on the tool's effect class:

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

- unavailable: ToolUnavailable, with the wait of Retry-After.
- refused: ToolRefused.
- withheld: AnswerWithheld. The call is recorded as done, with a note in place of its result.
- ambiguous: httpx's own exception, AnswerWithheld for a request that only reads, or TimeoutError at the deadline.

Reasons for the differences between the effect classes:

- A body is not read if it exceeds the tool's maximum size, or if its encoding is not supported. Its status has arrived,
  so a write has happened. A retry would write again, or return the same response. A GET of a tool that writes shows
  nothing about the tool's earlier requests.
- A read changes nothing, so it can be retried. At its deadline its time is used up, so it is not retried. The effect of
  a `local` tool is in Perdure's own Postgres; its HTTP requests must be reads.
- After a write, 3xx means "done, look there" as often as "not here".
- Targets answer 409 to an idempotency key while the first request with that key still runs. If a target uses 409 for
  plain conflicts, pass `refusals={409}`.
- With 429, and with 503 that names a wait, the target itself states that it did nothing. An `opaque` call is still sent
  only once, so there it is refused. A bare 503 can come from a proxy that lost the target after passing the call on.
- "unavailable" and "refused" are about this attempt only. An earlier attempt of the same keyed call may have succeeded.
  The ledger records whether there was one.
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
from perdure.core.calls.secrets import without_secrets
from perdure.core.text import clean
from perdure.egress import AnswerWithheld, DeadlineMissed, EgressRefused

_MAX_WAIT_SECONDS = 3600.0
_REASON_CHARACTERS = 300
_READ_REASON_CHARACTERS = 20_000
"""The part of a target's message that is searched for secrets. The shown part is from its start."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_TIMEOUTS = (httpx.ReadTimeout, httpx.WriteTimeout, DeadlineMissed)
_INVALID_TARGETS = (httpx.InvalidURL, httpx.UnsupportedProtocol, EgressRefused)
READ_METHODS = ("GET", "HEAD")
WITHHELD_ADVICE = "request less data, or ask the tool's author to raise max_answer_bytes"
_MAX_BITS = 14_000
"""Python writes no integer of more than 4,300 digits (14,284 bits)."""


class Meaning(StrEnum):
    """The meaning of a response for the effect."""

    ANSWER = "answer"
    REFUSED = "refused"
    WITHHELD = "withheld"
    UNAVAILABLE = "unavailable"
    AMBIGUOUS = "ambiguous"


def meaning_of_status(effect: EffectClass, status: int, *, names_wait: bool) -> Meaning:
    """Applies the table above to a response. `names_wait` is true if it has a Retry-After header."""
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
    """Applies the table above to a success whose body is not read."""
    if effect in (EffectClass.READ, EffectClass.LOCAL):
        return Meaning.REFUSED
    return Meaning.AMBIGUOUS if method.upper() in READ_METHODS else Meaning.WITHHELD


def meaning_of_failure(effect: EffectClass, error: Exception) -> Meaning:
    """Applies the table above to an exception of httpx or of the egress rules."""
    if is_unsent(error):
        return Meaning.REFUSED if isinstance(error, _INVALID_TARGETS) else Meaning.UNAVAILABLE
    changes_nothing = effect in (EffectClass.READ, EffectClass.LOCAL)
    return Meaning.UNAVAILABLE if changes_nothing and not isinstance(error, _TIMEOUTS) else Meaning.AMBIGUOUS


def is_unsent(error: Exception) -> bool:
    """Returns whether an exception of httpx or of the egress rules means that nothing was sent."""
    return isinstance(error, _NEVER_SENT + _INVALID_TARGETS) or (isinstance(error, DeadlineMissed) and not error.sent)


class CallTimeout(TimeoutError):
    """`context.send` had no answer at the deadline of its call."""


def answer_or_raise(
    effect: EffectClass, response: httpx.Response, refusals: Collection[int], secrets: Collection[str] = ()
) -> httpx.Response:
    """Returns `response` if it is a success. Otherwise the error has the target's message without these secrets.

    Raises: ToolRefused, ToolUnavailable or httpx.HTTPStatusError, by the table above.
    """
    wait = _wait_seconds(response)
    meaning = meaning_of_status(effect, response.status_code, names_wait=wait is not None)
    if response.status_code in refusals:
        meaning = Meaning.REFUSED
    if meaning is Meaning.ANSWER:
        return response
    message = f"{response.url.host} answered {response.status_code}{_reason_text(response, secrets)}"
    if meaning is Meaning.REFUSED:
        raise ToolRefused(message)
    if meaning is Meaning.UNAVAILABLE:
        raise ToolUnavailable(message, wait, response.status_code)
    raise httpx.HTTPStatusError(message, request=response.request, response=response)


def raise_withheld(effect: EffectClass, error: AnswerWithheld) -> None:
    """Raises: ToolRefused if that is the meaning of a success whose body was not read. Otherwise the caller raises
    `error`."""
    if meaning_of_withheld(effect, error.method) is Meaning.REFUSED:
        raise ToolRefused(f"{error.code}: {error}; {WITHHELD_ADVICE}") from error


def raise_failure(effect: EffectClass, host: str, error: Exception) -> None:
    """Raises the meaning of a failed request. Returns if the caller must raise `error` itself.

    Raises: ToolRefused, ToolUnavailable, or CallTimeout at the deadline.
    """
    meaning = meaning_of_failure(effect, error)
    if meaning is Meaning.REFUSED:
        raise ToolRefused(f"the tool's URL cannot be used: {error}") from error
    if meaning is Meaning.UNAVAILABLE:
        raise ToolUnavailable(f"{host} is unreachable ({type(error).__name__})") from error
    if isinstance(error, _TIMEOUTS):
        raise CallTimeout(f"{host} did not respond in time") from error


def _wait_seconds(response: httpx.Response) -> float | None:
    """Returns the wait of Retry-After, at most an hour; None if there is none."""
    wait = retry_after_seconds(response.headers, datetime.now(UTC))
    return None if wait is None else min(wait, _MAX_WAIT_SECONDS)


def _reason_text(response: httpx.Response, secrets: Collection[str]) -> str:
    """Returns the target's message, from the usual places of a JSON error, else its text. Secrets are hidden before the
    text is cut and its white space joined, which could leave a part of one."""
    try:
        body = response.json()
    except ValueError:
        body = None
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and isinstance(body.get(name), str | dict):
            body = body[name]
    text = body if isinstance(body, str) else response.text
    text = " ".join(without_secrets(text, secrets, _READ_REASON_CHARACTERS).split())
    return f": {text[:_REASON_CHARACTERS]}" if text else ""


# The exception that a tool raises decides whether its effect is retried, refused or settled by a person. ToolRefused
# and ToolUnavailable are therefore guarantees, not labels. After any other exception the effect may have happened, and
# the effect class decides.
class ToolRefused(Exception):
    """A definite failure without an effect. The model receives `message`, and the call is recorded as failed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ToolUnavailable(Exception):
    """This attempt did nothing and can be retried.

    `retry_after_seconds` is the wait that the target named, and `status` the HTTP status if it responded.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit entry that is written when the call is recorded, under `tool.<name>` and the user's name."""

    subject: str
    """An id, never a name, because the entry remains after the erasure of a user."""
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that a call made. It is stored with the call's record, under `ToolContext.file_id(name)`."""

    name: str
    """The file's name, unique within the call."""
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. A tool that uses state returns one itself; other tools return a plain JSON value.

    It only describes changes. The engine makes them in the transaction that records the call.
    """

    output: JsonValue
    """The value that the model receives."""
    state: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the turn's state fields."""
    working: Mapping[str, JsonValue] = field(default_factory=dict)
    """Updates of the conversation's working memory; None removes a field."""
    audited: Audited | None = None
    """An entry in addition to the call's own record, if the tool makes one."""
    files: tuple[MadeFile, ...] = ()


def result_of(returned: object) -> ToolResult:
    """Converts the return value of a tool function to a result that can be stored. A value without a JSON form is
    stored as its text if its class defines one, such as an exception's.

    Raises: TypeError for any other value, such as a coroutine or a response. Only the value shows how the call ended,
    so without it the call must not count as done.
    """
    if not isinstance(returned, ToolResult):
        return ToolResult(_json_of(returned))
    audited = returned.audited
    return ToolResult(
        _json_of(returned.output),
        _fields_of(returned.state),
        _fields_of(returned.working),
        None if audited is None else Audited(clean(str(audited.subject)), _fields_of(audited.data)),
        tuple(returned.files),
    )


def _fields_of(value: object) -> dict[str, JsonValue]:
    stored = _json_of(value)
    return stored if isinstance(stored, dict) else {}


def _json_of(value: object) -> JsonValue:
    try:
        return _storable(value)
    except Exception as error:  # a value that contains itself, or a `__str__` that raises
        reason = f"{error}" if isinstance(error, _NoText) else type(error).__name__
        raise TypeError(f"the tool returned a value that cannot be written as JSON ({reason})") from error


class _NoText(Exception):
    """The class of a value, which defines no text."""


def _text_of(value: object) -> str:
    if type(value).__str__ is object.__str__:
        raise _NoText(type(value).__qualname__)
    return str(value)


def _storable(value: object) -> JsonValue:
    """Returns `value` as JSON without what jsonb cannot store: NUL, lone surrogates, NaN, infinities, huge integers."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else None
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key)): _storable(item) for key, item in value.items()}
    return _storable(to_jsonable_python(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_text_of))
