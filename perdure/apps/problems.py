"""What is wrong with an app folder, told so that its author finds the place."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AppProblem:
    """One mistake."""

    file: Path
    line: int | None
    """From 1; None where the mistake has no line, such as a file that is missing."""
    message: str
    warning: bool = False
    """True for what is told and loaded all the same."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else f"{self.file}"
        return f"{where}: {'warning: ' if self.warning else ''}{self.message}"


def has_mistakes(problems: Iterable[AppProblem]) -> bool:
    """Whether these keep what they are about from being loaded."""
    return not all(problem.warning for problem in problems)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the choices where there are few, or nothing."""
    choices = sorted(known)
    close = get_close_matches(wrong, choices, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(choices)}" if 0 < len(choices) <= 8 else ""
