"""Whether a password is too easy to guess: common ones, patterns, and words that an attacker knows of its owner.

zxcvbn knows 30,000 common passwords, names, words and keyboard patterns, and finds them reversed, with digits appended
and with letters replaced (`p4ssw0rd`).
"""

import re
from collections.abc import Iterable

MOST_LOOKED_AT = 32
"""Characters: zxcvbn takes 3 ms for 32 and up to 1.7 s for 64 of the worst kind (measured)."""
_ENOUGH = 2
"""zxcvbn's score of more than 1,000,000 guesses."""
_ENOUGH_WITH_NAMES = 3
"""More than 100,000,000 guesses, for a password that has a name in it."""
_OURS = "perdure"
_SHORTEST_WORD = 3
_LEAST_BESIDE_NAMES = 6
"""Letters and digits that a password with a name in it has beside the names: a year is too little."""
_LEET = str.maketrans("4@301!57$", "aaeoiists")
_ADVICE = "Use a longer one, for example four words that have nothing to do with each other"
_OF_NAMES = f"This password is made of your name, the tenant's name or the product's name. {_ADVICE}"


def names_of(*texts: str) -> list[str]:
    """The words that a password of this person must not be made of: names in full, in parts and without spaces."""
    found = [_OURS]
    for text in texts:
        parts = re.split(r"[\W_]+", text.casefold())
        found += [text.casefold(), "".join(parts), *parts]
    return list(dict.fromkeys(word for word in found if len(word) >= _SHORTEST_WORD))


def weakness(password: str, names: Iterable[str]) -> str | None:
    """Why this password is refused, as a sentence; None for a good one. `names` are those of `names_of`."""
    given = list(names)
    # A long password is as good as the better one of its ends.
    ends = dict.fromkeys((password[:MOST_LOOKED_AT], password[-MOST_LOOKED_AT:]))
    found = [_weakness(end, given) for end in ends]
    return None if None in found else found[0]


def _weakness(password: str, names: list[str]) -> str | None:
    from zxcvbn import zxcvbn  # 60 ms to import (measured), for the few requests that set a password

    whole = zxcvbn(password, user_inputs=names)
    joined = re.sub(r"[\W_]+", "", password)  # signs between names hide them from zxcvbn
    for result in (whole, zxcvbn(joined, user_inputs=names)) if joined and joined != password else (whole,):
        has_names = any(match.get("dictionary_name") == "user_inputs" for match in result["sequence"])
        if has_names and result["score"] < _ENOUGH_WITH_NAMES:
            return _OF_NAMES
    if _is_of_names(password, names):
        return _OF_NAMES
    if whole["score"] < _ENOUGH:
        return f"{whole['feedback']['warning'] or 'This password is easy to guess.'} {_ADVICE}"
    return None


def _is_of_names(password: str, names: list[str]) -> bool:
    """Whether hardly anything is left of the password without the names in it, however often they are repeated."""
    plain = re.sub(r"[\W_]+", "", password.casefold().translate(_LEET))
    left = plain
    for name in sorted({name.translate(_LEET) for name in names}, key=len, reverse=True):
        left = left.replace(re.sub(r"[\W_]+", "", name) or "\0", "")
    return left != plain and len(left) < _LEAST_BESIDE_NAMES
