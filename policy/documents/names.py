"""The entities that a text names: words that look like names of things, compared without case.

A name has a dash, a dot, a slash, an underscore, a colon or a digit inside it, or stands in back quotes. It knows no
kind of thing: `billing-api`, `eu/west-2` and `T_1000` are names in any domain.
"""

import re
from collections.abc import Iterable

MOST_NAMES = 32
MOST_CHARACTERS = 100
_QUOTED = re.compile(r"`([^`\n]{2,100})`")
_WORD = re.compile(r"\w[\w./:-]*")
_INNER = re.compile(r"[\d_./:-]")
_LETTER = re.compile(r"[^\W\d_]")


def name_form(text: str) -> str:
    """The form under which entities are compared."""
    return " ".join(text.casefold().split())[:MOST_CHARACTERS]


def names_in(text: str, most: int = MOST_NAMES) -> tuple[str, ...]:
    """The entities that `text` names, each once, in their order; the first `most`."""
    found: dict[str, int] = {}
    for match in _QUOTED.finditer(text):
        _note(found, match.group(1), match.start())
    for match in _WORD.finditer(text):
        word = match.group().rstrip("./:-")
        if len(word) >= 3 and _INNER.search(word[1:]) and _is_name(word):
            _note(found, word, match.start())
    return tuple(sorted(found, key=lambda name: found[name]))[:most]


def entity_keys(given: Iterable[str], text: str = "") -> tuple[str, ...]:
    """The entities of a document: those that its author gives, then those that its text names."""
    keys = dict.fromkeys([*(name_form(each) for each in given), *names_in(text)])
    return tuple(key for key in keys if key)[:MOST_NAMES]


def _note(found: dict[str, int], text: str, at: int) -> None:
    name = name_form(text)
    if name:
        found.setdefault(name, at)


def _is_name(word: str) -> bool:
    """Whether a word with a mark inside is a name: it has letters, and more than single ones (`e.g`)."""
    return bool(_LETTER.search(word)) and max(len(part) for part in re.split(r"[./:-]", word)) > 1
