"""Reads a provider's refusal of a request: its status, code and parameter, and its sentence without content.

LiteLLM's own exceptions are not read for this: it invents statuses, and classifies by words that can be a tool's name
or a user's text. The provider's answer is in the chain of exceptions behind them, or in the stream.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from perdure.activities.providers.masking import CODE, NAME, NO_TEXTS, RequestTexts, mask

_GOOGLE_STREAM = re.compile(r"(?P<status>[A-Z][A-Z_]{3,}) - (?P<message>.+)", re.DOTALL)
"""LiteLLM's text for an error in Google's stream, whose object it drops."""
_MAX_TEXT = 2_000
"""Number of characters of a body that is plain text."""
_MAX_CHAIN = 16
"""Number of chained exceptions that are searched."""


class StreamError(Exception):
    """An error object that arrived in a stream whose status was 200."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("the provider sent an error in its stream")
        self.body = body


@dataclass(frozen=True, slots=True)
class Refusal:
    """A provider's answer to a request that it refuses."""

    status: int | None = None
    """The HTTP status; None for an error in a stream that does not name one."""
    codes: tuple[str, ...] = ()
    """The provider's codes, the most specific first."""
    param: str = ""
    message: str = ""
    """The provider's sentence as it was sent; it may quote the request."""

    def shown(self, request: RequestTexts = NO_TEXTS) -> dict[str, JsonValue]:
        """Returns the parts that are set and contain neither content of the request nor secrets. Of the request, only
        its names stay."""
        code = next((code for code in self.codes if CODE.fullmatch(code) and not _is_status(code)), "")
        parts: dict[str, JsonValue] = {
            "status": self.status,
            "vendor_code": code if code not in request.secrets else "",
            "param": self.param,
            "sentence": mask(self.message, request),
        }
        return {name: value for name, value in parts.items() if value}


def read_refusal(error: BaseException) -> Refusal | None:
    """Returns the provider's answer behind an exception of LiteLLM, or None if there was none."""
    status: int | None = None
    body: object = None
    for each in causes(error):
        if type(each).__module__.startswith("litellm.exceptions"):
            continue
        names = {f"{base.__module__}.{base.__qualname__}" for base in type(each).__mro__}
        if "httpx.HTTPStatusError" in names or "openai.APIStatusError" in names:
            status = status or getattr(getattr(each, "response", None), "status_code", None)
        body = body or _body_of(each, is_response="httpx.HTTPStatusError" in names)
    return refusal_of(body, status) if body or status else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, and those behind it, the nearest first."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_CHAIN:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [getattr(each, "original_exception", None), each.__cause__, each.__context__]


def _body_of(error: BaseException, *, is_response: bool) -> object:
    body = getattr(error, "body", None)
    google = _GOOGLE_STREAM.fullmatch(str(error)) if type(error).__module__.startswith("litellm.llms.") else None
    if google is not None:
        return google.groupdict()
    if body or not is_response:
        return body if isinstance(body, Mapping | str) else None
    try:
        content: bytes = getattr(error, "response").content  # noqa: B009
    except Exception:  # a body that was not read
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content[:_MAX_TEXT].decode("utf-8", "replace")


def refusal_of(body: object, status: int | None = None) -> Refusal:
    """Returns the parts of an error body, in the formats of OpenAI, Anthropic, Google, Mistral, Ollama and FastAPI."""
    if isinstance(body, Sequence) and not isinstance(body, str):
        body = body[0] if body else None
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) and not inner.lstrip().startswith("<") else ""
        return Refusal(status, message=text[:_MAX_TEXT])
    details = _mappings(inner.get("details"))
    mistakes = _mappings(_mistake_list(inner))
    message = inner.get("message") or inner.get("detail")
    if mistakes:
        message = "; ".join(str(each.get("msg", "")) for each in mistakes)
    inner_error = inner.get("innererror")
    named = [inner_error.get("code")] if isinstance(inner_error, Mapping) else []
    named += [each.get("reason") for each in details]
    named += [inner.get("code"), inner.get("status"), inner.get("type")]
    codes = tuple(str(code) for code in named if isinstance(code, str | int) and code)
    text = message if isinstance(message, str) else ""
    return Refusal(status or _status_in(codes), codes, _param(inner, details, mistakes, text), text)


def _mistake_list(inner: Mapping[str, Any]) -> object:
    message = inner.get("message")
    return message.get("detail") if isinstance(message, Mapping) else inner.get("detail")


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _status_in(codes: Sequence[str]) -> int | None:
    """Returns the status that an error in a stream names as its code."""
    return next((int(code) for code in codes if _is_status(code)), None)


def _is_status(code: str) -> bool:
    return len(code) == 3 and code.isdecimal() and code[0] in "45"


def _param(
    inner: Mapping[str, Any],
    details: Sequence[Mapping[str, Any]],
    mistakes: Sequence[Mapping[str, Any]],
    text: str,
) -> str:
    """Returns the parameter that the provider names; empty if it names none, or something that is not a name."""
    fields = [each.get("field") for detail in details for each in _mappings(detail.get("fieldViolations"))]
    places = [each.get("loc") for each in mistakes]
    found = ".".join(str(part) for part in places[0] if part != "body") if places and places[0] else ""
    start = text.split(": ", 1)[0] if ": " in text else ""  # Anthropic's way to name it
    is_place = start.islower() and " " not in start
    for named in (inner.get("param"), *fields, found, start if is_place else ""):
        if isinstance(named, str) and NAME.fullmatch(named):
            return named
    return ""
