"""Reports a tool that raised: the author's frames for the worker's log, a line for people, and what is known of an
effect with an unknown outcome."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import structlog
from pydantic import JsonValue

from perdure.activities.dependencies import Deps
from perdure.activities.providers.masking import mask_secrets
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import KnownEnd
from perdure.core.calls.failures import (
    MAX_MESSAGE_CHARACTERS,
    class_name,
    errors_in,
    failure_text,
    frames_of,
    known,
    unwrapped,
)
from perdure.core.calls.secrets import passwords_in, without_secrets
from perdure.core.text import clean, flat
from perdure.egress import AnswerWithheld
from perdure.sdk.context import SentRequest
from perdure.sdk.outcomes import READ_METHODS
from perdure.sdk.tools import Tool

MAX_OWN_CHARACTERS = 48 * 1024
"""Maximum length of an error's text for the model. It is below the limit of a tool message
(perdure/activities/tool_answers.py), so that the cut is marked where it happens."""
_SPECIFIC_ENDS = (KnownEnd.ANSWERED_ERROR, KnownEnd.ANSWER_NOT_READ, KnownEnd.NO_ANSWER)
"""The ends that the errors of a group can have, the most specific one first. Others follow from its requests."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Reports what the tool of one call raised."""

    tool: str
    turn_id: str
    call_id: str
    folder: Path | None
    """The folder of the tool's app; None if the tool is not a function of an app."""
    secrets: Collection[str] = field(repr=False)
    shows_messages: bool
    """False if the operator hides the messages of exceptions, which can contain data."""
    can_send: bool
    """True for a coroutine that receives a context, and so can use `context.send`."""

    @classmethod
    def of(cls, deps: Deps, tool: object, card: ToolCard, turn_id: str, call_id: str) -> "FailureReport":
        """Returns the report for a call of a tool of any kind."""
        folder, can_send = (tool.folder, tool.can_send) if isinstance(tool, Tool) else (None, False)
        secrets = tool.session.secrets() if isinstance(tool, McpTool) else deps.toolbox.secrets_for(card).values()
        secrets = (*secrets, *passwords_in(secrets), *deps.secrets)
        return cls(card.name, turn_id, call_id, folder, secrets, deps.shows_failure_messages, can_send)

    def log(self, event: str, error: BaseException) -> str:
        """Writes the author's frames to the log, and returns the line for people."""
        frames = frames_of(error, self.folder)
        text = failure_text(error, self._words(error), frames)
        _log.warning(
            event,
            tool=self.tool,
            turn_id=self.turn_id,
            call_id=self.call_id,
            error=class_name(error),
            failure=text,
            frames=[str(frame) for frame in frames],
        )
        return text

    def own_message(self, error: Exception) -> str:
        """Returns the text of an error for the model, without the tool's secrets, which the target may echo."""
        try:
            message = str(getattr(error, "message", error))
            shown = without_secrets(message, self.secrets, MAX_OWN_CHARACTERS)
            return shown if len(message) <= MAX_OWN_CHARACTERS else f"{shown}… [cut: {len(message)} characters]"
        except BaseException:  # an author's class can raise anything, also SystemExit
            return class_name(error)

    def without_message(self, error: BaseException) -> str:
        """Returns the line for people who can see less than the call's turn: class and place only."""
        return failure_text(error, "", frames_of(error, self.folder))

    def known(self, error: BaseException, sent: SentRequest, *, timed_out: bool = False) -> dict[str, JsonValue]:
        """Returns what the error says about the effect of its call. `timed_out` is true at the call's time limit."""
        if timed_out:
            return known(KnownEnd.TIMED_OUT, str(sent))
        ends = [(self._known_end(each, sent), each) for each in errors_in(error)]
        code, first = next((end for kind in _SPECIFIC_ENDS for end in ends if end[0] is kind), ends[0])
        has_words = code in (KnownEnd.ANSWERED_ERROR, KnownEnd.ANSWER_NOT_READ)
        is_unused = code is KnownEnd.RAISED and self.can_send
        return known(
            code, "it had not called context.send" if is_unused else str(sent), self._words(first) if has_words else ""
        )

    def _known_end(self, error: BaseException, sent: SentRequest) -> KnownEnd:
        """Returns what one error says. An error of httpx can be without its request."""
        try:
            return self._end_of(error, sent)
        except Exception:  # httpx raises one then
            return self._raised_end(sent)

    def _end_of(self, error: BaseException, sent: SentRequest) -> KnownEnd:
        if isinstance(error, ServerLost):
            return error.known
        if isinstance(error, AnswerWithheld) and error.method.upper() not in READ_METHODS:
            return KnownEnd.ANSWER_NOT_READ
        # The answer to a request that only reads does not show whether the effect happened.
        if isinstance(error, httpx.HTTPStatusError) and error.request.method not in READ_METHODS:
            return KnownEnd.ANSWERED_ERROR
        if isinstance(error, httpx.TransportError) and sent.method and sent.status is None:
            return KnownEnd.NO_ANSWER
        return self._raised_end(sent)

    def _raised_end(self, sent: SentRequest) -> KnownEnd:
        if sent.method:
            return KnownEnd.RAISED_AFTER_SEND
        return KnownEnd.RAISED_BEFORE_SEND if sent.is_used else KnownEnd.RAISED

    def _words(self, error: BaseException) -> str:
        """Returns the message of an error on one line, without secrets. Empty if messages are hidden."""
        if not self.shows_messages:
            return ""
        try:
            message = str(unwrapped(error))
        except BaseException:  # an author's `__str__` can raise anything, also SystemExit
            return ""
        return self.words_of(message)

    def words_of(self, message: str) -> str:
        """Returns a message on one line, without secrets. Empty if messages are hidden."""
        if not self.shows_messages:
            return ""
        return flat(mask_secrets(clean(message), self.secrets), MAX_MESSAGE_CHARACTERS)
