"""An answer while it is being streamed: pieces in, deltas out, and at the end a judgement whether it is one.

Reads a vendor's chunks by attribute, so that it needs no vendor. Nothing half is let through: a missing or unknown
finish reason, promised calls that did not come, a call without a name, arguments cut at the output limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from activities.clients.provider import Chunk, Complete, DraftCall, FinishReason, TextDelta, ThinkingDelta
from contracts.errors import LimitReached, UpstreamRejected, UpstreamUnavailable
from contracts.turns import Usage
from policy.budget import ANSWER_OVER_BUDGET
from policy.text import CHARACTERS_A_TOKEN, clean

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
