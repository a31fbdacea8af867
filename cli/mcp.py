"""`perdure mcp`: locks of the tools of an app's MCP servers, written and checked by asking the servers."""

import asyncio
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.failures import OTHER, USAGE
from cli.screen import AsJson, fail, say, say_json
from contracts.mcp import McpServerListing
from perdure.apps import App, has_mistakes
from perdure.apps.mcp_locks import Difference, difference, lock_path, read_lock, write_lock
from policy.printable import printable

app = typer.Typer(help="The MCP servers of an app folder.", no_args_is_help=True, rich_markup_mode=None)
AppFolder = Annotated[Path, typer.Argument(metavar="APP_FOLDER", show_default=False, help="An app folder.")]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is told of one server."""

    server: str
    state: str
    """`written`, `same`, `differs`, `unlocked`, `failed`."""
    tools: int = 0
    unlike: Difference = field(default_factory=Difference)
    told: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the command did, or found, what it is for."""
        return self.state in ("written", "same", "unlocked")


@app.callback()
def group() -> None:
    """The MCP servers of an app folder."""


@app.command("lock")
def lock(folder: AppFolder, as_json: AsJson = False) -> None:
    """Write what each MCP server of an app lists now to mcp/<server>.lock.json, and tell what that changes.

    The servers are started, or reached, as at a start of the stack. A server with a lock is published from it without
    being asked, and a call of a tool that is another by then is refused: look at the change before you commit it. A
    server that does not answer keeps the lock that it has; then the exit code is 1.
    """
    asked, listings = _asked(folder)
    _tell(asked, [_locked(asked.folder, server, found) for server, found in listings.items()], as_json)


@app.command("check")
def check(folder: AppFolder, as_json: AsJson = False) -> None:
    """Tell where an MCP server of an app lists other tools than its lock; then the exit code is 1.

    Also where a lock cannot be read or a server does not answer. A server without a lock is told and is no failure.
    Nothing is written.
    """
    asked, listings = _asked(folder)
    _tell(asked, [_checked(asked.folder, server, found) for server, found in listings.items()], as_json)


def _asked(folder: Path) -> tuple[App, dict[str, McpServerListing]]:
    """The app's servers, each with what it lists; ends the command where a file of theirs has a mistake."""
    if not folder.is_dir():
        raise fail(f"{folder} is no folder", USAGE)
    from catalogue import asked_servers  # here: it brings half of the engine, for this group alone
    from settings import Settings, secret

    with redirect_stdout(sys.stderr):  # the engine's log lines: stdout is for what was asked
        settings = Settings()
        asked, listings = asyncio.run(asked_servers(folder, secret, settings.home, settings.outbound()))
    for problem in asked.problems:
        sys.stderr.write(printable(str(problem)) + "\n")
    if has_mistakes(asked.problems):
        raise typer.Exit(OTHER)
    if not asked.servers:
        raise fail(f"{folder} names no MCP server: there is no mcp/<server>.yaml", USAGE)
    return asked, listings


def _locked(folder: Path, server: str, found: McpServerListing) -> _Outcome:
    if found.lock is None:
        return _Outcome(server, "failed", told=found.told)
    path = lock_path(folder, server)
    before = read_lock(path)[0] if path.exists() else None
    unlike = difference(before, found.lock)
    if before == found.lock and not unlike:
        return _Outcome(server, "same", len(found.lock.tools), told=found.told)
    try:
        problems = write_lock(path, found.lock)
    except OSError as error:
        return _Outcome(server, "failed", told=(f"{path}: cannot be written: {error.strerror}",))
    if problems:
        return _Outcome(server, "failed", told=tuple(map(str, problems)))
    return _Outcome(server, "written", len(found.lock.tools), unlike, found.told)


def _checked(folder: Path, server: str, found: McpServerListing) -> _Outcome:
    path = lock_path(folder, server)
    if found.lock is None:
        return _Outcome(server, "failed", told=found.told)
    if not path.exists():
        return _Outcome(server, "unlocked", len(found.lock.tools), told=found.told)
    before, problems = read_lock(path)
    if before is None:
        return _Outcome(server, "failed", told=tuple(map(str, problems)))
    unlike = difference(before, found.lock)
    return _Outcome(server, "differs" if unlike else "same", len(found.lock.tools), unlike, found.told)


def _tell(asked: App, outcomes: list[_Outcome], as_json: bool) -> None:
    """Write them; leave with 1 where one is not good."""
    if as_json:
        say_json({"app": asked.name, "servers": [_shown(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _say(outcome)
    if not all(outcome.good for outcome in outcomes):
        raise typer.Exit(OTHER)


def _say(outcome: _Outcome) -> None:
    unlike, changed = outcome.unlike, outcome.unlike.changed
    counts = f"{len(unlike.added)} added, {len(unlike.removed)} removed, {len(changed)} changed"
    said = {
        "written": f"lock written, {outcome.tools} tools: {counts}",
        "same": f"{outcome.tools} tools, as its lock has them",
        "differs": f"lists other tools than its lock: {counts}",
        "unlocked": f"{outcome.tools} tools, no lock; `perdure mcp lock` writes one",
        "failed": "failed",
    }
    say(f"{outcome.server}: {said[outcome.state]}")
    for name in unlike.added:
        say(f"  added    {name}")
    for name in unlike.removed:
        say(f"  removed  {name}")
    for name, fields in changed.items():
        say(f"  changed  {name} ({', '.join(fields)})")
    for sentence in outcome.told:
        say(f"  {sentence}")


def _shown(outcome: _Outcome) -> dict[str, Any]:
    unlike = outcome.unlike
    return {
        "server": outcome.server,
        "state": outcome.state,
        "tools": outcome.tools,
        "added": list(unlike.added),
        "removed": list(unlike.removed),
        "changed": {name: list(fields) for name, fields in unlike.changed.items()},
        "told": list(outcome.told),
    }
