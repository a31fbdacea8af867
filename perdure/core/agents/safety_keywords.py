"""Finds safety keywords in a message before any model is called: the deterministic part of a safety check.

The keywords are configured per agent, by category. A phrase is found in any spelling, also across the boundary of two
messages. False positives are preferred over misses.
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

Keywords = Mapping[str, Sequence[str]]
"""Phrases by category."""
BOUNDARY_CHARACTERS: Final = 200
"""Number of characters on each side of a message boundary in which crossing phrases are searched. Phrases are shorter.
"""
_INVISIBLE: Final = frozenset("\u115f\u1160\u2800")
"""Invisible characters besides formats and marks. Normalization decomposes other fillers into these."""
_WORD: Final = re.compile(r"[\w@$!|]+")
_LETTER: Final = re.compile(r"[^\W\d_]")
_APOSTROPHES: Final = re.compile("['`´‘’ʼ]")
_NON_WORD: Final = re.compile(r"[\W_]+")
_PUNCTUATION: Final = re.compile(r"[^\w\s]|_")
_SPELLED_OUT: Final = re.compile(r"(?<!\S)(?:[^\W\d] ){2,}[^\W\d](?!\S)")
_DOUBLED: Final = re.compile(r"(.)\1+")
_NO_CATEGORY: Final = frozenset({"", "none", "no", "null", "nothing", "n/a", "na", "safe"})
"""Category texts that mean no category."""
_CATEGORY: Final = "In a word or two what danger it is; `none` where `hijacked` is false."
MAX_VERDICT_TEXT_CHARACTERS: Final = 500
"""Maximum length of a text in a verdict, because the text is stored in the turn's state."""


def safety_keywords_in(message: str, before: str, words: Keywords) -> str:
    """Returns the category of the first phrase in `message`, or across the end of `before` and its beginning; empty if
    there is none. Phrases that are completely in `before` do not count; they were found in that message."""
    if not words:
        return ""
    texts = text_readings(message)
    seams = [_seam_between(*pair) for pair in zip(text_readings(before), texts, strict=True)] if before else []
    for category, phrases in words.items():
        for phrase in phrases:
            if any(form in text for text, each in zip(texts, phrase_forms(phrase), strict=True) for form in each):
                return category
            if any(
                _crosses_seam(form, seam)
                for seam, each in zip(seams, phrase_forms(phrase), strict=False)
                for form in each
            ):
                return category
    return ""


def is_phrase(phrase: str) -> bool:
    """Returns whether the phrase can be searched: words, shorter than `BOUNDARY_CHARACTERS`, and no `*` except at its
    end."""
    return len(phrase) < BOUNDARY_CHARACTERS and bool(phrase_forms(phrase)) and "*" not in phrase.rstrip()[:-1]


def _seam_between(before: str, after: str) -> tuple[str, str, str]:
    """Returns the end of one text, the beginning of the other, and both joined."""
    end, beginning = before[-BOUNDARY_CHARACTERS:], after[:BOUNDARY_CHARACTERS]
    return end, beginning, end.rstrip() + beginning


def _crosses_seam(form: str, seam: tuple[str, str, str]) -> bool:
    """Returns whether `form` is in the joined text but in neither part alone."""
    end, beginning, both = seam
    return form in both and form not in end and form not in beginning


def _letter_table(pairs: str) -> dict[int, str]:
    return {ord(pair[0]): pair[1] for pair in pairs.split()}


_CAPITALS: Final = _letter_table("Αa Βb Εe Ζz Ηh Ιi Κk Μm Νn Οo Ρp Τt Υy Χx")
"""Greek capitals, which resemble other letters than the lower-case ones do."""
_LETTERS: Final = _letter_table(
    "аa вb еe кk мm нh оo рp сc тt уy хx іi јj ѕs ԁd ԛq ԝw ӏl һh ьb гr "  # Cyrillic
    "αa βb γy εe ηn ιi κk μu νv οo ρp σo τt υu χx ωw "  # Greek
    "ıi łl øo đd ɑa ɡg ɩi ɪi ᴀa ʙb ᴄc ᴅd ᴇe ɢg ʜh ᴊj ᴋk ʟl ᴍm ɴn ᴏo ᴘp ʀr ꜱs ᴛt ᴜu ᴠv ᴡw ʏy ᴢz"  # Latin
)
_DIGITS: Final = _letter_table("0o 1i 3e 4a 5s 7t @a $s !i |l")
_ONES: Final = _DIGITS | _letter_table("1l !l")


def text_readings(text: str) -> tuple[str, ...]:
    """Returns the words of a text in five readings, with one space before, between and after the words.

    The readings are: as written, as it looks, with digits as letters, with `1` as `l`, and without its signs. Only
    texts of the same reading can be compared.

    They are for searching, never for display or storage. Case, accents, invisible characters, and kinds of spaces,
    dashes and apostrophes are ignored, as are doubled letters and letters that are spelled out one by one. Letters of
    other scripts, and digits within a word, can replace the letters that they resemble; so a text has several readings.
    """
    written = _visible_text(text)
    lookalike = written if text.isascii() else _visible_text(unicodedata.normalize("NFKD", text).translate(_CAPITALS))
    lookalike = lookalike.translate(_LETTERS)
    digits_as_letters = _WORD.sub(lambda word: _replace_digits(word[0], _DIGITS), lookalike)
    ones_as_l = _WORD.sub(lambda word: _replace_digits(word[0], _ONES), lookalike)
    return tuple(
        _words(each) for each in (written, lookalike, digits_as_letters, ones_as_l, _PUNCTUATION.sub("", lookalike))
    )


@cache
def phrase_forms(phrase: str) -> tuple[tuple[str, ...], ...]:
    """Returns what to search for, by reading: the phrase, and the phrase as one word. If the phrase ends with `*`, its
    last word matches as a prefix. Empty for a phrase without a word."""
    end = "" if phrase.rstrip().endswith("*") else " "
    found = [words.strip() for words in text_readings(phrase.replace("*", " "))]
    return tuple((f" {words}{end}", f" {words.replace(' ', '')}{end}") for words in found) if all(found) else ()


def _visible_text(text: str) -> str:
    """Returns the text in lower case, without accents and invisible characters."""
    if text.isascii():
        return text.lower()
    separated = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(
        each for each in separated if each not in _INVISIBLE and unicodedata.category(each) not in ("Mn", "Me", "Cf")
    )


def _replace_digits(word: str, table: dict[int, str]) -> str:
    """Returns the word with letters for its digits, if it contains a letter. Plain numbers stay numbers."""
    return word.translate(table) if _LETTER.search(word) else word


def _words(text: str) -> str:
    separated = _NON_WORD.sub(" ", _APOSTROPHES.sub("", text)).strip()
    single = _DOUBLED.sub(r"\1", _SPELLED_OUT.sub(_join_letters, separated))
    return f" {single} "


def _join_letters(spelled: re.Match[str]) -> str:
    """Joins spelled-out letters to a word. A leading `i` or `a` may be a separate word, so both readings are
    returned."""
    letters = spelled[0].replace(" ", "")
    return f"{letters} {letters[0]} {letters[1:]}" if letters[0] in "ia" else letters


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
    """Returns the JSON schema of an answer."""
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
