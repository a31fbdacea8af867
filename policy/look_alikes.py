"""Text as it is meant, however it is written: for looking words up in it, never for showing or keeping it.

Case, accents, what cannot be seen, and the kind of space, dash or apostrophe make no difference, nor do letters that
are doubled or spelled out one by one. Letters of other scripts, and digits within a word, may stand for those that they
look like; so a text has several readings.
"""

import re
import unicodedata
from functools import cache
from typing import Final


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
