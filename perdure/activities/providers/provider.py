"""A model behind one method: `stream`. What every provider promises, and the values that cross.

- A good stream ends in exactly one `Complete`, the last chunk. What has no `Complete` is not an answer, however much
  text came before.
- What goes wrong is raised as one of our error families (perdure/contracts/errors.py), never as a vendor's exception.
- An error that comes in the middle of an answer names in its details how many `output_tokens` had come, about.
- One call of `stream` is at most one request: nobody below Temporal retries.
- Text can be stored: no NUL, no lone surrogates.
- Closing the generator (`contextlib.aclosing`) or cancelling the task ends the request at once.
"""

import json
import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import Reasoning
from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.contracts.errors import LimitReached, UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import Usage
from perdure.core.budgets import ANSWER_OVER_BUDGET, Bound
from perdure.core.text import CHARACTERS_A_TOKEN, clean, estimated_tokens

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
    """How long it may think; perdure/core/agents/models.py says what that comes to."""
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


# --- An answer while it is being streamed: pieces in, deltas out, and at the end a judgement whether it is one.
# Reads a vendor's chunks by attribute, so that it needs no vendor. Nothing half is let through: a missing or unknown
# finish reason, promised calls that did not come, a call without a name, arguments cut at the output limit.

ANSWER_LIMIT_CHARACTERS = 2_000_000
"""Text, thinking and arguments of one answer together; about 500,000 tokens, beyond any model's output."""

REFUSAL_TEXT = "The model's provider declined to answer this under its content policy."

FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "stop_sequence", "end_turn", "eos", "eos_token", "STOP", "COMPLETE"), "stop"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "MAX_TOKENS", "compaction", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "refusal", "sensitive", "guardrail_intervened", "ERROR_TOXIC"),
        "content_filter",
    ),
    **dict.fromkeys(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE"), "content_filter"),
}
"""The reasons that end a whole answer. LiteLLM turns all others, `error` and `network_error` too, into `stop`."""


def unreadable(what: str) -> UpstreamUnavailable:
    """The error of an answer that cannot be understood; `what` is our own sentence."""
    return UpstreamUnavailable("model_unreadable", f"The provider sent something that is not an answer: {what}.")


@dataclass(slots=True)
class _OpenCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Draft:
    """What has come so far of one answer."""

    most_tokens: int | None = None
    """Of the whole answer; None where only the limit of any answer holds."""
    model: str = ""
    text_characters: int = 0
    reported_usage: object = None
    """The vendor's last usage object."""
    _calls: list[_OpenCall] = field(default_factory=list)
    _place: dict[int, int] = field(default_factory=dict)
    """The wire's index of a call, to its place in `_calls`."""
    _characters: int = 0

    def take(self, chunk: Any) -> Iterator[TextDelta | ThinkingDelta]:
        """The deltas in one chunk of the OpenAI form.

        Raises: UpstreamUnavailable where the chunk has a wrong shape; UpstreamRejected past the limit of any answer,
        LimitReached past this one's.
        """
        self.model = self.model or str(getattr(chunk, "model", None) or "")
        self.reported_usage = getattr(chunk, "usage", None) or self.reported_usage
        choices = getattr(chunk, "choices", None) or ()
        delta = getattr(choices[0], "delta", None) if choices else None
        if delta is None:
            return
        thinking = self._text(delta, "reasoning_content")
        if thinking:
            yield ThinkingDelta(thinking)
        text = self._text(delta, "content")
        if text:
            self.text_characters += len(text)
            yield TextDelta(text)
        calls = getattr(delta, "tool_calls", None) or ()
        if not isinstance(calls, (list, tuple)):
            raise unreadable("tool calls that are no list")
        for call in calls:
            self._take_call(call)

    def _text(self, holder: Any, name: str) -> str:
        value = getattr(holder, name, None)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise unreadable(f"{name} that is no text")
        self._characters += len(value)
        if self._characters > ANSWER_LIMIT_CHARACTERS:
            raise UpstreamRejected("answer_too_large", "The model's answer is larger than any answer may be.")
        if self.most_tokens is not None and self.estimated_tokens() > self.most_tokens:
            message = f"the answer went on beyond what the turn's limits leave, about {self.most_tokens} tokens"
            advice = "it was broken off, raise limits.max_tokens or limits.max_cost_usd"
            raise LimitReached(ANSWER_OVER_BUDGET, f"{message}; {advice}")
        return clean(value)

    def _take_call(self, delta: Any) -> None:
        """Add a piece of a call. A new id and a name on a known index is another call: some servers send only 0."""
        function = getattr(delta, "function", None)
        if function is None:
            raise unreadable("a tool call without a function")
        id_, name, arguments = self._text(delta, "id"), self._text(function, "name"), self._text(function, "arguments")
        index = getattr(delta, "index", None)
        if not isinstance(index, int):
            index = len(self._calls) if name else len(self._calls) - 1
        place = self._place.get(index)
        if place is None or (id_ and name and self._calls[place].id not in ("", id_)):
            self._place[index] = place = len(self._calls)
            self._calls.append(_OpenCall(id_, name))
        call = self._calls[place]
        call.id, call.name = call.id or id_, call.name or name
        call.arguments.append(arguments)

    def estimated_tokens(self) -> int:
        """About how many tokens have come: text, thinking and calls."""
        return -(-self._characters // CHARACTERS_A_TOKEN)

    def close(self, finish_reason: object, usage: Usage) -> Iterator[Chunk]:
        """The last chunks of a good answer; `finish_reason` is the provider's own word, not a made-up one.

        Raises: UpstreamUnavailable where the answer is not whole; UpstreamRejected where it ran into its limit.
        """
        if not isinstance(finish_reason, str):
            raise UpstreamUnavailable("model_cut_off", "The provider's stream ended before its answer did.")
        reason = FINISH_REASONS.get(finish_reason)
        if reason is None:
            raise unreadable("a finish reason that nobody defined")
        if reason == "content_filter":  # calls of an answer that was stopped are not to be trusted
            if not self.text_characters:
                yield TextDelta(REFUSAL_TEXT)
            yield Complete((), usage, reason, self.model)
            return
        if reason == "length" and (self._calls or not self.text_characters):
            raise UpstreamRejected("output_limit", "The model reached its output limit before it had answered.")
        if not all(call.name for call in self._calls) or (reason == "tool_calls" and not self._calls):
            raise unreadable("tool calls that did not come, or have no name")
        if not self.text_characters and not self._calls:
            raise UpstreamUnavailable("model_empty_answer", "The model answered with nothing.")
        # Some servers end calls with "stop".
        yield Complete(self._drafts(), usage, "tool_calls" if self._calls else reason, self.model)

    def _drafts(self) -> tuple[DraftCall, ...]:
        seen: set[str] = set()
        drafts = []
        for place, call in enumerate(self._calls):
            id_ = call.id if call.id and call.id not in seen else f"call_{place}"
            while id_ in seen:
                id_ += "_"
            seen.add(id_)
            drafts.append(DraftCall(id_, call.name, "".join(call.arguments)))
        return tuple(drafts)


# --- What a call used: the provider's numbers where they can be believed, else an estimate; cost in micro-dollars.

MOST_TOKENS = 1_000_000_000
"""A report above this is not believed."""


def tokens_of_request(request: ProviderRequest) -> int:
    """About how many tokens a request is, by its JSON: what was said, the tools, the schema of the answer."""
    return estimated_tokens(_json(request))


def most_input_tokens(request: ProviderRequest) -> int:
    """No fewer tokens than any vendor counts for a request: its bytes.

    A token stands for a byte at least, and the keys of the JSON for what a vendor puts around a message. An estimate
    of four characters a token is exceeded threefold by Chinese or by numbers; this is not.
    """
    return len(_json(request).encode("utf-8", "replace"))


def _json(request: ProviderRequest) -> str:
    wanted = request.output
    schema = [wanted.fits] if wanted is not None and wanted.form is OutputForm.JSON_SCHEMA else []
    return json.dumps([*request.messages, *request.tools, *schema], ensure_ascii=False)


def most_output_tokens(params: Mapping[str, JsonValue], of_model: int | None) -> int | None:
    """What the agent lets an answer have, else what the model can say; None where neither is known."""
    asked = [params.get(name) for name in ("max_completion_tokens", "max_tokens")]
    most = next((each for each in asked if isinstance(each, int) and not isinstance(each, bool)), of_model)
    answers = params.get("n")
    return most if most is None or not isinstance(answers, int) else most * max(1, answers)


def microusd(dollars: float) -> int:
    """Dollars as whole micro-dollars, rounded up, so that a budget is never reached late; nonsense is zero."""
    if not math.isfinite(dollars) or dollars <= 0:
        return 0
    return math.ceil(round(dollars * 1_000_000, 6))


def believable(reported: Any, input_estimate: int, output_estimate: int) -> Usage:
    """`reported`, an object of the OpenAI form, with every number that cannot be true replaced by its estimate."""
    input_tokens = _count(getattr(reported, "prompt_tokens", None), input_estimate)
    cached = _count(getattr(getattr(reported, "prompt_tokens_details", None), "cached_tokens", None), 0)
    said = _count(getattr(reported, "completion_tokens", None), output_estimate)
    thought = _count(getattr(getattr(reported, "completion_tokens_details", None), "reasoning_tokens", None), 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=said,
        cached_tokens=min(cached, input_tokens),
        thinking_tokens=min(thought, said),
    )


def cache_written(reported: Any, usage: Usage) -> int:
    """Tokens of the request that its vendor wrote to a cache, which cost more than others (Anthropic's: a quarter); no
    more than it counted and did not read from there."""
    return min(
        _count(getattr(reported, "cache_creation_input_tokens", None), 0), usage.input_tokens - usage.cached_tokens
    )


def _count(value: object, estimate: int) -> int:
    """`value` where it can be a count; zero cannot, where there was something to count."""
    if isinstance(value, bool) or not isinstance(value, int):
        return estimate
    return value if min(estimate, 1) <= value <= MOST_TOKENS else estimate
