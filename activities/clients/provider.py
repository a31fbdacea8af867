"""A model behind one method: `stream`. What every provider promises, and the values that cross.

- A good stream ends in exactly one `Complete`, the last chunk. What has no `Complete` is not an answer, however much
  text came before.
- What goes wrong is raised as one of our error families (contracts/errors.py), never as a vendor's exception.
- An error that comes in the middle of an answer names in its details how many `output_tokens` had come, about.
- One call of `stream` is at most one request: nobody below Temporal retries.
- Text can be stored: no NUL, no lone surrogates.
- Closing the generator (`contextlib.aclosing`) or cancelling the task ends the request at once.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from contracts.agents import Reasoning
from contracts.model import OutputAsk
from contracts.turns import Usage
from policy.day_budget import Bound

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]
"""`length`: the text was cut at the output limit. `content_filter`: the answer is a refusal."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One model call."""

    model: str
    """`scripted`, or a LiteLLM name such as `openai/gpt-4o`."""
    messages: tuple[dict[str, JsonValue], ...]
    """In OpenAI's shape."""
    tools: tuple[dict[str, JsonValue], ...] = ()
    """OpenAI function schemas: {"type": "function", "function": {...}}."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """Temperature and the like, and `api_base` and `api_key`, which the caller has resolved."""
    timeout_seconds: float = 120.0
    """Of the whole call, first byte to last (S2-29)."""
    idempotency_key: str = ""
    """Sent as `Idempotency-Key` to whoever honours it."""
    output: OutputAsk | None = None
    """The object to answer with; the tools are then none but this."""
    reasoning: Reasoning | None = None
    """How long it may think; policy/reasoning.py says what that comes to."""
    most_tokens: int | None = None
    """About so many may be said, thought and asked of tools together; an answer that goes on is broken off."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A tool call as the model wrote it; nothing in it has been checked."""

    provider_id: str
    """The provider's own id, unique within the answer: a missing or repeated one has been made up."""
    name: str
    raw_arguments: str
    """Meant to be JSON. It may be deeply nested: a parser must expect RecursionError."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The end of a good stream."""

    tool_calls: tuple[DraftCall, ...]
    usage: Usage
    finish_reason: FinishReason
    model: str
    """The model as the provider names it."""


Chunk = TextDelta | ThinkingDelta | Complete


class Provider(Protocol):
    """A model that streams."""

    def most(self, request: ProviderRequest) -> Bound:
        """The most that `request` can use: what its call holds of a day's budgets while it runs. Asks nobody."""
        ...

    def cost_microusd(self, model: str, usage: Usage) -> int:
        """What so much of `model` costs, of an answer that broke off too; 0 where nobody knows its price."""
        ...

    def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        """The chunks of one answer.

        Raises: UpstreamUnavailable (model_unavailable, model_timeout, model_rate_limited, model_overloaded,
        model_unreadable, model_cut_off, model_empty_answer), UpstreamRejected (context_overflow, model_auth,
        model_billing, model_bad_request, model_not_found, model_setup, output_limit, answer_too_large),
        LimitReached (model_budget, answer_over_budget), InvariantBroken (bad_script, unexpected_error).
        """
        ...
