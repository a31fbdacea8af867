"""How commands write: plain lines, tables, JSON. Everything that came from outside goes through policy/printable.py."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.client import Answer
from policy import moments
from policy.printable import one_line, printable

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
AsName = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Use the token of this local user instead of the usual one.")
]
_CELL_CHARACTERS = 200
_FIELD_CHARACTERS = 4_000
_OVER = "over"
_UNLIMITED_COLUMNS = 1_000
"""For a pipe or a file: nothing is cut or wrapped."""


def say(text: str = "") -> None:
    """A line for a person."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def say_json(value: Any, *, line: bool = False) -> None:
    """A JSON value; everything but ASCII is escaped, so that it is harmless on a terminal as well. `line`: on one."""
    plain = value.model_dump(mode="json") if isinstance(value, Answer) else value
    sys.stdout.write(json.dumps(plain, indent=2 if sys.stdout.isatty() and not line else None) + "\n")
    sys.stdout.flush()


def fail(text: str, code: int) -> typer.Exit:
    """Say on stderr what is wrong; raise what this returns."""
    sys.stderr.write(printable(text) + "\n")
    return typer.Exit(code)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], empty: str, *, most: int | None = _CELL_CHARACTERS
) -> None:
    """A table whose first column, which names the row, is never cut; or the line `empty`. `most`: of a cell."""
    lines = [[Text(cell(value, most)) for value in row] for row in rows]
    if not lines:
        say(empty)
        return
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(headers[0], no_wrap=True, min_width=max(len(line[0]) for line in lines))
    for header in headers[1:]:
        made.add_column(header, overflow="fold")
    for line in lines:
        made.add_row(*line)
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED_COLUMNS
    console.print(made)


def fields(pairs: Iterable[tuple[str, object]], *, most: int | None = _FIELD_CHARACTERS) -> None:
    """Named values, one a line; those that are empty are left out. `most`: characters of a value."""
    shown = [(name, cell(value, most)) for name, value in pairs]
    shown = [(name, value) for name, value in shown if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {value}")


def moment(at: datetime | None) -> str:
    """A time as a person reads it, UTC."""
    return "" if at is None else moments.told(at)


def time_told(at: Any) -> str:
    """A time that came as text, as a person reads it."""
    try:
        return moment(datetime.fromisoformat(str(at)))
    except ValueError:
        return one_line(str(at))


def left(until: datetime | None) -> str:
    """How long until then: `6 d 23 h`, `59 min`, `over`."""
    return "" if until is None else moments.left(until, datetime.now(UTC)) or _OVER


def until(at: datetime | None) -> str:
    """A time that is to come, and how long it is until then; or that it is over."""
    if at is None:
        return ""
    rest = left(at)
    return f"{moment(at)} ({rest if rest == _OVER else f'in {rest}'})"


def ago(at: datetime | None) -> str:
    """How long since then; a clock that is ahead of this one counts as now."""
    return "" if at is None else moments.ago(at, datetime.now(UTC))


def cell(value: object, most: int | None = _CELL_CHARACTERS) -> str:
    """A value on one line, harmless."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return one_line(str(value), most)
