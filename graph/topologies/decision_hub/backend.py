"""The one way to the model (S3-09): a typed request, a typed response, one call and no second one (S3-13)."""

from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.messages import MessageRef
from contracts.model import ModelAsk
from contracts.turns import Usage
from graph.ports import Ports
from policy.model_answers import AnswerStatus, ErrorType, classified

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
