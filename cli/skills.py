"""`perdure skills`: what an app folder says of its skills, and what is wrong with it. Needs nothing that runs."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import OTHER, USAGE
from cli.screen import AsJson, fail, say, say_json
from perdure.apps import App, AppProblem, has_mistakes
from policy.printable import printable

app = typer.Typer(help="The skills of an app folder.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """The skills of an app folder."""


@app.command("check")
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", show_default=False, help="An app folder; without it, the apps that ship."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell every mistake in an app folder with its file and line: skills, code blocks, rules, personas, data, agents.

    Nothing has to run. The app's tools/*.py are imported, as a worker imports them. Where a sandbox can be opened the
    types of code blocks are checked and the examples of their cards run. Exit code 1 where there is a mistake; a
    warning is told and changes nothing.
    """
    if folder is not None and not folder.is_dir():
        raise fail(f"{folder} is no folder", USAGE)
    if folder is not None and (folder / "SKILL.md").is_file():
        raise fail(f"{folder} is a skill; name the app folder, {folder.absolute().parents[1]}", USAGE)
    from catalogue import one_app, shipped_and_own  # here: it brings half of the engine, for this command alone
    from settings import Settings

    settings = Settings()
    sandbox, seconds = settings.sandbox(), settings.request_seconds
    looking = (
        shipped_and_own((), sandbox, examples=True, expires_seconds=seconds)
        if folder is None
        else one_app(folder, sandbox, examples=True, expires_seconds=seconds)
    )
    found = asyncio.run(looking)
    apps = found.apps
    problems = [problem for each in apps for problem in each.problems]
    if as_json:
        shown = {"apps": [_shown(each) for each in apps], "problems": [_told(problem) for problem in problems]}
        say_json({**shown, "unchecked": found.unchecked})
    else:
        for problem in problems:
            sys.stdout.write(printable(_line(problem)) + "\n")
        if found.unchecked:
            say(f"warning: the types of code blocks were not checked, nor their examples run: {found.unchecked}")
        say(_summary(apps, problems))
    if has_mistakes(problems):
        raise typer.Exit(OTHER)


def _line(problem: AppProblem) -> str:
    """The problem, its file named from here where it lies below."""
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
    return f"{where}: {_counted(mistakes, 'mistake')}, {_counted(warnings, 'warning')}; without a mistake: {loaded}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _shown(each: App) -> dict[str, object]:
    return {
        "app": each.name,
        "folder": str(each.folder),
        "agents": [agent.id for agent in each.agents],
        "skills": [*each.skills],
    }


def _told(problem: AppProblem) -> dict[str, object]:
    return {
        "file": str(problem.file),
        "line": problem.line,
        "message": problem.message,
        "warning": problem.warning,
    }
