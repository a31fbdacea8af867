"""An app folder: agents, tools, skills, personas, rules and data. The examples and a user's own come in here.

All mistakes of all files are reported together, and what has none is loaded. A rule of the app's own that cannot be
read keeps all its agents back: they would run without it.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from perdure.apps.agents import Engine, read_agent
from perdure.apps.code_blocks import BlockScope, block_names
from perdure.apps.context_assembly import read_pipelines
from perdure.apps.files import (
    AppProblem,
    YamlFile,
    did_you_mean,
    has_mistakes,
    parse_json,
    read_text,
    read_yaml,
    stray_links,
)
from perdure.apps.mcp import read_locks, read_servers
from perdure.apps.rules import RuleScope, read_rule_files
from perdure.apps.skills import Content, SkillScope, read_skills, skill_folders
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import CallerError
from perdure.contracts.mcp import McpLock, McpServer
from perdure.contracts.skills import SKILL_ID_PATTERN, DataTable, Rule, Skill
from perdure.contracts.values import digest_of, sha256_hex
from perdure.core.egress import Named, Outbound, named_by_url, named_host
from perdure.sdk.tools import Tool, ToolDefinitionError

SHIPPED = Path(__file__).parents[1] / "examples"
"""The apps that ship: data, published only if they are asked for. `perdure/local/config.py` reads the same folder."""


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
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """The skill folders, by id; an agent's definition holds its own whole."""
    rules: tuple[Rule, ...] = ()
    """Of the app's own, for all its agents."""
    tables: Mapping[str, DataTable] = field(default_factory=dict)
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """MCP servers, by name."""
    locks: Mapping[str, McpLock] = field(default_factory=dict)
    """By server, of those that have one."""
    egress: tuple[Named, ...] = ()
    """Hosts that its tools may reach although their addresses are not public."""
    services: tuple[str, ...] = ()
    """The variables that hold the addresses of its companions."""
    unread: tuple[str, ...] = ()
    """The names of agents whose files are there, and which are not: for their own mistakes or for others'."""

    def outbound(self, operators: Outbound, value_of: Callable[[str], str | None]) -> Outbound:
        """What its tools may reach: beside what the operator has named, the hosts under `egress:`, its companions and
        the addresses among the credentials of its tools. `value_of` reads a variable of the environment."""
        secrets = sorted({name for tool in self.tools.values() for name in tool.card.secrets})
        variables = [*self.services, *(f"PERDURE_SECRET_{name.upper()}" for name in secrets)]
        addresses = [named_by_url(value_of(name) or "", by_operator=False) for name in variables]
        return operators.naming(*self.egress, *addresses)


def app_folders(own: Sequence[Path], examples: bool) -> tuple[Path, ...]:
    """The app folders of an installation: the examples first, if they are asked for, then `own` in its order. A folder
    that is named twice is there once."""
    shipped = sorted(path.parent for path in SHIPPED.glob("*/agents") if path.is_dir()) if examples else ()
    found: dict[str, Path] = {}
    for folder in (*shipped, *own):
        found.setdefault(os.path.realpath(folder), folder)
    return tuple(found.values())


def find_apps(given: Sequence[Path], engine: Engine | None = None) -> list[App]:
    """The apps in these folders; an app or an agent whose name an earlier one has is left out."""
    apps: list[App] = []
    folders: dict[str, Path] = {}
    owners: dict[str, str] = {}
    for folder in given:
        app = load_app(folder, engine)
        if app.name in folders:
            problem = AppProblem(folder, None, f"an app named {app.name} is in {folders[app.name]} already")
            apps.append(App(app.name, app.title, app.folder, problems=(*app.problems, problem)))
            continue
        folders[app.name] = folder
        doubled = [agent for agent in app.agents if agent.id in owners]
        problems = [
            AppProblem(folder / "agents", None, f"the agent {agent.id} is in the app {owners[agent.id]} already")
            for agent in doubled
        ]
        kept = tuple(agent for agent in app.agents if agent.id not in owners)
        owners |= {agent.id: app.name for agent in kept}
        unread = (*app.unread, *(agent.id for agent in doubled))
        apps.append(replace(app, agents=kept, problems=(*app.problems, *problems), unread=unread))
    return apps


def load_app(folder: Path, engine: Engine | None = None) -> App:
    """The app in `folder`. Never raises for what is in it: mistakes are in `problems`."""
    folder, engine = folder.absolute(), engine or Engine()
    if strays := tuple(stray_links(folder)):  # before anything of it is read, or run as a tool's file is
        return App(folder.name, folder.name, folder, problems=strays)
    own, problems = read_app_file(folder)
    if not (folder / "agents").is_dir():
        problems.append(AppProblem(folder, None, "is not an app folder: it has no agents/"))
        return App(own.name, own.title, folder, problems=tuple(problems))
    return _Reading(folder, engine, own, problems).app()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One app folder while it is read; what is wrong comes together in `problems`."""

    folder: Path
    engine: Engine
    own: "AppFile"
    problems: list[AppProblem]

    def _take(self, read: tuple[T, list[AppProblem]]) -> T:
        """What was read; its problems are kept."""
        self.problems.extend(read[1])
        return read[0]

    def app(self) -> App:
        folder, own, core = self.folder, self.own, self.engine.core_tools
        tools, found, lost = read_tools(folder, core)
        self.problems.extend(found)
        pipelines = self._take(read_pipelines(folder, tools, lost))
        tables = self._take(read_tables(folder))
        personas = self._take(_read_personas(folder))
        named = {*tools, *lost, *core} | {name for skill in skill_folders(folder) for name in block_names(skill)}
        servers, locks = self._servers(named)
        blocks = self._block_scope(tools, lost, tables)
        skills = self._take(read_skills(folder, SkillScope(own.name, personas, named, blocks)))
        rules, rule_problems = read_rule_files(folder, RuleScope(own.name, "", named))
        self.problems.extend(rule_problems)
        reserved, fenced = frozenset(blocks.reserved), frozenset(own.fenced)
        content = Content(tools, skills, personas, reserved, fenced, lost, pipelines, servers)
        agents, read = self._agents(content, has_rules=not has_mistakes(rule_problems))
        return App(
            own.name,
            own.title,
            folder,
            tuple(agents.values()),
            tools,
            tuple(self.problems),
            skills.skills,
            rules,
            {name: table for name, table in tables.items() if table is not None},
            servers,
            {name: lock for name, lock in locks.items() if lock is not None},
            own.egress,
            own.services,
            tuple(path.stem for path in _agent_files(folder) if path not in read),
        )

    def _servers(self, named: set[str]) -> tuple[dict[str, McpServer], dict[str, McpLock | None]]:
        """The MCP servers whose lock can be read, and the locks; the names of their tools are added to `named`."""
        servers = self._take(read_servers(self.folder, named))
        named |= {server.prefix + tool for server in servers.values() for tool in server.tools}
        locks = self._take(read_locks(self.folder, servers))
        return {name: server for name, server in servers.items() if locks.get(name, server) is not None}, locks

    def _block_scope(
        self, tools: Mapping[str, Tool], lost: Collection[str], tables: Mapping[str, DataTable | None]
    ) -> BlockScope:
        """What code blocks may name; a fenced tool that is not there is told."""
        registered = {*self.engine.core_tools, *(name for name in tools if name not in self.own.fenced)}
        self.problems.extend(
            AppProblem(self.folder / "app.yaml", None, f"fenced: unknown tool {name!r}{did_you_mean(name, tools)}")
            for name in self.own.fenced
            if name not in tools and name not in lost
        )
        reserved = {*self.engine.reserved, *self.own.reserved}
        return BlockScope(registered, reserved, tables, self.engine.check_block, self.engine.try_block)

    def _agents(self, content: Content, *, has_rules: bool) -> tuple[dict[str, AgentDefinition], list[Path]]:
        """The agents by id, and the files that they are in; none where the app's rules have a mistake."""
        agents, read, found = _read_agents(self.folder, content, self.engine)
        self.problems.extend(found)
        if agents and not has_rules:
            why = "has a mistake, so no agent of this app is loaded: they would run without its rules"
            self.problems.append(AppProblem(self.folder / "rules", None, why))
            agents, read = {}, []
        if not agents and not self.problems:
            self.problems.append(AppProblem(self.folder / "agents", None, "has no agent: add one as a .yaml file"))
        return agents, read


def load_servers(folder: Path) -> App:
    """The app in `folder` with its MCP servers alone, whatever their locks say; nothing of it is run."""
    folder = folder.absolute()
    if strays := tuple(stray_links(folder)):
        return App(folder.name, folder.name, folder, problems=strays)
    own, problems = read_app_file(folder)
    servers, found = read_servers(folder, ())
    return App(own.name, own.title, folder, problems=(*problems, *found), servers=servers)


def _read_personas(folder: Path) -> tuple[dict[str, str | None], list[AppProblem]]:
    """The texts of personas/*.md by key; None for one with mistakes."""
    read = {path.stem: read_text(path) for path in sorted(folder.glob("personas/*.md"))}
    texts = {key: None if isinstance(text, AppProblem) else text.strip() for key, text in read.items()}
    return texts, [text for text in read.values() if isinstance(text, AppProblem)]


def _agent_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "agents").iterdir() if path.suffix in (".yaml", ".yml"))


def _read_agents(
    folder: Path, content: Content, engine: Engine
) -> tuple[dict[str, AgentDefinition], list[Path], list[AppProblem]]:
    """The agents by id, and the files that they are in."""
    agents: dict[str, AgentDefinition] = {}
    origins: dict[str, Path] = {}
    problems: list[AppProblem] = []
    for path in _agent_files(folder):
        agent, found = read_agent(path, content, engine)
        problems += found
        if agent is None:
            continue
        if agent.id in agents:
            problems.append(AppProblem(path, None, f"the agent {agent.id} is in {origins[agent.id].name} already"))
            continue
        agents[agent.id], origins[agent.id] = agent, path
    return agents, [*origins.values()], problems


# --- `app.yaml`: the app's name, the names that its agents may not use freely, and the hosts that its tools may reach.
# The companions are read by perdure/local/programs.py; here only the variables that hold their addresses are.

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_FIELDS = ("name", "title", "companions", "egress", "reserved", "fenced")
_ENGINE = "platform"
"""The engine's own name in the ids of rules."""


@dataclass(frozen=True, slots=True)
class AppFile:
    """What an app says of itself."""

    name: str
    title: str
    reserved: tuple[str, ...] = ()
    """Names that are kept and never offered, neither as a tool nor as a code block (S0-50)."""
    fenced: tuple[str, ...] = ()
    """Tools that may share a name with a code block; only an agent without skills may name them (S0-42)."""
    egress: tuple[Named, ...] = ()
    """Hosts that its tools may reach although their addresses are not public."""
    services: tuple[str, ...] = ()
    """The variables that hold the addresses of its companions."""


def read_app_file(folder: Path) -> tuple[AppFile, list[AppProblem]]:
    """What the app in `folder` says; without the file, or where it has mistakes, what the folder's name says."""
    fallback = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-")
    fallback = fallback if fallback not in ("", _ENGINE) else "app"
    path = folder / "app.yaml"
    if not path.is_file():
        return AppFile(fallback, fallback), []
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return AppFile(fallback, fallback), file
    if not isinstance(file.value, dict):
        return AppFile(fallback, fallback), [file.problem((), "must be a list of fields with their values")]
    problems = [
        file.problem((key,), f"unknown field {key!r}{did_you_mean(key, _FIELDS)}")
        for key in file.value
        if key not in _FIELDS
    ]
    name = file.value.get("name", fallback)
    if not isinstance(name, str) or not _NAME.match(name):
        problems.append(file.problem(("name",), "name: lower-case letters, digits, - and _, starting with a letter"))
        name = fallback
    elif name == _ENGINE:
        problems.append(file.problem(("name",), f"name: {_ENGINE} is the engine's own; choose another"))
        name = fallback
    title = file.value.get("title", name)
    if not isinstance(title, str):
        problems.append(file.problem(("title",), "title: must be text"))
        title = name
    reserved, fenced = (_names(file.value, field, file, problems) for field in ("reserved", "fenced"))
    return AppFile(name, title, reserved, fenced, _egress(file, problems), _services(file.value)), problems


def _egress(file: YamlFile, problems: list[AppProblem]) -> tuple[Named, ...]:
    named = []
    for entry in _names(file.value, "egress", file, problems):
        try:
            named.append(named_host(entry, by_operator=False))
        except CallerError as error:
            problems.append(file.problem(("egress",), f"egress: {error.message}"))
    return tuple(named)


def _services(value: Mapping[str, Any]) -> tuple[str, ...]:
    companions = value.get("companions")
    listed = companions if isinstance(companions, list) else []
    found = [each.get("url_env") for each in listed if isinstance(each, dict)]
    return tuple(name for name in found if isinstance(name, str))


def _names(value: Mapping[str, Any], field: str, file: YamlFile, problems: list[AppProblem]) -> tuple[str, ...]:
    listed = value.get(field, [])
    if not isinstance(listed, list):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
        return ()
    names = tuple(each for each in listed if isinstance(each, str))
    if len(names) < len(listed):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
    return names


# --- The data tables of an app: `data/<table>.json`, an object that says in `_about` what it is, and whether made up.

MOST_TABLE_BYTES = 1_048_576
"""A sandboxed call is handed the whole table."""


def read_tables(folder: Path) -> tuple[dict[str, DataTable | None], list[AppProblem]]:
    """The tables of the app in `folder` by name; None for one with mistakes."""
    tables: dict[str, DataTable | None] = {}
    problems: list[AppProblem] = []
    for path in sorted(folder.glob("data/*.json")):
        body = _read_table(path)
        if isinstance(body, AppProblem):
            problems.append(body)
            tables[path.stem] = None
        else:
            tables[path.stem] = DataTable(name=path.stem, digest=digest_of(body), body=body)
    return tables, problems


def _read_table(path: Path) -> dict[str, Any] | AppProblem:
    if not re.fullmatch(SKILL_ID_PATTERN, path.stem):
        return AppProblem(path, None, "a table's name has lower-case letters, digits and _, starting with a letter")
    text = read_text(path, MOST_TABLE_BYTES)
    if isinstance(text, AppProblem):
        return text
    body = parse_json(path, text, "the table")
    if isinstance(body, AppProblem):
        return body
    if not isinstance(body, dict):
        return AppProblem(path, 1, 'must be one JSON object, with "_about" beside the data')
    about = body.get("_about")
    if not isinstance(about, str) or not about.strip():
        return AppProblem(path, 1, 'needs "_about": a text that says what the data is, and whether it is made up')
    return body


# --- The tools of an app folder: every `tools/*.py`, imported by path under a package name of its own.
# Two apps may both have a `tools/payments.py`. A file whose name starts with `_` is only for the others to import
# (`from . import _client`). A file that fails takes only its own tools with it.

_TOOL = re.compile(r"^@(?:\w+\.)?tool\b.*?^(?:async\s+)?def\s+(\w+)", re.MULTILINE | re.DOTALL)
"""A tool as its file writes it, read where the file cannot be imported."""


def read_tools(folder: Path, taken: Collection[str]) -> tuple[dict[str, Tool], list[AppProblem], dict[str, Path]]:
    """The tools of the app in `folder` by name, what is wrong, and the tools that a broken file takes with it, by name
    with that file; `taken` are the core tools' names, which no app may reuse (S0-50)."""
    tools: dict[str, Tool] = {}
    origins: dict[str, Path] = {}
    problems: list[AppProblem] = []
    lost: dict[str, Path] = {}
    place = folder / "tools"
    if not place.is_dir():
        return tools, problems, lost
    package = _fresh_package(place)
    for path in sorted(place.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        found = _tools_in(f"{package}.{path.stem}", path)
        if isinstance(found, AppProblem):
            problems.append(found)
            lost |= dict.fromkeys(_TOOL.findall(path.read_text(encoding="utf-8", errors="replace")), path)
            continue
        for tool in found:
            name, line = tool.card.name, _line_of(tool)
            if name in taken:
                problems.append(AppProblem(path, line, f"{name} is the name of a core tool; choose another"))
            elif name in tools:
                problems.append(AppProblem(path, line, f"the tool {name} is in {origins[name].name} already"))
            else:
                tools[name], origins[name] = tool, path
    return tools, problems, {name: path for name, path in lost.items() if name not in tools and name not in taken}


def _fresh_package(place: Path) -> str:
    """A package that holds the files in `place`; what an earlier call imported from there is forgotten."""
    name = f"perdure_app_{sha256_hex(str(place.resolve()))[:12]}"
    for module in [module for module in list(sys.modules) if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(place)]
    sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _tools_in(module_name: str, path: Path) -> list[Tool] | AppProblem:
    if not path.stem.isidentifier():
        return AppProblem(path, None, f"the file name must be a Python name, such as {path.stem.replace('-', '_')}.py")
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as error:
        return AppProblem(Path(error.filename or path), error.lineno, f"is not Python: {error.msg}")
    except ToolDefinitionError as error:
        return AppProblem(path, _line_in(path, error), str(error))
    except (Exception, SystemExit) as error:  # an app's module runs at import and may raise anything
        return AppProblem(path, _line_in(path, error), f"cannot be imported: {type(error).__name__}: {error}")
    own = [value for value in vars(module).values() if isinstance(value, Tool)]
    return [tool for tool in own if tool.function.__module__ == module_name]


def _line_in(path: Path, error: BaseException) -> int | None:
    """The last line of `path` that was running when `error` was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno if frames else None


def _line_of(tool: Tool) -> int | None:
    code = getattr(tool.function, "__code__", None)
    return code.co_firstlineno if code else None
