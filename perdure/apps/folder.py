"""An app folder: agents/*.yaml, tools/*.py and an optional app.yaml. The shipped apps and a user's own come in here.

All mistakes of all files are reported together, and what has none is loaded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from contracts.agents import AgentDefinition
from perdure.apps.agent_file import read_agent
from perdure.apps.engine import Engine
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.tool_files import read_tools
from perdure.apps.yaml_file import YamlFile, read_yaml
from perdure.tools import Tool

SHIPPED = Path(__file__).parents[2] / "apps"
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,63}$")
_FIELDS = ("name", "title", "companions")


@dataclass(frozen=True, slots=True)
class App:
    """One app folder as it was loaded."""

    name: str
    title: str
    folder: Path
    agents: tuple[AgentDefinition, ...] = ()
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """By name. The same name in another app is another tool."""
    problems: tuple[AppProblem, ...] = ()


def find_apps(extra: Sequence[Path] = (), engine: Engine | None = None) -> list[App]:
    """The shipped apps, then those in `extra`; an app or an agent that takes a name already taken is left out."""
    shipped = sorted(path.parent for path in SHIPPED.glob("*/agents") if path.is_dir())
    apps: list[App] = []
    folders: dict[str, Path] = {}
    owners: dict[str, str] = {}
    for folder in (*shipped, *extra):
        app = load_app(folder, engine)
        if app.name in folders:
            problem = AppProblem(folder, None, f"an app named {app.name} is in {folders[app.name]} already")
            apps.append(replace(app, agents=(), tools={}, problems=(*app.problems, problem)))
            continue
        folders[app.name] = folder
        doubled = [agent for agent in app.agents if agent.id in owners]
        problems = [
            AppProblem(folder / "agents", None, f"the agent {agent.id} is in the app {owners[agent.id]} already")
            for agent in doubled
        ]
        kept = tuple(agent for agent in app.agents if agent.id not in owners)
        owners |= {agent.id: app.name for agent in kept}
        apps.append(replace(app, agents=kept, problems=(*app.problems, *problems)))
    return apps


def load_app(folder: Path, engine: Engine | None = None) -> App:
    """The app in `folder`. Never raises for what is in it: mistakes are in `problems`."""
    folder, engine = folder.absolute(), engine or Engine()
    name, title, problems = _read_app_file(folder)
    if not (folder / "agents").is_dir():
        problems.append(AppProblem(folder, None, "is not an app folder: it has no agents/"))
        return App(name, title, folder, problems=tuple(problems))
    tools, tool_problems = read_tools(folder, engine.core_tools)
    problems += tool_problems
    agents: dict[str, AgentDefinition] = {}
    origins: dict[str, Path] = {}
    for path in sorted(path for path in (folder / "agents").iterdir() if path.suffix in (".yaml", ".yml")):
        agent, agent_problems = read_agent(path, tools, engine)
        problems += agent_problems
        if agent is None:
            continue
        if agent.id in agents:
            problems.append(AppProblem(path, None, f"the agent {agent.id} is in {origins[agent.id].name} already"))
            continue
        agents[agent.id], origins[agent.id] = agent, path
    if not agents and not problems:
        problems.append(AppProblem(folder / "agents", None, "has no agent: add one as a .yaml file"))
    return App(name, title, folder, tuple(agents.values()), tools, tuple(problems))


def _read_app_file(folder: Path) -> tuple[str, str, list[AppProblem]]:
    """Name and title of the app. What is under `companions` is read by local/companions.py."""
    fallback = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    path = folder / "app.yaml"
    if not path.is_file():
        return fallback, fallback, []
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return fallback, fallback, file
    if not isinstance(file.value, dict):
        return fallback, fallback, [file.problem((), "must be a list of fields with their values")]
    problems = [
        file.problem((key,), f"unknown field {key!r}{did_you_mean(key, _FIELDS)}")
        for key in file.value
        if key not in _FIELDS
    ]
    name = file.value.get("name", fallback)
    if not isinstance(name, str) or not _NAME.match(name):
        problems.append(file.problem(("name",), "name: lower-case letters, digits, - and _, starting with a letter"))
        name = fallback
    title = file.value.get("title", name)
    if not isinstance(title, str):
        problems.append(file.problem(("title",), "title: must be text"))
        title = name
    return name, title, problems
