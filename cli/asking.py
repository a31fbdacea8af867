"""Asking the person at the terminal. Where nobody sits there, nothing is asked."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.failures import OTHER
from cli.screen import fail, say
from policy.printable import one_line

Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask; without a terminal, or with --json, it is not asked."),
]


def at_terminal() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask once more; `--yes`, `--json`, or no terminal, means that you have looked.

    Raises: typer.Exit where the answer is no.
    """
    if not (yes or as_json) and at_terminal() and not typer.confirm(question):
        raise fail("nothing was sent", OTHER)


def chosen(question: str, offered: Sequence[str]) -> tuple[int | None, str]:
    """The place in `offered` of what was chosen by its number, or None and the person's own words."""
    for number, each in enumerate(offered, 1):
        say(f"  {number}  {one_line(each)}")
    words = str(typer.prompt(question, default="", show_default=False)).strip()
    if words.isdecimal() and 1 <= int(words) <= len(offered):
        return int(words) - 1, ""
    return None, words
