"""The questions about a message's safety, intent and tone that a model answers, and how its verdicts are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.core.text import clean

_NO_CATEGORY: Final = frozenset({"", "none", "no", "null", "nothing", "n/a", "na", "safe"})

"""Category texts that mean no category."""

_CATEGORY: Final = "In a word or two what danger it is; `none` where `hijacked` is false."

MAX_VERDICT_TEXT_CHARACTERS: Final = 500

"""Maximum length of a text in a verdict, because the text is stored in the turn's state."""


class Question(StrEnum):
    """A question; the agent's stage of this name has the instructions, and the answer is called `<question>_verdict`. A
    turn of `context_assembly` sends three of them to a model before it answers. The model must answer by calling a
    function, so that the answer is structured with every provider. Safety fails closed: only a plain `false` clears a
    turn. Intent and tone fall back to their defaults."""

    SAFETY = "safety"
    INTENT = "intent"
    EMPATHY = "empathy"


def expected_output(question: Question, intents: Sequence[str]) -> OutputAsk:
    """Returns the structured output that the model must answer with."""
    name = f"{question.value}_verdict"
    return OutputAsk(name=name, fits=answer_schema(question, intents), form=OutputForm.FUNCTION)


def answer_schema(question: Question, intents: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the JSON schema of a verdict. Only its first field is required."""
    text: dict[str, JsonValue] = {"type": "string"}
    fields: dict[Question, dict[str, JsonValue]] = {
        Question.SAFETY: {"hijacked": {"type": "boolean"}, "category": {**text, "description": _CATEGORY}},
        Question.INTENT: {"intent": {"type": "string", "enum": [*intents]}},
        Question.EMPATHY: {"tone": text, "guidance": text},
    }
    first: list[JsonValue] = [next(iter(fields[question]))]
    return {"type": "object", "properties": fields[question], "required": first}


@dataclass(frozen=True, slots=True)
class Safety:
    """The result of the safety check: whether the turn takes the safety path, and the category."""

    hijacked: bool
    category: str
    """The classifier's category; `unavailable` if it gave no verdict."""


def safety_of(verdict: Mapping[str, JsonValue] | None) -> Safety:
    """Returns the safety verdict, failing closed: without a verdict, or with one that is not a plain `false`, the turn
    takes the safety path. A `false` with a category is contradictory and also takes it."""
    if verdict is None or not isinstance(verdict.get("hijacked"), bool):
        return Safety(True, "unavailable")
    category = _text(verdict, "category")
    if verdict["hijacked"] is False and _is_no_category(verdict.get("category")):
        return Safety(False, category)
    return Safety(True, category or ("" if verdict["hijacked"] is True else "unavailable"))


def intent_of(verdict: Mapping[str, JsonValue] | None, known: Sequence[str], default: str) -> str:
    """Returns the matching entry of `known`, ignoring case, or else `default`."""
    intent = _text(verdict or {}, "intent").strip().casefold()
    return next((each for each in known if each.casefold() == intent), default)


def empathy_of(verdict: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Returns tone and guidance, if the verdict contains them."""
    return {name: text for name in ("tone", "guidance") if (text := _text(verdict or {}, name))}


def _is_no_category(category: JsonValue) -> bool:
    return category is None or (isinstance(category, str) and category.strip(" .").casefold() in _NO_CATEGORY)


def _text(verdict: Mapping[str, JsonValue], name: str) -> str:
    value = verdict.get(name)
    return " ".join(clean(value).split())[:MAX_VERDICT_TEXT_CHARACTERS] if isinstance(value, str) else ""
