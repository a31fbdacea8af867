"""`perdure skills`, `perdure mcp` and `perdure init`: checks an app folder and creates one. No stack has to run."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.apps import App, AppProblem, has_mistakes
from perdure.apps.mcp import Difference, difference, lock_path, read_lock, write_lock
from perdure.apps.scaffold import scaffold
from perdure.cli.connection import command
from perdure.cli.terminal import OTHER, USAGE, AsJson, fail, say, say_json
from perdure.contracts.errors import CallerError
from perdure.contracts.mcp import McpServerListing
from perdure.core.text import escape_terminal

skills_app = typer.Typer(help="Check the skills of an app folder.", no_args_is_help=True, rich_markup_mode=None)


@skills_app.callback()
def skills_group() -> None:
    """Check the skills of an app folder."""


@skills_app.command("check")
def check_skills(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", show_default=False, help="An app folder; if omitted, the built-in examples."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report each mistake in an app folder with file and line: skills, code blocks, rules, personas, data and agents.

    No stack is needed. Imports the app's tools/*.py, as a worker does. If a sandbox is available, also checks the types
    of code blocks and runs their examples. Exit code 1 if there is a mistake; warnings do not count.
    """
    if folder is not None and not folder.is_dir():
        raise fail(f"{folder} is not a folder", USAGE)
    if folder is not None and (folder / "SKILL.md").is_file():
        raise fail(f"{folder} is a skill; pass the app folder, {folder.absolute().parents[1]}", USAGE)
    # imported here, because it loads half of the engine for this command only
    from perdure.apps import app_folders
    from perdure.apps.registry import load_apps, load_one_app
    from perdure.settings import Settings

    settings = Settings.read()
    sandbox, seconds = settings.sandbox(), settings.request_seconds
    looking = (
        load_apps(app_folders((), True), sandbox, examples=True, expires_seconds=seconds)
        if folder is None
        else load_one_app(folder, sandbox, examples=True, expires_seconds=seconds)
    )
    found = asyncio.run(looking)
    apps = found.apps
    problems = [problem for each in apps for problem in each.problems]
    if as_json:
        skills = [_skills_json(each) for each in apps]
        say_json({"apps": skills, "problems": [*map(_problem_data, problems)], "unchecked": found.unchecked})
    else:
        _say_checked(apps, problems, found.unchecked)
    if has_mistakes(problems):
        raise typer.Exit(OTHER)


def _say_checked(apps: Sequence[App], problems: list[AppProblem], unchecked: str) -> None:
    for problem in problems:
        sys.stdout.write(escape_terminal(_line(problem)) + "\n")
    if unchecked:
        say(f"warning: the types of code blocks were not checked, nor their examples run: {unchecked}")
    say(_summary(apps, problems))


def _line(problem: AppProblem) -> str:
    """Returns the problem as a line. Its file is relative to the current folder if it is inside."""
    here = Path.cwd()
    file = problem.file.relative_to(here) if problem.file.is_relative_to(here) else problem.file
    return str(AppProblem(file, problem.line, problem.message, problem.warning))


def _summary(apps: Sequence[App], problems: list[AppProblem]) -> str:
    mistakes = sum(not problem.warning for problem in problems)
    warnings = len(problems) - mistakes
    skills = [skill for each in apps for skill in each.skills.values()]
    blocks = sum(len(skill.blocks) for skill in skills)
    agents = sum(len(each.agents) for each in apps)
    loaded = f"{_counted(len(skills), 'skill')}, {_counted(blocks, 'code block')}, {_counted(agents, 'agent')}"
    where = apps[0].name if len(apps) == 1 else _counted(len(apps), "app")
    return f"{where}: {_counted(mistakes, 'mistake')}, {_counted(warnings, 'warning')}; valid: {loaded}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _skills_json(each: App) -> dict[str, object]:
    return {
        "app": each.name,
        "folder": str(each.folder),
        "agents": [agent.id for agent in each.agents],
        "skills": [*each.skills],
    }


def _problem_data(problem: AppProblem) -> dict[str, object]:
    return {
        "file": str(problem.file),
        "line": problem.line,
        "message": problem.message,
        "warning": problem.warning,
    }


mcp_app = typer.Typer(
    help="Check and lock the MCP servers of an app folder.", no_args_is_help=True, rich_markup_mode=None
)
AppFolder = Annotated[Path, typer.Argument(metavar="APP_FOLDER", show_default=False, help="An app folder.")]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result for one server."""

    server: str
    state: str
    """`written`, `same`, `differs`, `unlocked` or `failed`."""
    tools: int = 0
    unlike: Difference = field(default_factory=Difference)
    details: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """True if the lock was written, is unchanged or does not exist yet."""
        return self.state in ("written", "same", "unlocked")


@mcp_app.callback()
def mcp_group() -> None:
    """Check and lock the MCP servers of an app folder."""


@mcp_app.command("lock")
def lock(folder: AppFolder, as_json: AsJson = False) -> None:
    """Write the current tool list of each MCP server of an app to mcp/<server>.lock.json, and print the changes.

    Starts or contacts the servers, as the stack does. A server with a lock file is published from it without being
    contacted. Calls to a tool that differs from the lock are refused, so review the changes before you commit them. If
    a server does not answer, its lock is kept and the exit code is 1.
    """
    app, listings = _ask_servers(folder)
    _tell(app, [_locked(app.folder, server, found) for server, found in listings.items()], as_json)


@mcp_app.command("check")
def check_mcp(folder: AppFolder, as_json: AsJson = False) -> None:
    """Compare each MCP server of an app with its lock file; exit code 1 if they differ.

    A lock that cannot be read or a server that does not answer also counts as a difference. A server without a lock is
    reported and is not an error. Nothing is written.
    """
    app, listings = _ask_servers(folder)
    _tell(app, [_checked(app.folder, server, found) for server, found in listings.items()], as_json)


def _ask_servers(folder: Path) -> tuple[App, dict[str, McpServerListing]]:
    """Returns the app's servers with their tools. Exits if one of their files has a mistake."""
    if not folder.is_dir():
        raise fail(f"{folder} is not a folder", USAGE)
    # imported here, because it loads half of the engine for this group only
    from perdure.apps.registry import contact_servers
    from perdure.settings import Settings, secret

    with redirect_stdout(sys.stderr):  # the engine's log lines go to stderr; stdout is for the result
        settings = Settings.read()
        app, listings = asyncio.run(contact_servers(folder, secret, settings.home, settings.outbound()))
    for problem in app.problems:
        sys.stderr.write(escape_terminal(str(problem)) + "\n")
    if has_mistakes(app.problems):
        raise typer.Exit(OTHER)
    if not app.servers:
        raise fail(f"{folder} has no MCP server: no file mcp/<server>.yaml was found", USAGE)
    return app, listings


def _locked(folder: Path, server: str, found: McpServerListing) -> _Outcome:
    if found.lock is None:
        return _Outcome(server, "failed", details=found.told)
    path = lock_path(folder, server)
    before = read_lock(path)[0] if path.exists() else None
    unlike = difference(before, found.lock)
    if before == found.lock and not unlike:
        return _Outcome(server, "same", len(found.lock.tools), details=found.told)
    try:
        problems = write_lock(path, found.lock)
    except OSError as error:
        return _Outcome(server, "failed", details=(f"{path}: cannot write: {error.strerror}",))
    if problems:
        return _Outcome(server, "failed", details=tuple(map(str, problems)))
    return _Outcome(server, "written", len(found.lock.tools), unlike, found.told)


def _checked(folder: Path, server: str, found: McpServerListing) -> _Outcome:
    path = lock_path(folder, server)
    if found.lock is None:
        return _Outcome(server, "failed", details=found.told)
    if not path.exists():
        return _Outcome(server, "unlocked", len(found.lock.tools), details=found.told)
    before, problems = read_lock(path)
    if before is None:
        return _Outcome(server, "failed", details=tuple(map(str, problems)))
    unlike = difference(before, found.lock)
    return _Outcome(server, "differs" if unlike else "same", len(found.lock.tools), unlike, found.told)


def _tell(app: App, outcomes: list[_Outcome], as_json: bool) -> None:
    """Writes the results. Exits with 1 if one is not good."""
    if as_json:
        say_json({"app": app.name, "servers": [_lock_json(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _say(outcome)
    if not all(outcome.good for outcome in outcomes):
        raise typer.Exit(OTHER)


def _say(outcome: _Outcome) -> None:
    unlike, changed = outcome.unlike, outcome.unlike.changed
    counts = f"{len(unlike.added)} added, {len(unlike.removed)} removed, {len(changed)} changed"
    texts = {
        "written": f"lock written, {outcome.tools} tools: {counts}",
        "same": f"{outcome.tools} tools, matches its lock",
        "differs": f"differs from its lock: {counts}",
        "unlocked": f"{outcome.tools} tools, no lock; create one with `perdure mcp lock`",
        "failed": "failed",
    }
    say(f"{outcome.server}: {texts[outcome.state]}")
    for name in unlike.added:
        say(f"  added    {name}")
    for name in unlike.removed:
        say(f"  removed  {name}")
    for name, fields in changed.items():
        say(f"  changed  {name} ({', '.join(fields)})")
    for sentence in outcome.details:
        say(f"  {sentence}")


def _lock_json(outcome: _Outcome) -> dict[str, Any]:
    unlike = outcome.unlike
    return {
        "server": outcome.server,
        "state": outcome.state,
        "tools": outcome.tools,
        "added": list(unlike.added),
        "removed": list(unlike.removed),
        "changed": {name: list(fields) for name, fields in unlike.changed.items()},
        "told": list(outcome.details),
    }


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Create a small complete app in DIR as a starting point."""
    try:
        written = scaffold(folder)
    except CallerError as error:
        raise fail(error.message, USAGE) from None
    if as_json:
        say_json({"folder": str(folder), "files": [str(path.relative_to(folder)) for path in written]})
        return
    say(f"Created in {folder}:")
    for path in written:
        say(f"  {path.relative_to(folder)}")
    say(f"Next: read {folder / 'README.md'}, then run {command('up', '--app', str(folder))}")
