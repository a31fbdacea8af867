"""The only access to the model: a typed request, a typed response, one call without a retry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue

from perdure.contracts.calls import ModelCallRequest
from perdure.contracts.errors import Problem
from perdure.contracts.memory import Fact, FactsAnswer, FactScope, FactsRequest, FactStatus
from perdure.contracts.messages import MessageRef
from perdure.contracts.turns import Usage
from perdure.core.budgets import DAY_CODES, TURN_CODES
from perdure.graph.ports import Ports

TIMEOUT_CODES = frozenset({"model_timeout", "activity_timeout"})
UNUSABLE_ANSWER_CODES = frozenset(
    {"model_unreadable", "model_empty_answer", "output_limit", "model_paused", "answer_too_large"}
)
"""Problems of an answer: the backend answered, but the answer is unusable."""
UNAVAILABLE_CODES = frozenset(
    {
        *("model_unavailable", "model_cut_off", "model_rate_limited", "model_overloaded", "model_not_found"),
        *("model_auth", "model_billing", "model_budget", "model_bad_request", "model_setup", "bad_script"),
        *("context_overflow", "content_refused", "egress_refused", "activity_failed", "unexpected_error"),
        *("store_unavailable", "store_conflict", "store_refused", "day_budget_reserved"),
    }
)
"""Problems of a request that no backend accepted. An unlisted code counts as one of these."""
SPENT_BUDGET_CODES = TURN_CODES | DAY_CODES
ENGINE_ENDS = frozenset({"stopped", "turn_ended", "stale_attempt"}) | SPENT_BUDGET_CODES
"""Ends without a failure of the backend: a stop, a turn that has ended, a spent budget."""
TIMEOUT_SECONDS = 30.0


# The only access to memory. Without authorization there is no operation. A failure of the memory is only a status.
@dataclass(frozen=True, slots=True)
class MemoryPort:
    """Access to the facts of one scope, for one run of a node."""

    ports: Ports
    scope: FactScope
    authorized: bool
    """True if the turn allows the operation and the deciding node has just commanded it."""

    async def read(self, about: str = "") -> FactsAnswer:
        """Reads the known facts in one operation, without a retry."""
        return await self._call_memory(FactsRequest(scope=self.scope, authorized=self.authorized, about=about))

    async def write(self, facts: tuple[Fact, ...]) -> FactsAnswer:
        """Stores these facts. Without facts, it returns a success without a call."""
        if self.authorized and not facts:
            return FactsAnswer(status=FactStatus.SUCCESS)
        return await self._call_memory(
            FactsRequest(scope=self.scope, authorized=self.authorized, write=True, facts=facts)
        )

    async def _call_memory(self, request: FactsRequest) -> FactsAnswer:
        if not request.authorized:
            return FactsAnswer(status=FactStatus.UNAUTHORIZED)
        return await self.ports.memory.facts(request)


# The result of a model call, as a typed backend reports it, has three statuses and four types of error.
class AnswerStatus(StrEnum):
    """The result of a call: an answer, an error that may not recur for the same request, or a fatal error."""

    SUCCESS = "success"
    RECOVERABLE_ERROR = "recoverable_error"
    FATAL_ERROR = "fatal_error"


class ErrorType(StrEnum):
    """The type of an error; `unknown` is the fallback."""

    TIMEOUT = "timeout"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    INVALID_OUTPUT = "invalid_output"
    UNKNOWN = "unknown"


_NO_BACKEND = (AnswerStatus.FATAL_ERROR, ErrorType.BACKEND_UNAVAILABLE)
_ERROR_BY_CODE: Mapping[str, tuple[AnswerStatus, ErrorType]] = {
    **dict.fromkeys(TIMEOUT_CODES, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.TIMEOUT)),
    **dict.fromkeys(UNUSABLE_ANSWER_CODES, (AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT)),
    **dict.fromkeys(UNAVAILABLE_CODES, _NO_BACKEND),
    **dict.fromkeys(ENGINE_ENDS, (AnswerStatus.FATAL_ERROR, ErrorType.UNKNOWN)),
}


def classify_answer(problem: Problem | None, text: str) -> tuple[AnswerStatus, ErrorType | None]:
    """Returns the status and the type of error. A success without text is an error. A timeout is recoverable; other
    failures of a backend are not, except unusable answers."""
    if problem is None:
        if text.strip():
            return AnswerStatus.SUCCESS, None
        return AnswerStatus.RECOVERABLE_ERROR, ErrorType.INVALID_OUTPUT
    return _ERROR_BY_CODE.get(problem.code, _NO_BACKEND)


def fallback_text(error_type: ErrorType) -> str:
    """Returns the text in place of an answer, marked with the type."""
    return f"[{error_type.value}] There is no answer: {_REASONS[error_type]}."


_REASONS = {
    ErrorType.TIMEOUT: "the model did not finish in time",
    ErrorType.BACKEND_UNAVAILABLE: "the model is unavailable",
    ErrorType.INVALID_OUTPUT: "the model's output is invalid",
    ErrorType.UNKNOWN: "the turn ended before the model answered",
}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A call of a model for one answer to the turn's message, within a time limit."""

    trace_id: str
    prompt: tuple[MessageRef, ...]
    """The message of this turn."""
    context: tuple[MessageRef, ...] = ()
    """Notes with advice."""
    constraints: tuple[tuple[str, JsonValue], ...] = ()
    """Variables of the system prompt: name and role of the requester."""
    task: str = "respond"
    timeout_seconds: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """An answer, or the reason why there is none; `status` states which. It replaces exceptions."""

    status: AnswerStatus
    output: MessageRef | None = None
    error_type: ErrorType | None = None
    usage: Usage = field(default_factory=Usage)
    problem: Problem | None = None
    """The problem in the engine's form."""
    turn_used: Usage | None = None
    """The usage of the whole turn at that time, including attempts that were broken off; None if unknown."""


class ModelBackend(Protocol):
    """A model behind an interface that never raises."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Makes one call and returns its response."""
        ...


@dataclass(frozen=True, slots=True)
class PortBackend:
    """The model of this turn's agent."""

    ports: Ports

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Makes the call without tools, because this graph ignores tool calls. No message is added to the request."""
        reply = await self.ports.model.complete(
            ModelCallRequest(
                messages=(*request.context, *request.prompt),
                tools=(),
                prompt=dict(request.constraints),
                timeout_seconds=request.timeout_seconds,
                deaf=True,
            )
        )
        status, error_type = classify_answer(reply.problem, reply.message.text if reply.message else "")
        output = reply.message if status is AnswerStatus.SUCCESS else None
        return ModelResponse(status, output, error_type, reply.usage, reply.problem, reply.turn_used)
