"""The interface of a model, `stream`, with the values that it takes and returns. Every provider keeps these promises:

- A complete stream ends in exactly one `Complete`, its last chunk. A stream without `Complete` is not an answer,
  however much text it contained.
- Errors are raised as one of Perdure's error families (perdure/contracts/errors.py), never as a vendor's exception.
- An error in the middle of an answer contains the estimated number of received `output_tokens` in its details.
- One call of `stream` sends at most one request; only Temporal retries. The one exception: if a server refuses the
  parameter `stream` or `stream_options` and so does no work, another request is sent without it, at most two.
- Text can be stored: it contains no NUL and no lone surrogates. The halves of a character in two pieces are joined.
- Reasoning in `<think>` tags at the beginning of the content is ThinkingDelta. If only `</think>` arrives,
  TextWasThinking voids the text before it. White space alone is not an answer, except for a request that continues one
  (`continues`) or an answer that its provider paused: the stream is then `Complete` alone.
- Closing the generator (`contextlib.aclosing`) or canceling the task ends the request immediately.
"""

import json
import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue

from perdure.activities.providers.calls import CallReader
from perdure.activities.providers.pieces import ContentReader, Halves, Piece, text_of_parts
from perdure.activities.providers.thinking import SignedThinking, ThinkingReader
from perdure.contracts.agents import ANSWER_SECONDS, Reasoning
from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.contracts.errors import LimitReached, UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import Usage
from perdure.core.budgets import ANSWER_OVER_BUDGET, RequestBound
from perdure.core.calls.endings import FinishReason
from perdure.core.text import CHARACTERS_A_TOKEN, clean, estimated_tokens

ANSWER_LIMIT_CHARACTERS = 2_000_000
"""Limit of text, thinking and arguments of one answer together; about 500,000 tokens, more than any model's output."""
REFUSAL_TEXT = "The model provider refused to answer this under its content policy."
FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "stop_sequence", "end_turn", "eos", "eos_token", "STOP", "COMPLETE"), "stop"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("length", "model_length", "max_tokens", "MAX_TOKENS", "compaction"), "length"),
    "model_context_window_exceeded": "length",
    **dict.fromkeys(
        ("content_filter", "content_filtered", "sensitive", "guardrail_intervened", "ERROR_TOXIC"), "content_filter"
    ),
    **dict.fromkeys(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE"), "content_filter"),
    "refusal": "refusal",
    "pause_turn": "pause_turn",
}
"""The finish reasons of a complete answer. LiteLLM turns unknown ones of some vendors into `stop`."""

FAILED_REASONS = frozenset(
    {
        *("error", "network_error", "ERROR", "abort", "insufficient_system_resource", "FINISH_REASON_UNSPECIFIED"),
        *("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
        *("OTHER", "NO_IMAGE", "IMAGE_OTHER"),
        "MISSING_THOUGHT_SIGNATURE",
    }
)
"""Finish reasons of an answer that the provider could not complete."""
MAX_PLAUSIBLE_TOKENS = 1_000_000_000
"""Numbers above this are not plausible."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One model call."""

    model: str
    """`scripted`, or a LiteLLM name such as `openai/gpt-4o`."""
    messages: tuple[dict[str, JsonValue], ...]
    """Messages in OpenAI's format."""
    tools: tuple[dict[str, JsonValue], ...] = ()
    """OpenAI function schemas: {"type": "function", "function": {...}}."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """Parameters such as temperature, and `api_base` and `api_key`, which the caller has resolved."""
    timeout_seconds: float = ANSWER_SECONDS
    """Limit of the whole call, from the request to the last byte."""
    idempotency_key: str = ""
    """Sent as the `Idempotency-Key` header, for providers that support it."""
    output: OutputAsk | None = None
    """The object that the model must answer with. Its function is then the only tool."""
    reasoning: Reasoning | None = None
    """The reasoning effort; perdure/core/agents/models.py maps it to parameters."""
    max_tokens: int | None = None
    """Approximate limit of text, thinking and tool calls together; a longer answer is interrupted."""
    continues: bool = False
    """True if the answer continues an earlier text. That can be complete already, so that the answer can be empty."""
    idle_seconds: float = 120.0
    """Limit of the time without a byte, if it is less than the limit of the whole call."""

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in the form in which they are sent."""
        functions: list[Any] = [tool["function"] for tool in self.tools]
        return tuple(function["name"] for function in functions)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextWasThinking:
    """All text of the answer so far was reasoning: this text. The answer begins after it."""

    text: str


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A tool call as the model wrote it, not validated."""

    provider_id: str
    """The provider's id, unique within the answer. A missing or repeated id has been replaced."""
    name: str
    raw_arguments: str
    """Expected to be JSON. It can be deeply nested: parsers must handle RecursionError."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The end of a complete stream."""

    tool_calls: tuple[DraftCall, ...]
    usage: Usage
    finish_reason: FinishReason
    model: str
    """The model's name in the provider's answer."""
    thinking: SignedThinking | None = None
    truncated: bool = False
    """True if the answer is cut: its text ends too early, or there is none, and its calls were dropped."""
    has_unread_calls: bool = False
    """True if the answer had more calls than are read."""


Delta = TextDelta | ThinkingDelta | TextWasThinking
Chunk = Delta | Complete


class Provider(Protocol):
    """A model that streams."""

    def upper_bound(self, request: ProviderRequest) -> RequestBound:
        """Returns the most that `request` can use. The call reserves this amount of the daily budgets while it runs.
        Sends no request."""
        ...

    def context_tokens(self, model: str) -> int | None:
        """Returns the maximum input tokens of `model`; None if unknown. Sends no request."""
        ...

    def cost_microusd(self, model: str, usage: Usage) -> int:
        """Returns the price of this usage of `model`, also for an answer that was interrupted; 0 if the price is
        unknown."""
        ...

    def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        """Streams the chunks of one answer.

        Raises: UpstreamUnavailable (model_unavailable, model_timeout, model_rate_limited, model_overloaded,
        model_unreadable, model_cut_off, model_empty_answer), UpstreamRejected (context_overflow, model_auth,
        model_billing, model_bad_request, model_not_found, model_setup, answer_too_large), LimitReached
        (model_budget, answer_over_budget), InvariantBroken (bad_script, unexpected_error).
        """
        ...


def unreadable_answer(reason: str) -> UpstreamUnavailable:
    """Returns the error for an answer that cannot be understood. `reason` never quotes the provider."""
    return UpstreamUnavailable("model_unreadable", f"The model provider's response is invalid: {reason}.")


@dataclass(slots=True)
class Draft:
    """The part of one answer that has been received so far. Chunks go in, deltas come out, and a check at the end shows
    whether the answer is complete. A vendor's chunks are read by attribute, so that no vendor's package is needed.
    Incomplete answers are rejected: a missing or unknown finish reason, announced calls that did not arrive, a call
    without a name, arguments cut at the output limit."""

    max_tokens: int | None = None
    """Limit of the whole answer; None if only `ANSWER_LIMIT_CHARACTERS` applies."""
    continues: bool = False
    """True if the answer continues an earlier text, so that it can be empty."""
    model: str = ""
    text_characters: int = 0
    refused: bool = False
    """True if the vendor marks the text as the model's refusal."""
    reported_usage: object = None
    """The vendor's last usage object."""
    thinking: ThinkingReader = field(default_factory=ThinkingReader)
    _calls: CallReader = field(default_factory=CallReader)
    _characters: int = 0
    _content: ContentReader = field(default_factory=ContentReader)
    _content_halves: Halves = field(default_factory=Halves)
    _thinking_halves: Halves = field(default_factory=Halves)

    def add(self, chunk: Any) -> Iterator[Delta]:
        """Yields the deltas of one chunk in OpenAI's format.

        Raises: UpstreamUnavailable if the chunk has a wrong shape; UpstreamRejected beyond the limit of every answer;
        LimitReached beyond `max_tokens`.
        """
        self.model = self.model or str(getattr(chunk, "model", None) or "")
        self.reported_usage = getattr(chunk, "usage", None) or self.reported_usage
        self.thinking.add(chunk)
        choices = getattr(chunk, "choices", None) or ()
        delta = getattr(choices[0], "delta", None) if choices else None
        if delta is None:
            return
        thinking = self._thinking_halves.add(self._text(delta, "reasoning_content"))
        if thinking:
            self._content.reasons_elsewhere = True
            yield ThinkingDelta(thinking)
        content = self._content_halves.add(self._text(delta, "content"))
        yield from self._deltas(self._content.add(content))
        calls = getattr(delta, "tool_calls", None) or ()
        if not isinstance(calls, (list, tuple)):
            raise unreadable_answer("`tool_calls` is not a list")
        for call in calls:
            self._add_call(call)

    def _deltas(self, pieces: Iterable[Piece]) -> Iterator[Delta]:
        for kind, text in pieces:
            if kind == "reasoning":
                yield ThinkingDelta(text)
            elif kind == "reread":
                self.text_characters = 0
                yield TextWasThinking(text)
            else:
                self.text_characters += len(text)
                yield TextDelta(text)

    def _held_back(self) -> Iterator[Delta]:
        """Yields what waited for a next piece that did not come."""
        if thinking := self._thinking_halves.end():
            yield ThinkingDelta(thinking)
        yield from self._deltas(self._content.add(self._content_halves.end()))
        yield from self._deltas(self._content.end())

    def _text(self, holder: Any, name: str) -> str:
        """Returns and counts the text of one piece, which may begin or end with a lone surrogate."""
        value = text_of_parts(getattr(holder, name, None))
        if value is None:
            return ""
        if not isinstance(value, str):
            raise unreadable_answer(f"{name} is not text")
        self._characters += len(value)
        if self._characters > ANSWER_LIMIT_CHARACTERS:
            raise UpstreamRejected("answer_too_large", "The model's response exceeds the maximum size.")
        if self.max_tokens is not None and self.estimated_tokens() > self.max_tokens:
            message = f"the answer exceeded the turn's remaining budget of about {self.max_tokens} tokens"
            advice = "it was cut off; raise the turn's limits of tokens or of cost"
            raise LimitReached(ANSWER_OVER_BUDGET, f"{message}; {advice}")
        return value

    def _add_call(self, delta: Any) -> None:
        """Adds a piece of a call."""
        function = getattr(delta, "function", None)
        if function is None:
            raise unreadable_answer("a tool call has no function")
        id_, name = clean(self._text(delta, "id")), clean(self._text(function, "name"))
        self._calls.add(getattr(delta, "index", None), id_, name, self._text(function, "arguments"))

    def estimated_tokens(self) -> int:
        """Returns the estimated tokens received: text, thinking and calls."""
        return -(-self._characters // CHARACTERS_A_TOKEN)

    def finish(self, finish_reason: object, usage: Usage) -> Iterator[Chunk]:
        """Yields the last chunks of a complete answer. `finish_reason` is the provider's own value, not LiteLLM's.

        An answer that was cut keeps its text. None of its calls is trusted: the last one has half of its arguments.

        Raises: UpstreamUnavailable if the answer is incomplete.
        """
        yield from self._held_back()
        if not isinstance(finish_reason, str):
            raise UpstreamUnavailable(
                "model_cut_off", "The model provider's stream ended before the answer was complete."
            )
        reason = FINISH_REASONS.get(finish_reason)
        if reason is None:
            failed = finish_reason in FAILED_REASONS
            raise unreadable_answer("the model failed to complete it" if failed else "the finish reason is unknown")
        if self.refused and reason == "stop":
            reason = "refusal"
        if reason in ("content_filter", "refusal"):
            yield from self.refuse(reason, usage)
            return
        self._calls.drop_server_calls()
        calls = self._calls.calls
        if reason == "length" or (reason == "pause_turn" and not calls):
            yield Complete((), usage, reason, self.model, truncated=True)
            return
        if not all(call.name for call in calls) or (reason == "tool_calls" and not calls):
            raise unreadable_answer("tool calls are missing or have no name")
        if not self._has_text and not calls:
            raise UpstreamUnavailable("model_empty_answer", "The model returned an empty answer.")
        # Some servers end calls with "stop".
        reason = "tool_calls" if calls else reason
        drafts = tuple(DraftCall(id_, name, clean(raw)) for id_, name, raw in self._calls.whole())
        thinking, has_unread = self.thinking.result(), self._calls.has_unread
        yield Complete(drafts, usage, reason, self.model, thinking, has_unread_calls=has_unread)

    def refuse(self, reason: FinishReason, usage: Usage) -> Iterator[Chunk]:
        """Yields the last chunks of an answer that the provider or the model refused. A text that exists is cut,
        unless it is the refusal itself."""
        if not self._has_text:
            yield TextDelta(REFUSAL_TEXT)
        yield Complete((), usage, reason, self.model, truncated=self._has_text and not self.refused)

    @property
    def _has_text(self) -> bool:
        """True if the answer has text, including the text that it continues."""
        return self.continues or self.text_characters > 0


def tokens_of_request(request: ProviderRequest) -> int:
    """Returns the estimated tokens of a request from its JSON: messages, tools and the schema of the answer."""
    return estimated_tokens(_json(request))


def max_input_tokens(request: ProviderRequest) -> int:
    """Returns an upper bound of the tokens that any vendor counts for a request: its bytes.

    A token is at least one byte, and the keys of the JSON cover what a vendor adds around a message. Chinese text or
    numbers exceed an estimate of four characters a token threefold, but never this bound.
    """
    return len(_json(request).encode("utf-8", "replace"))


def _json(request: ProviderRequest) -> str:
    output = request.output
    schema = [output.fits] if output is not None and output.form is OutputForm.JSON_SCHEMA else []
    return json.dumps([*request.messages, *request.tools, *schema], ensure_ascii=False)


def max_output_tokens(params: Mapping[str, JsonValue], model_limit: int | None) -> int | None:
    """Returns the agent's limit of an answer, else the model's own limit; None if neither is known."""
    requested = [params.get(name) for name in ("max_completion_tokens", "max_tokens")]
    limit = next((value for value in requested if isinstance(value, int) and not isinstance(value, bool)), model_limit)
    answers = params.get("n")
    return limit if limit is None or not isinstance(answers, int) else limit * max(1, answers)


def microusd(dollars: float) -> int:
    """Returns dollars as whole micro-dollars, rounded up, so that a budget is never reached late. Invalid numbers
    return 0."""
    if not math.isfinite(dollars) or dollars <= 0:
        return 0
    return math.ceil(round(dollars * 1_000_000, 6))


def plausible_usage(reported: Any, input_estimate: int, output_estimate: int) -> Usage:
    """Returns the usage of `reported`, an object in OpenAI's format. Every implausible number is replaced by its
    estimate."""
    input_tokens = _count(getattr(reported, "prompt_tokens", None), input_estimate)
    cached_tokens = _count(getattr(getattr(reported, "prompt_tokens_details", None), "cached_tokens", None), 0)
    output_tokens = _count(getattr(reported, "completion_tokens", None), output_estimate)
    thinking_tokens = _count(getattr(getattr(reported, "completion_tokens_details", None), "reasoning_tokens", None), 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=min(cached_tokens, input_tokens),
        thinking_tokens=min(thinking_tokens, output_tokens),
    )


def cache_written(reported: Any, usage: Usage) -> int:
    """Returns the tokens of the request that the vendor wrote to a cache, which cost more than others (Anthropic: a
    quarter more). The result never exceeds the input tokens that were not read from the cache."""
    return min(
        _count(getattr(reported, "cache_creation_input_tokens", None), 0), usage.input_tokens - usage.cached_tokens
    )


def _count(value: object, estimate: int) -> int:
    """Returns `value` if it is a plausible count. Zero is not plausible if the estimate is above zero."""
    if isinstance(value, bool) or not isinstance(value, int):
        return estimate
    return value if min(estimate, 1) <= value <= MAX_PLAUSIBLE_TOKENS else estimate
