"""The one way to the model (S3-09): a typed request, a typed response, one call and no second one (S3-13)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.calls import ModelAsk
from perdure.contracts.errors import Problem
from perdure.contracts.memory import Fact, FactsAnswer, FactsAsk, FactScope, FactStatus
from perdure.contracts.messages import MessageRef
from perdure.contracts.turns import Usage
from perdure.core.budgets import DAY_CODES, TURN_CODES
from perdure.graph.ports import Ports

# --- The one way to memory (S3-21): no leave, no operation; no trouble behind it ever comes out as more than a status.


@dataclass(frozen=True, slots=True)
class MemoryDoor:
    """Facts of one scope, for one visit of a node."""

    ports: Ports
    scope: FactScope
    authorized: bool
    """Whether the turn may, and the deciding node has just said so."""

    async def read(self, about: str = "") -> FactsAnswer:
        """What is known; one operation, never tried again."""
        return await self._through(FactsAsk(scope=self.scope, authorized=self.authorized, about=about))

    async def write(self, facts: tuple[Fact, ...]) -> FactsAnswer:
        """Keep these; nothing to keep is a success without a call."""
        if self.authorized and not facts:
            return FactsAnswer(status=FactStatus.SUCCESS)
        return await self._through(FactsAsk(scope=self.scope, authorized=self.authorized, write=True, facts=facts))

    async def _through(self, ask: FactsAsk) -> FactsAnswer:
        if not ask.authorized:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        return await self.ports.memory.facts(ask)


# --- What a model call came to, in the words of a typed backend: three statuses, four types of error (S3-10 to S3-12).


class AnswerStatus(StrEnum):
    """Whether there is an answer, and whether the same request might get one another time."""

    SUCCESS = "success"
    RECOVERABLE_ERROR = "recoverable_error"
    FATAL_ERROR = "fatal_error"


class ErrorType(StrEnum):
    """What was wrong; `unknown` is the last resort."""

    TIMEOUT = "timeout"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    INVALID_OUTPUT = "invalid_output"
    UNKNOWN = "unknown"


TIMEOUTS = frozenset({"model_timeout", "activity_timeout"})
UNUSABLE = frozenset({"model_unreadable", "model_empty_answer", "output_limit", "answer_too_large"})
"""The backend was there, and what it said is no answer."""
UNAVAILABLE = frozenset(
    {
        *("model_unavailable", "model_cut_off", "model_rate_limited", "model_overloaded", "model_not_found"),
        *("model_auth", "model_billing", "model_budget", "model_bad_request", "model_setup", "bad_script"),
        *("context_overflow", "content_refused", "egress_refused", "activity_failed", "unexpected_error"),
        *("store_unavailable", "store_conflict", "store_refused", "day_budget_reserved"),
    }
)
"""No backend was there that took the request. A code that nobody knows counts as one of these (S3-11)."""
SPENT = TURN_CODES | DAY_CODES
OURS = frozenset({"stopped", "turn_ended", "stale_attempt"}) | SPENT
"""Ends that no backend brought about: a stop, a turn that is over, a budget that is spent."""


_NO_BACKEND = (AnswerStatus.FATAL_ERROR, ErrorType.BACKEND_UNAVAILABLE)
_MEANS: Mapping[str, tuple[AnswerStatus, ErrorType]] = {
    **dict.fromkeys(TIMEOUTS, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.TIMEOUT)),
    **dict.fromkeys(UNUSABLE, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT)),
    **dict.fromkeys(UNAVAILABLE, _NO_BACKEND),
    **dict.fromkeys(OURS, (AnswerStatus.FATAL_ERROR, ErrorType.UNKNOWN)),
}


def classified(problem: Problem | None, text: str) -> tuple[AnswerStatus, ErrorType | None]:
    """Status and type of error. A success without a word is none (S3-12); a time-out may pass, whatever else a backend
    does wrong will not."""
    if problem is None:
        if text.strip():
            return AnswerStatus.SUCCESS, None
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT
    return _MEANS.get(problem.code, _NO_BACKEND)


def fallback_text(error_type: ErrorType) -> str:
    """What is said in place of an answer, marked with the type (S3-17)."""
    return f"[{error_type.value}] There is no answer: {_WHY[error_type]}."


_WHY = {
    ErrorType.TIMEOUT: "the model did not finish in time",
    ErrorType.BACKEND_UNAVAILABLE: "the model could not be used",
    ErrorType.INVALID_OUTPUT: "the model said nothing that could be used",
    ErrorType.UNKNOWN: "the turn ended before it had one",
}

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What is asked of a model (S3-10)."""

    trace_id: str
    prompt: tuple[MessageRef, ...]
    """This turn's message."""
    context: tuple[MessageRef, ...] = ()
    """Notes that advise."""
    constraints: tuple[tuple[str, JsonValue], ...] = ()
    """What the system prompt is made with: name and role of whoever asks."""
    task: str = "respond"
    timeout_seconds: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """What came of it."""

    status: AnswerStatus
    output: MessageRef | None = None
    error_type: ErrorType | None = None
    usage: Usage = field(default_factory=Usage)
    problem: Problem | None = None
    """What went wrong in the engine's own words."""
    turn_used: Usage | None = None
    """Of the whole turn by then, what broke off too; None where nobody knows."""


class ModelBackend(Protocol):
    """A model behind a boundary; it never raises."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """One call, whatever comes of it."""
        ...


@dataclass(frozen=True, slots=True)
class PortBackend:
    """The model of this turn's agent."""

    ports: Ports

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """No tool is offered: what a model asks for beside its text is nothing to this graph. And nothing joins the
        request: it is what it says it is."""
        reply = await self.ports.model.complete(
            ModelAsk(
                messages=(*request.context, *request.prompt),
                tools=(),
                prompt=dict(request.constraints),
                timeout_seconds=request.timeout_seconds,
                deaf=True,
            )
        )
        status, error_type = classified(reply.problem, reply.message.text if reply.message else "")
        output = reply.message if status is AnswerStatus.SUCCESS else None
        return ModelResponse(status, output, error_type, reply.usage, reply.problem, reply.turn_used)
