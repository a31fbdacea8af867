"""Finds safety keywords in a message before any model is called. `message_verdicts` has the part that a model decides.

The keywords are configured per agent, by category. A phrase is found in any spelling, also across the boundary of two
messages. False positives are preferred over misses.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

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
