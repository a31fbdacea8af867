"""Output of commands: plain lines, tables, JSON. Untrusted text passes through perdure/core/text.py."""

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

from perdure.client import ApiError
from perdure.client.requests import UNREACHABLE
from perdure.core import text as core_text
from perdure.core.text import escape_terminal, one_line
from perdure.local.config import own_environ
from perdure.schemas.base import Answer, Item, Page

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsName = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Use the token of this local user instead of the default one."),
]
Cursor = Annotated[str | None, typer.Option(metavar="CURSOR", help="The cursor that the previous page printed.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Maximum rows of this page.")]
_CELL_CHARACTERS = 200
_FIELD_CHARACTERS = 4_000
_EXPIRED_TEXT = "over"
_UNLIMITED_COLUMNS = 1_000
"""Width for a pipe or a file, in which nothing is cut or wrapped."""
DONE, OTHER, USAGE, NOT_FOUND, DECIDED, EXPIRED = 0, 1, 2, 4, 5, 6
HOW_TO_START = "for example with `make up`, or with `perdure up --app DIR` for your own app"
_DECIDED_CODES = frozenset(
    {"already_decided", "already_settled", "already_voted", "already_escalated", "already_running"}
)
_EXIT_CODES = {400: USAGE, 422: USAGE, 404: NOT_FOUND, 410: EXPIRED}


def say(text: str = "") -> None:
    """Writes a line of text."""
    sys.stdout.write(escape_terminal(text) + "\n")
    sys.stdout.flush()


def say_json(value: Any, *, line: bool = False) -> None:
    """Writes a JSON value, on one line if `line` is set. It is pure ASCII, so that it is harmless on a terminal."""
    data = value.model_dump(mode="json") if isinstance(value, Answer) else value
    sys.stdout.write(json.dumps(data, indent=2 if sys.stdout.isatty() and not line else None) + "\n")
    sys.stdout.flush()


def fail(text: str, code: int) -> typer.Exit:
    """Writes an error to stderr and returns the exception for the caller to raise."""
    sys.stderr.write(escape_terminal(text) + "\n")
    return typer.Exit(code)


def check_choice(option: str, value: str | None, choices: Iterable[str]) -> None:
    """Ends the command if the option has a value that is not one of `choices`."""
    known = tuple(choices)
    if value is not None and value not in known:
        raise fail(f"{option} must be one of {', '.join(known)}", USAGE)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    *,
    max_characters: int | None = _CELL_CHARACTERS,
) -> None:
    """Writes a table, or the line `empty` if there are no rows. `max_characters` is the maximum characters of a cell.

    The first column names the row and is never cut.
    """
    lines = [[Text(cell(value, max_characters)) for value in row] for row in rows]
    if not lines:
        say(empty)
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column(headers[0], no_wrap=True, min_width=max(len(line[0]) for line in lines))
    for header in headers[1:]:
        grid.add_column(header, overflow="fold")
    for line in lines:
        grid.add_row(*line)
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED_COLUMNS
    console.print(grid)


def say_page(
    page: Page[Item],
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    *,
    as_json: bool,
    max_characters: int | None = _CELL_CHARACTERS,
) -> None:
    """Writes a page of a list as JSON, or as a table of `rows` with the cursor of the next page."""
    if as_json:
        say_json(page)
        return
    table(headers, rows, empty, max_characters=max_characters)
    say_next_page(page)


def say_next_page(page: Page[Item]) -> None:
    """Writes the cursor of the next page, if there is one."""
    if page.next:
        say(f"Next page: --cursor {page.next}")


def fields(pairs: Iterable[tuple[str, object]], *, max_characters: int | None = _FIELD_CHARACTERS) -> None:
    """Writes named values, one per line, without the empty ones. A value has at most
    `max_characters`."""
    rows = [(name, cell(value, max_characters)) for name, value in pairs]
    rows = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        say(f"{name:<{width}}  {value}")


def format_time(at: datetime | None) -> str:
    """Returns a time in UTC as text."""
    return "" if at is None else core_text.format_time(at)


def format_iso_time(at: Any) -> str:
    """Returns an ISO time in the format of `format_time`."""
    try:
        return format_time(datetime.fromisoformat(str(at)))
    except ValueError:
        return one_line(str(at))


def time_left(until: datetime | None) -> str:
    """Returns the time left until then: `6 d 23 h`, `59 min`, `over`."""
    return "" if until is None else core_text.format_time_left(until, datetime.now(UTC)) or _EXPIRED_TEXT


def time_until(at: datetime | None) -> str:
    """Returns a future time and the time left until then, or `over`."""
    if at is None:
        return ""
    remaining = time_left(at)
    return f"{format_time(at)} ({remaining if remaining == _EXPIRED_TEXT else f'in {remaining}'})"


def ago(at: datetime | None) -> str:
    """Returns the time since then. A time in the future counts as now, because clocks can differ."""
    return "" if at is None else core_text.format_age(at, datetime.now(UTC))


def cell(value: object, max_characters: int | None = _CELL_CHARACTERS) -> str:
    """Returns a value on one line, without control characters."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return one_line(str(value), max_characters)


def exit_code(error: ApiError) -> int:
    """Returns the exit code of an error: 2 usage, 4 not found, 5 already decided, 6 expired, 1 anything else."""
    return exit_code_of(error.code, error.status)


def exit_code_of(code: str, status: object) -> int:
    """Returns the exit code for an error that is an item of a response."""
    if code in _DECIDED_CODES:
        return DECIDED
    return _EXIT_CODES.get(status, OTHER) if isinstance(status, int) else OTHER


def print_api_error(error: ApiError, *, as_json: bool) -> int:
    """Writes the error and the next step to stderr. Returns the exit code."""
    if as_json:
        body = {"status": error.status, "code": error.code, "message": error.message, "details": error.details}
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        return exit_code(error)
    sys.stderr.write(escape_terminal(f"{error.message} ({error.code})") + "\n")
    hint = _hint(error)
    if hint:
        sys.stderr.write(escape_terminal(hint) + "\n")
    return exit_code(error)


def _hint(error: ApiError) -> str:
    if error.code == UNREACHABLE:
        return f"Is it running? Start it as before, {HOW_TO_START}; `perdure status` shows the running parts."
    if error.status == 401:
        return "The token is missing or invalid; set PERDURE_TOKEN, or use --as requester, reviewer or admin."
    if error.code == "quota_reached":
        return "`perdure files usage` shows your storage; `perdure files delete FILE` deletes a file."
    if error.code == "agent_not_found":
        return "`perdure agents list` lists all agents."
    fields = error.details.get("fields")
    if error.code == "invalid_input" and isinstance(fields, list):
        return "\n".join(f"{fault.get('field')}: {fault.get('problem')}" for fault in fields if isinstance(fault, dict))
    decision = error.details.get("decision")
    if error.code == "already_decided" and isinstance(decision, dict) and decision.get("type"):
        reason = decision.get("comment") or decision.get("reason_code")
        decided_by = f" by {decision['by']}" if decision.get("by") else ""
        return f"Decision: {decision.get('type')}{decided_by}" + (f": {reason}" if reason else ".")
    if error.code == "claimed":
        return "The claim expires by itself; an admin can end it with `release`."
    if error.retry_after_seconds is not None:
        return f"Retry in {error.retry_after_seconds:.0f} s."
    if error.code == "conversation_busy":
        return f"The open turn is {error.details.get('turn_id')} ({error.details.get('status')})."
    deadline = error.details.get("deadline")
    return f"The deadline is {deadline}." if deadline else ""


Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Skip the confirmation. Without a terminal, or with --json, there is none."),
]


def at_terminal() -> bool:
    """Returns whether a user can answer."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Asks for confirmation, unless `--yes` or `--json` is set or there is no terminal.

    Raises: typer.Exit if the answer is no.

    Questions are skipped without a terminal.
    """
    if not (yes or as_json) and at_terminal() and not typer.confirm(question):
        raise fail("Cancelled; nothing was sent", OTHER)


def prompt_choice(question: str, options: Sequence[str]) -> tuple[int | None, str]:
    """Returns the index in `options` that was chosen by number, or None and the user's own text."""
    for number, option in enumerate(options, 1):
        say(f"  {number}  {one_line(option)}")
    answer = str(typer.prompt(question, default="", show_default=False)).strip()
    if answer.isdecimal() and 1 <= int(answer) <= len(options):
        return int(answer) - 1, ""
    return None, answer


class EditFailed(Exception):
    """Raised if there is no editor, it failed, or nothing was changed; the message states which."""


class NoTemporaryFile(EditFailed):
    """No temporary file can be written for the editor."""


def edited_text(text: str, name: str, alternative: str) -> str:
    """Returns `text` after editing with $VISUAL or $EDITOR, in a file called `name`.

    Only the owner can read the file, and it is deleted afterwards. `alternative` is the option that needs no editor.

    Raises: EditFailed; NoTemporaryFile if the disk is full, or if no folder is writable.
    """
    environ = own_environ()
    editor = environ.get("VISUAL") or environ.get("EDITOR")
    if not editor and at_terminal():  # without a terminal nano and vi wait forever
        editor = next(filter(shutil.which, ("nano", "vi")), None)
    if not editor:
        raise EditFailed(f"No editor is configured; set EDITOR to a program, or pass {alternative}")
    try:
        directory = tempfile.TemporaryDirectory(prefix="perdure-edit-")
    except OSError as error:
        raise _no_temporary_file(error) from error
    with directory as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
            path.chmod(0o600)
        except OSError as error:
            raise _no_temporary_file(error) from error
        try:
            process = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise EditFailed(f"The editor {editor!r} does not start: {error}") from error
        if process.returncode:
            raise EditFailed(f"The editor exited with code {process.returncode}; nothing was sent")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EditFailed(f"The edited file cannot be read: {error}; nothing was sent") from error


def _no_temporary_file(error: OSError) -> NoTemporaryFile:
    return NoTemporaryFile(
        f"No temporary file can be created for the editor: {error.strerror or error}; nothing was sent"
    )
