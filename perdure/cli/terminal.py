"""How commands write: plain lines, tables, JSON. Everything that came from outside goes through
perdure/core/text.py."""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.client import Answer, ApiError
from perdure.client.requests import UNREACHABLE
from perdure.core import text as moments
from perdure.core.text import one_line, printable
from perdure.local.config import own_environ

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
    return "" if at is None else moments.format_time(at)


def time_told(at: Any) -> str:
    """A time that came as text, as a person reads it."""
    try:
        return moment(datetime.fromisoformat(str(at)))
    except ValueError:
        return one_line(str(at))


def left(until: datetime | None) -> str:
    """How long until then: `6 d 23 h`, `59 min`, `over`."""
    return "" if until is None else moments.format_time_left(until, datetime.now(UTC)) or _OVER


def until(at: datetime | None) -> str:
    """A time that is to come, and how long it is until then; or that it is over."""
    if at is None:
        return ""
    rest = left(at)
    return f"{moment(at)} ({rest if rest == _OVER else f'in {rest}'})"


def ago(at: datetime | None) -> str:
    """How long since then; a clock that is ahead of this one counts as now."""
    return "" if at is None else moments.format_age(at, datetime.now(UTC))


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


# --- What a command says and exits with where the API says no.

DONE, OTHER, USAGE, NOT_FOUND, DECIDED, EXPIRED = 0, 1, 2, 4, 5, 6
HOW_TO_START = "for example with `make up`, or with `perdure up --app DIR` for an app of your own"
_DECIDED_CODES = frozenset(
    {"already_decided", "already_settled", "already_voted", "already_escalated", "already_running"}
)
_CODE_OF_STATUS = {400: USAGE, 422: USAGE, 404: NOT_FOUND, 410: EXPIRED}


def exit_code(error: ApiError) -> int:
    """The exit code for a refusal: 2 usage, 4 not found, 5 already decided, 6 expired, 1 anything else."""
    return exit_code_of(error.code, error.status)


def exit_code_of(code: str, status: object) -> int:
    """The same for a refusal that is an item of an answer."""
    if code in _DECIDED_CODES:
        return DECIDED
    return _CODE_OF_STATUS.get(status, OTHER) if isinstance(status, int) else OTHER


def explained(error: ApiError, *, as_json: bool) -> int:
    """Say on stderr what went wrong and what to do next; the exit code."""
    if as_json:
        body = {"status": error.status, "code": error.code, "message": error.message, "details": error.details}
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        return exit_code(error)
    sys.stderr.write(printable(f"{error.message} ({error.code})") + "\n")
    hint = _hint(error)
    if hint:
        sys.stderr.write(printable(hint) + "\n")
    return exit_code(error)


def _hint(error: ApiError) -> str:
    if error.code == UNREACHABLE:
        return f"Is it running? Start it as before, {HOW_TO_START}; `perdure status` shows what runs."
    if error.status == 401:
        return "The token is missing or wrong: set PERDURE_TOKEN, or use --as requester, reviewer or admin."
    if error.code == "quota_reached":
        return "`perdure files usage` shows what you keep; `perdure files delete FILE` deletes a file."
    if error.code == "agent_not_found":
        return "`perdure agents list` shows whom there is."
    fields = error.details.get("fields")
    if error.code == "invalid_input" and isinstance(fields, list):
        return "\n".join(f"{each.get('field')}: {each.get('problem')}" for each in fields if isinstance(each, dict))
    decision = error.details.get("decision")
    if error.code == "already_decided" and isinstance(decision, dict) and decision.get("type"):
        said = decision.get("comment") or decision.get("reason_code")
        by = f" by {decision['by']}" if decision.get("by") else ""
        return f"It was decided: {decision.get('type')}{by}" + (f": {said}" if said else ".")
    if error.code == "claimed":
        return "The claim lapses by itself; an admin may `release` it."
    if error.retry_after_seconds is not None:
        return f"Worth another try in {error.retry_after_seconds:.0f} s."
    if error.code == "conversation_busy":
        return f"The open turn is {error.details.get('turn_id')} ({error.details.get('status')})."
    deadline = error.details.get("deadline")
    return f"The deadline is {deadline}." if deadline else ""


# --- Asking the person at the terminal.
# Where nobody sits there, nothing is asked.

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


# --- A text in the user's own editor.


class EditFailed(Exception):
    """No editor, or it failed, or nothing came of it; the message says which."""


class NoTemporaryFile(EditFailed):
    """There is nowhere to write what the editor would open."""


def edited_text(text: str, name: str, instead: str) -> str:
    """`text` after $VISUAL or $EDITOR, in a file called `name`; readable by its owner only, and gone afterwards.
    `instead` is the option that needs no editor.

    Raises: EditFailed; NoTemporaryFile where the disk is full, or no folder may be written to.
    """
    environ = own_environ()
    chosen = environ.get("VISUAL") or environ.get("EDITOR")
    if not chosen and at_terminal():  # without one nano and vi wait for ever
        chosen = next(filter(shutil.which, ("nano", "vi")), None)
    if not chosen:
        raise EditFailed(f"there is no editor: set EDITOR (without a terminal, to a program), or give {instead}")
    try:
        made = tempfile.TemporaryDirectory(prefix="perdure-edit-")
    except OSError as error:
        raise _no_file(error) from error
    with made as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
            path.chmod(0o600)
        except OSError as error:
            raise _no_file(error) from error
        try:
            done = subprocess.run([*shlex.split(chosen), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise EditFailed(f"the editor {chosen!r} does not start: {error}") from error
        if done.returncode:
            raise EditFailed(f"the editor ended with {done.returncode}; nothing was sent")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EditFailed(f"what the editor left cannot be read: {error}; nothing was sent") from error


def _no_file(error: OSError) -> NoTemporaryFile:
    return NoTemporaryFile(f"no temporary file can be made for the editor: {error.strerror or error}; nothing was sent")
