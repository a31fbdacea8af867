"""Loads an app folder: agents, tools, skills, personas, rules and data, for the examples and for a user's own apps.

All mistakes of all files are reported together, and the valid parts are loaded. If one of the app's own rules is
unreadable, none of its agents is loaded, because they would run without the rule.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
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
from perdure.core.egress import NamedHost, Outbound, named_by_url, named_host
from perdure.sdk.tools import Tool, ToolDefinitionError

SHIPPED = Path(__file__).parents[1] / "examples"
"""The apps that ship with Perdure: data that is published only on request. `perdure/local/config.py` reads the same
folder."""
T = TypeVar("T")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_FIELDS = ("name", "title", "companions", "egress", "reserved", "fenced")
_ENGINE = "platform"
"""The engine's own name in the ids of rules."""
MAX_TABLE_BYTES = 1_048_576
"""Maximum size, because a sandboxed call receives the whole table."""
_TOOL = re.compile(r"^@(?:\w+\.)?tool\b.*?^(?:async\s+)?def\s+(\w+)", re.MULTILINE | re.DOTALL)
"""A tool as its file declares it, read without importing the file."""


@dataclass(frozen=True, slots=True)
class App:
    """A loaded app folder."""

    name: str
    title: str
    folder: Path
    agents: tuple[AgentDefinition, ...] = ()
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """Tools by name. The same name in another app is another tool."""
    problems: tuple[AppProblem, ...] = ()
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """The skill folders, by id. An agent's definition contains its own skills completely."""
    rules: tuple[Rule, ...] = ()
    """The app's own rules, for all its agents."""
    tables: Mapping[str, DataTable] = field(default_factory=dict)
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """MCP servers, by name."""
    locks: Mapping[str, McpLock] = field(default_factory=dict)
    """Locks by server, for those that have one."""
    egress: tuple[NamedHost, ...] = ()
    """Hosts that its tools can reach although their addresses are not public."""
    services: tuple[str, ...] = ()
    """The variables with the addresses of its app services."""
    unread: tuple[str, ...] = ()
    """The names of agents whose files exist but that were not loaded, for their own mistakes or for others'."""

    @property
    def servers_without_lock(self) -> dict[str, McpServer]:
        """The MCP servers whose tools are known only after a contact, by name."""
        return {name: server for name, server in self.servers.items() if name not in self.locks}

    def outbound(self, operators: Outbound, value_of: Callable[[str], str | None]) -> Outbound:
        """Returns the settings for requests of its tools.

        Besides the operator's hosts, they allow the hosts under `egress:`, the app services and the addresses in the
        secrets of its tools. `value_of` reads an environment variable.
        """
        secrets = sorted({name for tool in self.tools.values() for name in tool.card.secrets})
        variables = [*self.services, *(f"PERDURE_SECRET_{name.upper()}" for name in secrets)]
        addresses = [named_by_url(value_of(name) or "", by_operator=False) for name in variables]
        return operators.with_hosts(*self.egress, *addresses)


def app_folders(selected: Sequence[Path], examples: bool) -> tuple[Path, ...]:
    """Returns the app folders of an installation: the examples first, if requested, then `selected` in its order. A
    folder that is named twice is returned once."""
    shipped = sorted(path.parent for path in SHIPPED.glob("*/agents") if path.is_dir()) if examples else ()
    folder_by_path: dict[str, Path] = {}
    for folder in (*shipped, *selected):
        folder_by_path.setdefault(os.path.realpath(folder), folder)
    return tuple(folder_by_path.values())


def find_apps(app_paths: Sequence[Path], engine: Engine | None = None) -> list[App]:
    """Loads the apps in these folders. An app or an agent whose name an earlier one has is left out."""
    apps: list[App] = []
    folders: dict[str, Path] = {}
    owners: dict[str, str] = {}
    for folder in app_paths:
        app = load_app(folder, engine)
        if app.name in folders:
            problem = AppProblem(folder, None, f"an app named {app.name} already exists in {folders[app.name]}")
            apps.append(App(app.name, app.title, app.folder, problems=(*app.problems, problem)))
            continue
        folders[app.name] = folder
        doubled = [agent for agent in app.agents if agent.id in owners]
        problems = [
            AppProblem(folder / "agents", None, f"the agent {agent.id} already exists in the app {owners[agent.id]}")
            for agent in doubled
        ]
        new_agents = tuple(agent for agent in app.agents if agent.id not in owners)
        owners |= {agent.id: app.name for agent in new_agents}
        unread = (*app.unread, *(agent.id for agent in doubled))
        apps.append(replace(app, agents=new_agents, problems=(*app.problems, *problems), unread=unread))
    return apps


def load_app(folder: Path, engine: Engine | None = None) -> App:
    """Loads the app in `folder`. It never raises for the folder's content: mistakes are in `problems`."""
    folder, engine = folder.absolute(), engine or Engine()
    if strays := tuple(stray_links(folder)):  # before any of it is read, or run as the file of a tool is
        return App(folder.name, folder.name, folder, problems=strays)
    app_file, problems = read_app_file(folder)
    if not (folder / "agents").is_dir():
        problems.append(AppProblem(folder, None, "is not an app folder: agents/ is missing"))
        return App(app_file.name, app_file.title, folder, problems=tuple(problems))
    return _Reading(folder, engine, app_file, problems).app()


@dataclass(frozen=True, slots=True)
class _Reading:
    """An app folder during loading; mistakes are collected in `problems`."""

    folder: Path
    engine: Engine
    app_file: "AppFile"
    problems: list[AppProblem]

    def _collect(self, read: tuple[T, list[AppProblem]]) -> T:
        """Returns the value and stores its problems."""
        self.problems.extend(read[1])
        return read[0]

    def app(self) -> App:
        folder, app_file, core = self.folder, self.app_file, self.engine.core_tools
        tools, tool_problems, lost = read_tools(folder, core)
        self.problems.extend(tool_problems)
        pipelines = self._collect(read_pipelines(folder, tools, lost))
        tables = self._collect(read_tables(folder))
        personas = self._collect(_read_personas(folder))
        named = {*tools, *lost, *core} | {name for skill in skill_folders(folder) for name in block_names(skill)}
        servers, locks = self._servers(named)
        blocks = self._block_scope(tools, lost, tables)
        skills = self._collect(read_skills(folder, SkillScope(app_file.name, personas, named, blocks)))
        rules, rule_problems = read_rule_files(folder, RuleScope(app_file.name, "", named))
        self.problems.extend(rule_problems)
        reserved, fenced = frozenset(blocks.reserved), frozenset(app_file.fenced)
        content = Content(tools, skills, personas, reserved, fenced, lost, pipelines, servers)
        agents, read = self._agents(content, has_rules=not has_mistakes(rule_problems))
        return App(
            app_file.name,
            app_file.title,
            folder,
            tuple(agents.values()),
            tools,
            tuple(self.problems),
            skills.skills,
            rules,
            {name: table for name, table in tables.items() if table is not None},
            servers,
            {name: lock for name, lock in locks.items() if lock is not None},
            app_file.egress,
            app_file.services,
            tuple(path.stem for path in _agent_files(folder) if path not in read),
        )

    def _servers(self, named: set[str]) -> tuple[dict[str, McpServer], dict[str, McpLock | None]]:
        """Returns the MCP servers with a readable lock, and the locks. The names of their tools are added to
        `named`."""
        servers = self._collect(read_servers(self.folder, named))
        named |= {server.prefix + tool for server in servers.values() for tool in server.tools}
        locks = self._collect(read_locks(self.folder, servers))
        return {name: server for name, server in servers.items() if locks.get(name, server) is not None}, locks

    def _block_scope(
        self, tools: Mapping[str, Tool], lost: Collection[str], tables: Mapping[str, DataTable | None]
    ) -> BlockScope:
        """Returns the environment for code blocks; a fenced tool that does not exist is reported."""
        registered = {*self.engine.core_tools, *(name for name in tools if name not in self.app_file.fenced)}
        self.problems.extend(
            AppProblem(self.folder / "app.yaml", None, f"fenced: unknown tool {name!r}{did_you_mean(name, tools)}")
            for name in self.app_file.fenced
            if name not in tools and name not in lost
        )
        reserved = {*self.engine.reserved, *self.app_file.reserved}
        return BlockScope(registered, reserved, tables, self.engine.check_block, self.engine.try_block)

    def _agents(self, content: Content, *, has_rules: bool) -> tuple[dict[str, AgentDefinition], list[Path]]:
        """Returns the agents by id, and their files. There are none if the app's rules have a mistake."""
        agents, read, agent_problems = _read_agents(self.folder, content, self.engine)
        self.problems.extend(agent_problems)
        if agents and not has_rules:
            message = "is invalid, so no agent of this app is loaded; they would run without its rules"
            self.problems.append(AppProblem(self.folder / "rules", None, message))
            agents, read = {}, []
        if not agents and not self.problems:
            self.problems.append(AppProblem(self.folder / "agents", None, "has no agent: add one as a .yaml file"))
        return agents, read


def load_servers(folder: Path) -> App:
    """Loads only the MCP servers of the app in `folder`, whatever their locks contain. None of its code runs."""
    folder = folder.absolute()
    if strays := tuple(stray_links(folder)):
        return App(folder.name, folder.name, folder, problems=strays)
    app_file, problems = read_app_file(folder)
    servers, server_problems = read_servers(folder, ())
    return App(app_file.name, app_file.title, folder, problems=(*problems, *server_problems), servers=servers)


def _read_personas(folder: Path) -> tuple[dict[str, str | None], list[AppProblem]]:
    """Returns the texts of personas/*.md by key; None for an invalid one."""
    read = {path.stem: read_text(path) for path in sorted(folder.glob("personas/*.md"))}
    texts = {key: None if isinstance(text, AppProblem) else text.strip() for key, text in read.items()}
    return texts, [text for text in read.values() if isinstance(text, AppProblem)]


def _agent_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "agents").iterdir() if path.suffix in (".yaml", ".yml"))


def _read_agents(
    folder: Path, content: Content, engine: Engine
) -> tuple[dict[str, AgentDefinition], list[Path], list[AppProblem]]:
    """Returns the agents by id, and their files."""
    agents: dict[str, AgentDefinition] = {}
    origins: dict[str, Path] = {}
    problems: list[AppProblem] = []
    for path in _agent_files(folder):
        agent, agent_problems = read_agent(path, content, engine)
        problems += agent_problems
        if agent is None:
            continue
        if agent.id in agents:
            problems.append(AppProblem(path, None, f"the agent {agent.id} already exists in {origins[agent.id].name}"))
            continue
        agents[agent.id], origins[agent.id] = agent, path
    return agents, [*origins.values()], problems


@dataclass(frozen=True, slots=True)
class AppFile:
    """The content of `app.yaml`. It has the app's name, reserved names, and the hosts that its tools can reach.
    perdure/local/programs.py reads the app services. Here, only the variables with their addresses are read."""

    name: str
    title: str
    reserved: tuple[str, ...] = ()
    """Names that are reserved and never offered, neither as a tool nor as a code block."""
    fenced: tuple[str, ...] = ()
    """Tools that can share a name with a code block; only an agent without skills can name them."""
    egress: tuple[NamedHost, ...] = ()
    """Hosts that its tools can reach although their addresses are not public."""
    services: tuple[str, ...] = ()
    """The variables with the addresses of its app services."""


def read_app_file(folder: Path) -> tuple[AppFile, list[AppProblem]]:
    """Returns the settings of the app in `folder`. If the file is missing or has mistakes, the app's name is the
    folder's."""
    fallback = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-")
    fallback = fallback if fallback not in ("", _ENGINE) else "app"
    path = folder / "app.yaml"
    if not path.is_file():
        return AppFile(fallback, fallback), []
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return AppFile(fallback, fallback), file
    if not isinstance(file.value, dict):
        return AppFile(fallback, fallback), [file.problem((), "must be a mapping of fields")]
    problems = [
        file.problem((key,), f"unknown field {key!r}{did_you_mean(key, _FIELDS)}")
        for key in file.value
        if key not in _FIELDS
    ]
    name = file.value.get("name", fallback)
    if not isinstance(name, str) or not _NAME.match(name):
        problems.append(
            file.problem(("name",), "name: must have lower-case letters, digits, - and _, and start with a letter")
        )
        name = fallback
    elif name == _ENGINE:
        problems.append(file.problem(("name",), f"name: {_ENGINE} is reserved for the engine; choose another"))
        name = fallback
    title = file.value.get("title", name)
    if not isinstance(title, str):
        problems.append(file.problem(("title",), "title: must be text"))
        title = name
    reserved, fenced = (_names(file.value, field, file, problems) for field in ("reserved", "fenced"))
    return AppFile(name, title, reserved, fenced, _egress(file, problems), _services(file.value)), problems


def _egress(file: YamlFile, problems: list[AppProblem]) -> tuple[NamedHost, ...]:
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
    variables = [service.get("url_env") for service in listed if isinstance(service, dict)]
    return tuple(name for name in variables if isinstance(name, str))


def _names(value: Mapping[str, Any], field: str, file: YamlFile, problems: list[AppProblem]) -> tuple[str, ...]:
    listed = value.get(field, [])
    if not isinstance(listed, list):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
        return ()
    names = tuple(name for name in listed if isinstance(name, str))
    if len(names) < len(listed):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
    return names


def read_tables(folder: Path) -> tuple[dict[str, DataTable | None], list[AppProblem]]:
    """Returns the tables of the app in `folder` by name; None for an invalid one. A table is `data/<table>.json`, an
    object with `_about`: a description of the table that states whether it is fictional."""
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
        return AppProblem(
            path, None, "a table name must have lower-case letters, digits and _, and start with a letter"
        )
    text = read_text(path, MAX_TABLE_BYTES)
    if isinstance(text, AppProblem):
        return text
    body = parse_json(path, text, "the table")
    if isinstance(body, AppProblem):
        return body
    if not isinstance(body, dict):
        return AppProblem(path, 1, 'must be one JSON object with "_about" and the data')
    about = body.get("_about")
    if not isinstance(about, str) or not about.strip():
        return AppProblem(path, 1, 'needs "_about": a text that describes the data and states whether it is fictional')
    return body


def read_tools(folder: Path, taken: Collection[str]) -> tuple[dict[str, Tool], list[AppProblem], dict[str, Path]]:
    """Returns the tools of the app in `folder` by name, the mistakes, and the tools of broken files by name with that
    file.

    `taken` are the names of the core tools, which no app can reuse.

    Every `tools/*.py` is imported by path under its own package name. Two apps can both have a `tools/payments.py`. A
    file whose name starts with `_` is only for imports by the others (`from . import _client`). If a file fails, only
    its own tools are missing.
    """
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
        file_tools = _tools_in(f"{package}.{path.stem}", path)
        if isinstance(file_tools, AppProblem):
            problems.append(file_tools)
            with suppress(OSError):  # the reported problem already names the file
                lost |= dict.fromkeys(_TOOL.findall(path.read_text(encoding="utf-8", errors="replace")), path)
            continue
        for tool in file_tools:
            name, line = tool.card.name, _line_of(tool)
            if name in taken:
                problems.append(AppProblem(path, line, f"{name} is the name of a core tool; choose another"))
            elif name in tools:
                problems.append(AppProblem(path, line, f"the tool {name} already exists in {origins[name].name}"))
            else:
                tools[name], origins[name] = tool, path
                problems += [AppProblem(path, line, _uncovered(name, each), warning=True) for each in tool.uncovered]
    return tools, problems, {name: path for name, path in lost.items() if name not in tools and name not in taken}


def _uncovered(name: str, sentence: str) -> str:
    return (
        f"the version of {name} does not cover all of its code ({sentence}), so open approvals survive a change there; "
        'set @tool(version="1") and raise it with each change'
    )


def _fresh_package(place: Path) -> str:
    """Creates a package for the files in `place`; modules from an earlier import are discarded."""
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
        return AppProblem(
            path, None, f"the file name must be a valid Python module name, such as {path.stem.replace('-', '_')}.py"
        )
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as error:
        return AppProblem(Path(error.filename or path), error.lineno, f"is not valid Python: {error.msg}")
    except ToolDefinitionError as error:
        return AppProblem(path, _line_in(path, error), str(error))
    except (Exception, SystemExit) as error:  # an app's module runs at import and may raise anything
        return AppProblem(path, _line_in(path, error), f"cannot be imported: {type(error).__name__}: {error}")
    values = [value for value in vars(module).values() if isinstance(value, Tool)]
    return [replace(tool, folder=path.parent.parent) for tool in values if tool.function.__module__ == module_name]


def _line_in(path: Path, error: BaseException) -> int | None:
    """Returns the last line of `path` that was running when `error` was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno if frames else None


def _line_of(tool: Tool) -> int | None:
    code = getattr(tool.function, "__code__", None)
    return code.co_firstlineno if code else None
