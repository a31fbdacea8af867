"""An app folder: agents, tools, skills, personas, rules and data. The shipped apps and a user's own come in here.

All mistakes of all files are reported together, and what has none is loaded. A rule of the app's own that cannot be
read keeps all its agents back: they would run without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from contracts.agents import AgentDefinition
from contracts.mcp import McpLock, McpServer
from contracts.skills import DataTable, Rule, Skill
from perdure.apps.agent_file import read_agent
from perdure.apps.app_file import read_app_file
from perdure.apps.block_files import BlockScope, block_names
from perdure.apps.content import Content
from perdure.apps.data_files import read_tables
from perdure.apps.engine import Engine
from perdure.apps.mcp_files import read_servers
from perdure.apps.mcp_locks import read_locks
from perdure.apps.pipeline_files import read_pipelines
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.rule_files import RuleScope, read_rule_files
from perdure.apps.skill_files import SkillScope
from perdure.apps.skill_set import read_skills, skill_folders
from perdure.apps.stray_links import stray_links
from perdure.apps.text_file import read_text
from perdure.apps.tool_files import read_tools
from perdure.tools import Tool
from policy.egress import Named, Outbound, named_by_url

SHIPPED = Path(__file__).parents[2] / "apps"


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
    tools, found, lost = read_tools(folder, engine.core_tools)
    problems += found
    pipelines, found = read_pipelines(folder, tools, lost)
    problems += found
    tables, found = read_tables(folder)
    problems += found
    personas, found = _read_personas(folder)
    problems += found
    named = {*tools, *lost, *engine.core_tools} | {
        name for skill in skill_folders(folder) for name in block_names(skill)
    }
    servers, found = read_servers(folder, named)
    problems += found
    named |= {server.prefix + tool for server in servers.values() for tool in server.tools}
    locks, found = read_locks(folder, servers)
    problems += found
    servers = {name: server for name, server in servers.items() if locks.get(name, server) is not None}
    reserved = {*engine.reserved, *own.reserved}
    registered = {*engine.core_tools, *(name for name in tools if name not in own.fenced)}
    problems += [
        AppProblem(folder / "app.yaml", None, f"fenced: unknown tool {name!r}{did_you_mean(name, tools)}")
        for name in own.fenced
        if name not in tools and name not in lost
    ]
    blocks = BlockScope(registered, reserved, tables, engine.check_block, engine.try_block)
    skills, found = read_skills(folder, SkillScope(own.name, personas, named, blocks))
    problems += found
    rules, rule_problems = read_rule_files(folder, RuleScope(own.name, "", named))
    problems += rule_problems
    content = Content(tools, skills, personas, frozenset(reserved), frozenset(own.fenced), lost, pipelines, servers)
    agents, read, found = _read_agents(folder, content, engine)
    problems += found
    if has_mistakes(rule_problems) and agents:
        why = "has a mistake, so no agent of this app is loaded: they would run without its rules"
        problems.append(AppProblem(folder / "rules", None, why))
        agents, read = {}, []
    if not agents and not problems:
        problems.append(AppProblem(folder / "agents", None, "has no agent: add one as a .yaml file"))
    return App(
        own.name,
        own.title,
        folder,
        tuple(agents.values()),
        tools,
        tuple(problems),
        skills.skills,
        rules,
        {name: table for name, table in tables.items() if table is not None},
        servers,
        {name: lock for name, lock in locks.items() if lock is not None},
        own.egress,
        own.services,
        tuple(path.stem for path in _agent_files(folder) if path not in read),
    )


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
