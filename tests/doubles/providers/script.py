"""The steps of the provider double: one `Step` answers one request.

A step is plain data, so that a script can be a file, the body of an admin request or a list in a test. Three
forms: an answer (`text`, `thinking`, `calls`), an error status (`status`), and a fault (`fault`, after `text`).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a vendor rejects a request, before it has the vendor's form."""

    message: str
    code: str = ""
    param: str = ""


class Fault(StrEnum):
    """Ways in which a provider goes wrong while its status is 200, or before it has one. Those about what a stream says
    are in OpenAI's format."""

    RESET = "reset"  # the connection is reset after `text`
    RESET_AT_ONCE = "reset_at_once"  # the connection is reset before the first byte
    CUT = "cut"  # the stream ends after `text`: no finish reason, no [DONE]
    NO_FINISH = "no_finish"  # [DONE] follows `text`, the finish reason is missing
    GARBAGE = "garbage"  # a line that is no JSON follows `text`
    TRUNCATED_JSON = "truncated_json"  # the stream ends in the middle of a JSON object
    DEEP_JSON = "deep_json"  # a chunk nested 100,000 deep follows `text`
    HTML = "html"  # a web page instead of a stream
    EMPTY_BODY = "empty_body"  # status 200 and not one byte
    EMPTY = "empty"  # a well-formed answer that says nothing
    WRONG_TYPES = "wrong_types"  # chunks in which numbers, lists and strings have changed places
    UNKNOWN_FINISH = "unknown_finish"  # the finish reason is an undefined word
    NO_CALLS = "no_calls"  # the finish reason promises tool calls, none came
    NAMELESS_CALL = "nameless_call"  # a tool call without a name
    ERROR_IN_STREAM = "error_in_stream"  # an error object follows `text`
    HANG = "hang"  # nothing follows `text`; the connection stays open
    HANG_AT_ONCE = "hang_at_once"  # the request is read and never answered
    ENDLESS = "endless"  # words without end, never the same twice
    HUGE_ARGUMENTS = "huge_arguments"  # a tool call with 5 MB of arguments


class Call(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: JsonValue = {}  # a string is sent as it is; anything else as JSON
    id: str | None = None  # None: made by the double; empty: left out
    index: int | None = None  # None: its place in the answer


class Step(BaseModel):
    """The double's answer to one request (or `times` requests)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str | None = None  # only for a request whose latest user message has this regular expression in it
    times: int | None = 1  # how many requests it serves; None for any number
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None  # None: `tool_calls` where there are calls, else `stop`
    usage: JsonValue = None  # None: counted by words; `{}` leaves it out
    first_byte_seconds: float = 0.0
    token_seconds: float = 0.0  # wait before each word
    status: int = 200
    code: str | None = None
    message: str = "the double was told to say this"
    body: JsonValue = None  # the whole body of an answer with this status; a string is sent as it is, else as JSON
    media: str = "application/json"  # of `body`, and of a whole answer
    retry_after: str | None = None  # the Retry-After header as it is sent
    fault: Fault | None = None
    deltas: tuple[JsonValue, ...] = ()  # sent as they are, after `text`
    whole: bool = False  # `stream` is ignored: one JSON body answers
    refuses: tuple[str, ...] = ()  # parameters that end in a 400 that names the first of them

    def serves(self, user_text: str) -> bool:
        return self.match is None or re.search(self.match, user_text) is not None


CONTENT_POLICY = Step(
    status=400, code="content_policy_violation", message="Your request was rejected as a result of our safety system."
)
