"""Words by which a message is taken over before any model is asked: the deterministic part of a safety check (S1-13).

The words are an agent's, by what they speak of; a phrase is found however it is written, also if it begins in one
message and ends in the next. Too much is found rather than too little.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from pydantic import JsonValue

from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.core.text import clean

Words = Mapping[str, Sequence[str]]
"""By category: phrases."""
REACH: Final = 200
"""How far from where two messages meet a phrase that crosses is looked for, in characters; no phrase is longer."""


def danger_in(message: str, before: str, words: Words) -> str:
    """The category of the first phrase that `message` has, or that is made of the end of the message `before` and the
    beginning of this one; empty where there is none. What `before` has by itself was said then."""
    if not words:
        return ""
    texts = readings(message)
    seams = [_seam(*pair) for pair in zip(readings(before), texts, strict=True)] if before else []
    for category, phrases in words.items():
        for phrase in phrases:
            if any(form in text for text, each in zip(texts, forms(phrase), strict=True) for form in each):
                return category
            if any(_crosses(form, seam) for seam, each in zip(seams, forms(phrase), strict=False) for form in each):
                return category
    return ""


def is_phrase(phrase: str) -> bool:
    """Whether it can be looked for: words, not too many, and at most one `*`, behind the last of them."""
    return len(phrase) < REACH and bool(forms(phrase)) and "*" not in phrase.rstrip()[:-1]


def _seam(before: str, after: str) -> tuple[str, str, str]:
    """Where the two meet: the end of the one, the beginning of the other, and both as one text."""
    end, beginning = before[-REACH:], after[:REACH]
    return end, beginning, end.rstrip() + beginning


def _crosses(form: str, seam: tuple[str, str, str]) -> bool:
    """Whether `form` is there once the two are read as one text, and in neither of them alone."""
    end, beginning, both = seam
    return form in both and form not in end and form not in beginning


# --- Text as it is meant, however it is written: for looking words up in it, never for showing or keeping it.
# Case, accents, what cannot be seen, and the kind of space, dash or apostrophe make no difference, nor do letters that
# are doubled or spelled out one by one. Letters of other scripts, and digits within a word, may stand for those that
# they look like; so a text has several readings.


def _table(pairs: str) -> dict[int, str]:
    return {ord(pair[0]): pair[1] for pair in pairs.split()}


_CAPITALS: Final = _table("Αa Βb Εe Ζz Ηh Ιi Κk Μm Νn Οo Ρp Τt Υy Χx")
"""Of Greek, which look like other letters than the small ones do."""
_LETTERS: Final = _table(
    "аa вb еe кk мm нh оo рp сc тt уy хx іi јj ѕs ԁd ԛq ԝw ӏl һh ьb гr "  # Cyrillic
    "αa βb γy εe ηn ιi κk μu νv οo ρp σo τt υu χx ωw "  # Greek
    "ıi łl øo đd ɑa ɡg ɩi ɪi ᴀa ʙb ᴄc ᴅd ᴇe ɢg ʜh ᴊj ᴋk ʟl ᴍm ɴn ᴏo ᴘp ʀr ꜱs ᴛt ᴜu ᴠv ᴡw ʏy ᴢz"  # Latin
)
_DIGITS: Final = _table("0o 1i 3e 4a 5s 7t @a $s !i |l")
_ONES: Final = _DIGITS | _table("1l !l")
_UNSEEN: Final = frozenset("\u115f\u1160\u2800")
"""Beside formats and marks; other fillers are taken apart into these."""
_WORD: Final = re.compile(r"[\w@$!|]+")
_LETTER: Final = re.compile(r"[^\W\d_]")
_APOSTROPHES: Final = re.compile("['`´‘’ʼ]")
_NO_WORD: Final = re.compile(r"[\W_]+")
_SIGNS: Final = re.compile(r"[^\w\s]|_")
_SPELLED: Final = re.compile(r"(?<!\S)(?:[^\W\d] ){2,}[^\W\d](?!\S)")
_DOUBLED: Final = re.compile(r"(.)\1+")


def readings(text: str) -> tuple[str, ...]:
    """The words of a text, with one space before, between and after them: as written, as it looks, with digits for
    letters, with `1` for `l`, and without its signs. Only texts of one reading compare."""
    seen = _seen(text)
    looks = seen if text.isascii() else _seen(unicodedata.normalize("NFKD", text).translate(_CAPITALS))
    looks = looks.translate(_LETTERS)
    digits = _WORD.sub(lambda word: _lettered(word[0], _DIGITS), looks)
    ones = _WORD.sub(lambda word: _lettered(word[0], _ONES), looks)
    return tuple(_words(each) for each in (seen, looks, digits, ones, _SIGNS.sub("", looks)))


@cache
def forms(phrase: str) -> tuple[tuple[str, ...], ...]:
    """By reading, what to look for: the phrase, and the phrase as one word. Its last word may go on where a `*` stands
    behind it. Empty for a phrase without a word."""
    end = "" if phrase.rstrip().endswith("*") else " "
    found = [words.strip() for words in readings(phrase.replace("*", " "))]
    return tuple((f" {words}{end}", f" {words.replace(' ', '')}{end}") for words in found) if all(found) else ()


def _seen(text: str) -> str:
    """In lower case, without accents and what cannot be seen."""
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(
        each for each in apart if each not in _UNSEEN and unicodedata.category(each) not in ("Mn", "Me", "Cf")
    )


def _lettered(word: str, table: dict[int, str]) -> str:
    """The word with letters for its digits, where it has a letter: a number is a number."""
    return word.translate(table) if _LETTER.search(word) else word


def _words(text: str) -> str:
    apart = _NO_WORD.sub(" ", _APOSTROPHES.sub("", text)).strip()
    single = _DOUBLED.sub(r"\1", _SPELLED.sub(_joined, apart))
    return f" {single} "


def _joined(spelled: re.Match[str]) -> str:
    """Letters that are spelled out, as a word; an `i` or `a` before it may be a word of its own."""
    letters = spelled[0].replace(" ", "")
    return f"{letters} {letters[0]} {letters[1:]}" if letters[0] in "ia" else letters


# --- The three questions that a turn of `context_assembly` asks a model before it answers, and what an answer counts
# for (S1-12, S1-16).
# An answer is a call of a function that the model must make, so that it is structured with every provider. Safety fails
# closed: only a plain `false` clears a turn. Intent and tone fail softly, to their defaults.

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
