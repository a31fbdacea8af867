"""Passwords: how strong a new one must be, and how fast wrong ones can be guessed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_HOUR, _DAY = 3_600, 86_400
_MAX_DOUBLINGS = 30
CHECKED_CHARACTERS = 32
"""Number of characters to check: zxcvbn takes 3 ms for 32 and up to 1.7 s for 64 of the worst kind (measured)."""
_MIN_SCORE = 2
"""zxcvbn's score of more than 1,000,000 guesses."""
_MIN_SCORE_WITH_NAMES = 3
"""More than 100,000,000 guesses, for a password that contains a name."""
_PRODUCT_NAME = "perdure"
_MIN_WORD_CHARACTERS = 3
_MIN_CHARACTERS_BESIDE_NAMES = 6
"""Letters and digits that a password needs besides its names: a year is too little."""
_LEET = str.maketrans("4@301!57$", "aaeoiists")
_ADVICE = "Use a longer one, for example four unrelated words"
_CONSISTS_OF_NAMES = f"This password consists of your name, the tenant's name or the product's name. {_ADVICE}"


@dataclass(frozen=True, slots=True)
class GuessRate:
    """The allowed rate of password guesses."""

    name: str
    free_guesses: int
    """Wrong guesses without a delay."""
    max_seconds: int
    """The longest delay; the first one is a second, and each is twice the previous one."""
    kept_seconds: int = _DAY
    """Seconds after the last wrong guess until the count is reset."""
    is_window: bool = False
    """True if the count is reset this long after the first wrong guess. If many people share a key, their mistakes must
    not add up indefinitely."""


DEVICE = GuessRate("device", 5, 900)
PLACE = GuessRate("place", 5, 900)
"""One address at one account."""
ACCOUNT = GuessRate("account", 20, 60, _HOUR, is_window=True)
"""All unknown devices at one account. Short, because continued guessing also delays an owner on a new device."""
ADDRESS = GuessRate("address", 50, 60, _HOUR, is_window=True)
"""One address at all accounts: many people may share one."""


@dataclass(frozen=True, slots=True)
class GuessTally:
    """The wrong guesses that are counted under one key."""

    failures: int = 0
    last_at: float = 0.0


def wait_after(rate: GuessRate, failures: int) -> int:
    """Returns the seconds between this number of wrong guesses and the next allowed guess."""
    if failures < rate.free_guesses:
        return 0
    return int(min(rate.max_seconds, 2 ** min(failures - rate.free_guesses, _MAX_DOUBLINGS)))


def wait_left(tallies: Sequence[tuple[GuessRate, GuessTally]], now: float) -> float:
    """Returns the seconds until the next allowed guess, or 0.

    Guessing slows down after wrong passwords, and the owner can still sign in. A device from which the owner has signed
    in before is limited only by its own wrong guesses; guesses from elsewhere never delay it. Three counts limit every
    other caller: its address at this account, all unknown devices at this account, and its address at all accounts. The
    longest delay applies.
    """
    due = (tally.last_at + wait_after(rate, tally.failures) - now for rate, tally in tallies if tally.failures)
    # If the clock was set back, no delay is longer than a full one from now.
    longest = max((wait_after(rate, tally.failures) for rate, tally in tallies), default=0)
    return min(longest, max(0.0, *due, 0.0)) if tallies else 0.0


def own_names(*texts: str) -> list[str]:
    """Returns the words that this user's password must not consist of: names in full, in parts and without spaces."""
    found = [_PRODUCT_NAME]
    for text in texts:
        parts = re.split(r"[\W_]+", text.casefold())
        found += [text.casefold(), "".join(parts), *parts]
    return list(dict.fromkeys(word for word in found if len(word) >= _MIN_WORD_CHARACTERS))


def password_weakness(password: str, names: Iterable[str]) -> str | None:
    """Returns why this password is rejected, as a sentence, or None. `names` are those of `own_names`. Rejected are
    common passwords, patterns, and words that an attacker knows about the owner. zxcvbn has 30,000 common passwords,
    names, words and keyboard patterns. It also finds them reversed, with digits appended and with letters replaced
    (`p4ssw0rd`)."""
    given = list(names)
    # A long password is as strong as the better of its ends.
    ends = dict.fromkeys((password[:CHECKED_CHARACTERS], password[-CHECKED_CHARACTERS:]))
    found = [_find_weakness(end, given) for end in ends]
    return None if None in found else found[0]


def _find_weakness(password: str, names: list[str]) -> str | None:
    from zxcvbn import zxcvbn  # 60 ms to import (measured), for the few requests that set a password

    estimate = zxcvbn(password, user_inputs=names)
    joined = re.sub(r"[\W_]+", "", password)  # signs between names hide them from zxcvbn
    for result in (estimate, zxcvbn(joined, user_inputs=names)) if joined and joined != password else (estimate,):
        has_names = any(match.get("dictionary_name") == "user_inputs" for match in result["sequence"])
        if has_names and result["score"] < _MIN_SCORE_WITH_NAMES:
            return _CONSISTS_OF_NAMES
    if _is_of_names(password, names):
        return _CONSISTS_OF_NAMES
    if estimate["score"] < _MIN_SCORE:
        return f"{estimate['feedback']['warning'] or 'This password is easy to guess.'} {_ADVICE}"
    return None


def _is_of_names(password: str, names: list[str]) -> bool:
    """Returns whether almost nothing is left of the password without its names, even if they are repeated."""
    plain = re.sub(r"[\W_]+", "", password.casefold().translate(_LEET))
    remaining = plain
    for name in sorted({name.translate(_LEET) for name in names}, key=len, reverse=True):
        remaining = remaining.replace(re.sub(r"[\W_]+", "", name) or "\0", "")
    return remaining != plain and len(remaining) < _MIN_CHARACTERS_BESIDE_NAMES
