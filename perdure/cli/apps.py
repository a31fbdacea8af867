"""`perdure check`, `skills`, `mcp` and `init`: checks an app folder and creates one. No stack has to run."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.apps import App, AppProblem, has_mistakes
from perdure.apps.mcp import Difference, difference, lock_path, read_lock, write_lock
from perdure.apps.scaffold import scaffold
from perdure.cli.connection import Role, command, connect, has_server, send_within_limit
from perdure.cli.terminal import OTHER, USAGE, AsJson, AsName, fail, say, say_json
from perdure.client import ApiError, Client
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import RequestKind
from perdure.contracts.errors import CallerError
from perdure.contracts.mcp import McpServerListing, server_of
from perdure.core.agents.tool_versions import without_outlived_version
from perdure.core.approvals.validity import OUTDATED_BY_VERSION, InForce, has_call_ahead, outdated_reason
from perdure.core.text import escape_terminal
from perdure.schemas.agents import AgentTool
from perdure.schemas.approvals import Approval

_PAGE_ITEMS = 200
AppOrExamples = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", show_default=False, help="An app folder; if omitted, the built-in examples."),
]

skills_app = typer.Typer(help="Check the skills of an app folder.", no_args_is_help=True, rich_markup_mode=None)


@skills_app.callback()
def skills_group() -> None:
    """Check the skills of an app folder."""


@skills_app.command("check")
def check_skills(
    folder: AppOrExamples = None,
    as_json: AsJson = False,
) -> None:
    """Report each mistake in an app folder with its file and line.

    Checks skills, code blocks, rules, personas, data and agents. No stack is needed. Imports the app's tools/*.py, as a
    worker does. If a sandbox is available, also checks the types of code blocks and runs their examples. Tools that an
    agent's model is not sent are warnings. Exit code 1 if there is a mistake; warnings do not count.
    """
    apps, problems, unchecked = _load_checked(folder)
    if as_json:
        say_json(_check_json(apps, problems, unchecked))
    else:
        _print_check(apps, problems, unchecked)
    if has_mistakes(problems):
        raise typer.Exit(OTHER)


def check(
    folder: AppOrExamples = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Check an app folder before it is published.

    Reports what `perdure skills check` does. If a stack runs, also counts its open approvals that the folder's versions
    of the tools make outdated. Exit code 1 if there is a mistake; outdated approvals do not count.
    """
    apps, problems, unchecked = _load_checked(folder)
    outdated = _outdated_by(apps, as_name) if has_server() else None
    not_compared = sorted(name for app in apps for name in app.servers_without_lock)
    if as_json:
        say_json(_check_json(apps, problems, unchecked) | {"outdated": outdated, "not_compared": not_compared})
    else:
        _print_check(apps, problems, unchecked)
        tools = ", ".join(f"{tool} ({count})" for tool, count in sorted((outdated or {}).items()))
        if outdated is None:
            say("Open approvals were not compared, because no stack of this folder runs and PERDURE_URL is not set.")
        elif tools:
            say(OUTDATED_BY_VERSION.format(count=outdated.total(), tools=tools))
        else:
            say("No open approval becomes outdated.")
        if outdated is not None and not_compared:
            say(
                f"Not compared: the tools of the MCP servers {', '.join(not_compared)}, which have no lock and are not "
                "contacted."
            )
    if has_mistakes(problems):
        raise typer.Exit(OTHER)


def _outdated_by(apps: Sequence[App], as_name: str | None) -> Counter[str]:
    """Returns how many open approvals these apps make outdated, by tool, by the rule of `perdure up`. The tools of MCP
    servers without a lock are left out."""
    from perdure.apps.registry import published_from_locks  # as in `_load_checked`

    to_publish = {agent.definition.id: agent for app in apps for agent in published_from_locks(app)}
    unknown = {agent.id: app.servers_without_lock for app in apps for agent in app.agents}
    outdated: Counter[str] = Counter()
    with connect(Role.REVIEWER, as_name) as client:
        tools_of = cache(partial(_published_tools, client))
        outdated.update(
            each.tool
            for each in _open_approvals(client)
            if not each.outdated
            and each.agent in to_publish
            and server_of(each.tool, unknown[each.agent]) is None
            and _is_outdated_by(each, to_publish[each.agent], tools_of)
        )
    return outdated


def _open_approvals(client: Client) -> Iterator[Approval]:
    """Returns the requests and the approvals whose call can still start. Approved checkpoints and answers, which stay
    approved, are not read."""
    for status, kind in (("pending", None), ("approved", RequestKind.APPROVAL), ("edited", None)):
        read = partial(client.approvals.list, status=status, kind=kind, brief=True, limit=_PAGE_ITEMS)
        cursor: str | None = None
        while True:
            page = send_within_limit(partial(read, cursor=cursor))
            yield from page.items
            cursor = page.next
            if cursor is None:
                break


def _published_tools(client: Client, agent_id: str) -> dict[str, AgentTool]:
    """Returns the published tools of an agent by their names; none if it is not published."""
    try:
        return {tool.name: tool for tool in send_within_limit(partial(client.agents.tools, agent_id)).items}
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return {}
        raise


def _is_outdated_by(
    approval: Approval, agent: PublishedAgent, tools_of: Callable[[str], Mapping[str, AgentTool]]
) -> bool:
    if not has_call_ahead(approval.status, approval.kind, approval.tool):
        return False
    card, version = agent.card(approval.tool), approval.tool_version
    in_force = InForce.of(agent, approval.tool, approval.risk)
    if outdated_reason(approval.policy_digest, version, in_force) is not None or card is None:
        return True
    if card.version == version:
        return False
    # The approval names the version by rule 1, which ends when the code changes.
    before = tools_of(approval.agent).get(approval.tool)
    return not without_outlived_version(card, before).is_version(version)


def _load_checked(folder: Path | None) -> tuple[Sequence[App], list[AppProblem], str]:
    """Returns the apps of a folder or the examples, their problems, and why code blocks were not checked."""
    if folder is not None and not folder.is_dir():
        raise fail(f"{folder} is not a folder", USAGE)
    if folder is not None and (folder / "SKILL.md").is_file():
        raise fail(f"{folder} is a skill; pass the app folder, {folder.absolute().parents[1]}", USAGE)
    # imported here, because it loads half of the engine for this command only
    from perdure.apps import app_folders
    from perdure.apps.registry import load_apps, load_one_app, unsent_tool_warnings
    from perdure.settings import Settings

    settings = Settings.read()
    sandbox, seconds = settings.sandbox(), settings.request_seconds
    loading = (
        load_apps(app_folders((), True), sandbox, examples=True, expires_seconds=seconds)
        if folder is None
        else load_one_app(folder, sandbox, examples=True, expires_seconds=seconds)
    )
    loaded = asyncio.run(loading)
    problems = [problem for app in loaded.apps for problem in (*app.problems, *unsent_tool_warnings(app))]
    return loaded.apps, problems, loaded.unchecked


def _check_json(apps: Sequence[App], problems: list[AppProblem], unchecked: str) -> dict[str, object]:
    skills = [_skills_json(app) for app in apps]
    return {"apps": skills, "problems": [*map(_problem_json, problems)], "unchecked": unchecked}


def _print_check(apps: Sequence[App], problems: list[AppProblem], unchecked: str) -> None:
    for problem in problems:
        sys.stdout.write(escape_terminal(_problem_line(problem)) + "\n")
    if unchecked:
        say(f"warning: the types of code blocks were not checked, nor their examples run: {unchecked}")
    say(_summary(apps, problems))


def _problem_line(problem: AppProblem) -> str:
    """Returns the problem as a line. Its file is relative to the current folder if it is inside."""
    current_folder = Path.cwd()
    file = problem.file.relative_to(current_folder) if problem.file.is_relative_to(current_folder) else problem.file
    return str(AppProblem(file, problem.line, problem.message, problem.warning))


def _summary(apps: Sequence[App], problems: list[AppProblem]) -> str:
    mistakes = sum(not problem.warning for problem in problems)
    warnings = len(problems) - mistakes
    skills = [skill for app in apps for skill in app.skills.values()]
    blocks = sum(len(skill.blocks) for skill in skills)
    agents = sum(len(app.agents) for app in apps)
    valid = f"{_count_text(len(skills), 'skill')}, {_count_text(blocks, 'code block')}, {_count_text(agents, 'agent')}"
    subject = apps[0].name if len(apps) == 1 else _count_text(len(apps), "app")
    return f"{subject}: {_count_text(mistakes, 'mistake')}, {_count_text(warnings, 'warning')}; valid: {valid}"


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _skills_json(app: App) -> dict[str, object]:
    return {
        "app": app.name,
        "folder": str(app.folder),
        "agents": [agent.id for agent in app.agents],
        "skills": [*app.skills],
    }


def _problem_json(problem: AppProblem) -> dict[str, object]:
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
    changes: Difference = field(default_factory=Difference)
    details: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """True if the lock was written, is unchanged or does not exist yet."""
        return self.state in ("written", "same", "unlocked")


@mcp_app.callback()
def mcp_group() -> None:
    """Check and lock the MCP servers of an app folder."""


@mcp_app.command("lock")
def lock(folder: AppFolder, as_json: AsJson = False) -> None:
    """Write the tools of each MCP server of an app to its lock file.

    The file is mcp/<server>.lock.json; the changes are printed. Starts or contacts the servers, as the stack does. A
    server with a lock file is published from it without being contacted. Calls to a tool that differs from the lock are
    refused, so review the changes before you commit them. If a server does not answer, its lock is kept and the exit
    code is 1.
    """
    app, listings = _list_servers(folder)
    _report_outcomes(
        app, [_write_server_lock(app.folder, server, listing) for server, listing in listings.items()], as_json
    )


@mcp_app.command("check")
def check_mcp(folder: AppFolder, as_json: AsJson = False) -> None:
    """Compare each MCP server of an app with its lock file. Exit code 1 if they differ.

    A lock that cannot be read or a server that does not answer also counts as a difference. A server without a lock is
    reported and is not an error. Nothing is written.
    """
    app, listings = _list_servers(folder)
    _report_outcomes(
        app, [_check_server_lock(app.folder, server, listing) for server, listing in listings.items()], as_json
    )


def _list_servers(folder: Path) -> tuple[App, dict[str, McpServerListing]]:
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


def _write_server_lock(folder: Path, server: str, listing: McpServerListing) -> _Outcome:
    if listing.lock is None:
        return _Outcome(server, "failed", details=listing.problems)
    path = lock_path(folder, server)
    before = read_lock(path)[0] if path.exists() else None
    changes = difference(before, listing.lock)
    if before == listing.lock and not changes:
        return _Outcome(server, "same", len(listing.lock.tools), details=listing.problems)
    try:
        problems = write_lock(path, listing.lock)
    except OSError as error:
        return _Outcome(server, "failed", details=(f"{path}: cannot write: {error.strerror}",))
    if problems:
        return _Outcome(server, "failed", details=tuple(map(str, problems)))
    return _Outcome(server, "written", len(listing.lock.tools), changes, listing.problems)


def _check_server_lock(folder: Path, server: str, listing: McpServerListing) -> _Outcome:
    path = lock_path(folder, server)
    if listing.lock is None:
        return _Outcome(server, "failed", details=listing.problems)
    if not path.exists():
        return _Outcome(server, "unlocked", len(listing.lock.tools), details=listing.problems)
    before, problems = read_lock(path)
    if before is None:
        return _Outcome(server, "failed", details=tuple(map(str, problems)))
    changes = difference(before, listing.lock)
    return _Outcome(server, "differs" if changes else "same", len(listing.lock.tools), changes, listing.problems)


def _report_outcomes(app: App, outcomes: list[_Outcome], as_json: bool) -> None:
    """Writes the results. Exits with 1 if one is not good."""
    if as_json:
        say_json({"app": app.name, "servers": [_lock_json(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _print_outcome(outcome)
    if not all(outcome.is_ok for outcome in outcomes):
        raise typer.Exit(OTHER)


def _print_outcome(outcome: _Outcome) -> None:
    changes, changed = outcome.changes, outcome.changes.changed
    counts = f"{len(changes.added)} added, {len(changes.removed)} removed, {len(changed)} changed"
    tools = _count_text(outcome.tools, "tool")
    texts = {
        "written": f"lock written, {tools}: {counts}",
        "same": f"{tools}, matches its lock",
        "differs": f"differs from its lock: {counts}",
        "unlocked": f"{tools}, no lock; create one with `perdure mcp lock`",
        "failed": "failed",
    }
    say(f"{outcome.server}: {texts[outcome.state]}")
    for name in changes.added:
        say(f"  added    {name}")
    for name in changes.removed:
        say(f"  removed  {name}")
    for name, fields in changed.items():
        say(f"  changed  {name} ({', '.join(fields)})")
    for detail in outcome.details:
        say(f"  {detail}")


def _lock_json(outcome: _Outcome) -> dict[str, Any]:
    changes = outcome.changes
    return {
        "server": outcome.server,
        "state": outcome.state,
        "tools": outcome.tools,
        "added": list(changes.added),
        "removed": list(changes.removed),
        "changed": {name: list(fields) for name, fields in changes.changed.items()},
        "problems": list(outcome.details),
    }


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Create a small, complete app in DIR as a starting point."""
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
