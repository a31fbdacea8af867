"""What a model call has heard so far, and what is written of it: the reply, its messages, its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from activities.clients.provider import Complete
from activities.planning import Planned
from activities.vendors import AT_WORK
from contracts.errors import PerdureError, Problem
from contracts.events import GENERATION_COMPLETE, THINKING_COMPLETE, TOKEN_USAGE, TTFT
from contracts.messages import MessageRef, Role
from contracts.model import ModelCall, ModelReply, OutputAsk, OutputForm
from contracts.turns import Usage
from policy.extract import extracted
from policy.refusals import STOPPED
from policy.structured import read_object
from policy.text import CHARACTERS_A_TOKEN, estimated_tokens, preview
from store.ids import new_id
from store.journal import NewEvent, NewMessage

MOST_THOUGHT_CHARACTERS = 16_384
"""Of a call's reasoning that is kept; the rest of it was shown live and is counted."""


@dataclass(slots=True)
class Heard:
    """What came of one attempt so far."""

    text: list[str] = field(default_factory=list)
    complete: Complete | None = None
    first_token_seconds: float | None = None
    """From the request."""
    turn_seconds: float = 0.0
    """From the turn's own beginning to the request."""
    thoughts: list[str] = field(default_factory=list)
    """The reasoning, as much of it as is kept."""
    thinking_characters: int = 0
    thinking_seconds: float = 0.0
    """From the request to the last of it."""
    broken_off_tokens: int = 0
    """About what had come of an answer that an error ended, calls included."""
    stopped: bool = False
    was_at_work: bool = False
    """The provider may have worked on the answer before an error ended it."""
    asked_tokens: int = 0
    """About how many the provider was sent."""
    price: Callable[[Usage], int] | None = None
    """What so much costs, in micro-dollars, by the provider that was asked."""
    assembly: dict[str, JsonValue] = field(default_factory=dict)
    """How it was put together (activities/prompting.py)."""

    @property
    def whole(self) -> str:
        return "".join(self.text)

    @property
    def usage(self) -> Usage:
        """What the provider counted; where it could not say, an estimate as soon as it had begun to answer, or may
        have: of a call that was stopped or timed out it was asked, and nobody knows that it is not paid."""
        thought = -(-self.thinking_characters // CHARACTERS_A_TOKEN)
        if self.complete is not None:
            counted = self.complete.usage
            known = counted.thinking_tokens or min(thought, counted.output_tokens)
            return counted.model_copy(update={"thinking_tokens": known}) if known else counted
        said = thought + estimated_tokens(self.whole)
        said = max(said, self.broken_off_tokens)
        if not (said or self.stopped or self.was_at_work):
            return Usage()
        usage = Usage(input_tokens=self.asked_tokens, output_tokens=said, thinking_tokens=thought)
        return usage.model_copy(update={"cost_microusd": self.price(usage)}) if self.price is not None else usage

    def think(self, text: str, seconds: float) -> None:
        """Take a piece of the model's reasoning, that came so long after the request."""
        room = MOST_THOUGHT_CHARACTERS - self.thinking_characters
        if room > 0:
            self.thoughts.append(text[:room])
        self.thinking_characters += len(text)
        self.thinking_seconds = seconds

    def note_broken_off(self, error: PerdureError) -> None:
        """An error ended the answer: what the provider has said by then is paid for as well."""
        said = error.details.get("output_tokens")
        self.broken_off_tokens = said if isinstance(said, int) else 0
        self.was_at_work = error.code in AT_WORK


def reply_of(
    call: ModelCall, heard: Heard, failed: Problem | None, planned: Sequence[Planned]
) -> tuple[ModelReply, list[NewMessage]]:
    """The settled reply, and the messages that it writes."""
    text = heard.whole
    partial = heard.stopped or failed is not None
    usage = heard.usage
    if partial and not text:
        return ModelReply(usage=usage, problem=failed or STOPPED, partial=True), []
    message = NewMessage(
        new_id(),
        Role.ASSISTANT,
        text,
        calls=[each.on_message for each in planned],
        tokens=usage.output_tokens or estimated_tokens(text),
        partial=partial,
    )
    ref = MessageRef(
        id=message.id,
        role=Role.ASSISTANT,
        text=preview(text),
        tokens=message.tokens,
        calls=tuple(each.ref for each in planned),
    )
    problem = failed or (STOPPED if heard.stopped else None)
    reply = ModelReply(
        message=ref,
        extracted=extracted(call.ask.extract_pattern, text),
        usage=usage,
        problem=problem,
        partial=partial,
    )
    return reply, [message, *(each.message for each in planned if each.message is not None)]


def structured_reply(wanted: OutputAsk, heard: Heard, failed: Problem | None) -> ModelReply:
    """The settled reply of a call that was to answer with an object: the object, or why there is none."""
    problem = failed or (STOPPED if heard.stopped else None)
    if problem is not None:
        return ModelReply(usage=heard.usage, problem=problem, partial=True)
    said = heard.whole
    if wanted.form is OutputForm.FUNCTION:
        drafts = heard.complete.tool_calls if heard.complete else ()
        answers = {draft.raw_arguments for draft in drafts if draft.name == wanted.name}
        if len(answers) != 1:  # of two that differ nobody knows which is meant
            fault = f"{wanted.name} was called with different answers" if answers else f"nothing called {wanted.name}"
            return ModelReply(usage=heard.usage, fault=fault)
        said = answers.pop()
    read = read_object(said, wanted.fits)
    if read.fault is not None:
        return ModelReply(usage=heard.usage, fault=read.fault)
    return ModelReply(usage=heard.usage, value=read.args)


def events_of(
    call: ModelCall, epoch: int, heard: Heard, reply: ModelReply, planned: Sequence[Planned] = ()
) -> list[NewEvent]:
    """What the call leaves in the log, in order; calls that are settled already come last."""
    events = []
    if heard.thinking_characters:
        thought: dict[str, JsonValue] = {
            "duration": round(heard.thinking_seconds, 3),
            "characters": heard.thinking_characters,
            "text": "".join(heard.thoughts),
        }
        events.append(NewEvent(THINKING_COMPLETE, thought, call.call_id))
    # Of an object that is asked for nobody sees a token.
    if heard.first_token_seconds is not None and not call.ask.ttft_told and call.ask.output is None:
        waited: dict[str, JsonValue] = {
            "seconds": round(heard.first_token_seconds, 3),
            "turn_seconds": round(heard.turn_seconds + heard.first_token_seconds, 3),
        }
        events.append(NewEvent(TTFT, waited, call.call_id))
    usage = reply.usage
    events.append(
        NewEvent(
            TOKEN_USAGE,
            {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            call.call_id,
        )
    )
    events.append(
        NewEvent(
            GENERATION_COMPLETE,
            {
                "attempt": epoch,
                "message_id": reply.message.id if reply.message else None,
                # An object that was asked for is nobody's to read: no text of it is shown, and none is kept.
                "characters": len(heard.whole) if reply.message else 0,
                "partial": reply.partial,
                "tool_calls": [ref.tool for ref in reply.message.calls] if reply.message else [],
                "assembly": heard.assembly,
            },
            call.call_id,
        )
    )
    return [*events, *(each.event for each in planned if each.event is not None)]
