"""The three questions that a turn of `context_assembly` asks a model before it answers, and what an answer counts for
(S1-12, S1-16).

An answer is a call of a function that the model must make, so that it is structured with every provider. Safety fails
closed: only a plain `false` clears a turn. Intent and tone fail softly, to their defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from contracts.model import OutputAsk, OutputForm
from policy.text import clean

_NOTHING: Final = frozenset({"", "none", "no", "null", "nothing", "n/a", "na", "safe"})
"""What a category says where there is none."""
_CATEGORY: Final = "In a word or two what danger it is; `none` where `hijacked` is false."
MOST_CHARACTERS: Final = 500
"""Of a text in a verdict: it rides in the turn's state."""


class Question(StrEnum):
    """What is asked: the agent's stage of this name has the instructions, the answer is called `<question>_verdict`."""

    SAFETY = "safety"
    INTENT = "intent"
    EMPATHY = "empathy"


def answer_to(question: Question, intents: Sequence[str]) -> OutputAsk:
    """What the model is to answer with."""
    name = f"{question.value}_verdict"
    return OutputAsk(name=name, fits=form_of(question, intents), form=OutputForm.FUNCTION)


def form_of(question: Question, intents: Sequence[str]) -> dict[str, JsonValue]:
    """The JSON schema of an answer."""
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
    """Whether the turn is taken over, and by what."""

    hijacked: bool
    category: str
    """What the classifier saw; `unavailable` where it gave no verdict."""


def safety_of(verdict: Mapping[str, JsonValue] | None) -> Safety:
    """Fail closed: no verdict, or one that is not a plain no, takes the turn over. A no that names a category all the
    same contradicts itself."""
    if verdict is None or not isinstance(verdict.get("hijacked"), bool):
        return Safety(True, "unavailable")
    category = _text(verdict, "category")
    if verdict["hijacked"] is False and _is_nothing(verdict.get("category")):
        return Safety(False, category)
    return Safety(True, category or ("" if verdict["hijacked"] is True else "unavailable"))


def intent_of(verdict: Mapping[str, JsonValue] | None, known: Sequence[str], default: str) -> str:
    """One of `known`, in whatever case it was said; else `default`."""
    said = _text(verdict or {}, "intent").strip().casefold()
    return next((each for each in known if each.casefold() == said), default)


def empathy_of(verdict: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Tone and guidance, as far as they were said."""
    return {name: text for name in ("tone", "guidance") if (text := _text(verdict or {}, name))}


def _is_nothing(category: JsonValue) -> bool:
    return category is None or (isinstance(category, str) and category.strip(" .").casefold() in _NOTHING)


def _text(verdict: Mapping[str, JsonValue], name: str) -> str:
    value = verdict.get(name)
    return " ".join(clean(value).split())[:MOST_CHARACTERS] if isinstance(value, str) else ""
