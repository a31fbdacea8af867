"""The ends of a model's answer: what each means, and what happens to an answer that was cut."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from pydantic import JsonValue

from perdure.contracts.agents import OnLength
from perdure.contracts.errors import Problem

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause_turn"]
"""`length`: cut at the output limit. `content_filter`: stopped by the provider's filter. `refusal`: the model refused.
`pause_turn`: the provider paused a long answer, which the next request continues."""
MAX_CONTINUATIONS: Final = 2
"""The number of calls that continue one answer."""
OUTPUT_LIMIT: Final = Problem(
    code="output_limit",
    message="The model's answer was cut at its output limit. Raise `max_tokens` of the model, or ask for a shorter "
    "answer.",
)
PAUSED: Final = Problem(
    code="model_paused",
    message="The model's provider paused the answer before its first word, and no further call continues it.",
)
NO_OBJECT: Final[Mapping[str, Problem]] = {
    "refusal": Problem(code="model_refused", message="The model refused to give the structured output."),
    "content_filter": Problem(
        code="model_refused", message="The model provider's content filter stopped the structured output."
    ),
}
"""The problem of a structured output that ended so. Further calls would end in the same way."""
_KEEP = "`on_length: truncate` keeps the cut text."
CONTINUE: Final = (
    "Your last answer was cut off before its end. Continue exactly where it stops, without repeating any of it and "
    "without a remark about the interruption. Tool calls in it were not run: make those that are still needed again."
)
ANSWER_AGAIN: Final = (
    "Your last answer reached the output limit, or your provider paused it, before its first word. So it was discarded "
    "and its tool calls were not run. Answer again, and more briefly if it was long."
)


class Ending(StrEnum):
    """The treatment of an answer."""

    WHOLE = "whole"
    CONTINUED = "continued"
    """Another call continues it."""
    TRUNCATED = "truncated"
    """The cut answer is the answer, and is marked as cut."""
    FAILED = "failed"
    """The call has the problem `output_limit`, or `model_paused`."""


def length_rule(rule: OnLength, params: Mapping[str, JsonValue]) -> OnLength:
    """Returns the rule for a cut answer to a request with these parameters. The parts of an answer in a response format
    would not fit together, so `fail` replaces `continue` there."""
    formatted = params.get("response_format") is not None
    return OnLength.FAIL if formatted and rule is OnLength.CONTINUE else rule


def ending_of(finish_reason: FinishReason, rule: OnLength, *, may_continue: bool, has_text: bool) -> Ending:
    """Returns what happens to an answer. `has_text` includes the parts that it continues.

    A provider's pause does not come from the agent's limit, so it is continued under every rule.
    """
    if finish_reason not in ("length", "pause_turn"):
        return Ending.WHOLE
    paused = finish_reason == "pause_turn"
    if rule is OnLength.FAIL and not paused:
        return Ending.FAILED
    if may_continue and (paused or rule is OnLength.CONTINUE):
        return Ending.CONTINUED
    return Ending.TRUNCATED if has_text else Ending.FAILED


def problem_of_cut(finish_reason: FinishReason, limit: Problem = OUTPUT_LIMIT) -> Problem:
    """Returns the problem of an answer that ended so and is `FAILED`. `limit` is that of the output limit."""
    return PAUSED if finish_reason == "pause_turn" else limit


def output_limit(rule: OnLength, params: Mapping[str, JsonValue], *, has_text: bool, thought: bool) -> Problem:
    """Returns the problem of an answer that was cut under the agent's `rule`, with the advice that can work.
    `thought`: the model reasoned before it was cut."""
    advice = ""
    if not has_text:
        advice = "It has no text that could be kept."
        if thought:
            advice += " The model used its output for reasoning: a lower `reasoning` leaves more for the answer."
    elif length_rule(OnLength.CONTINUE, params) is OnLength.FAIL:
        advice = f"Parts in a response format cannot be joined, so `on_length: continue` has no effect. {_KEEP}"
    elif rule is OnLength.FAIL:
        advice = f"`on_length: continue` has the model complete it, and {_KEEP}"
    return OUTPUT_LIMIT.model_copy(update={"message": f"{OUTPUT_LIMIT.message} {advice}".rstrip()})


def continuation_note(message_id: str) -> str:
    """Returns the instruction for a call that continues the message `message_id`, or answers again if that is empty."""
    return CONTINUE if message_id else ANSWER_AGAIN
