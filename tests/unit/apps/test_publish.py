"""perdure/apps/publish.py: which cards an agent gets, when its version changes; the MCP servers of an app folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from perdure import apps
from perdure.activities.toolbox.engine_tools import CORE_ALWAYS, ENGINE_TOOLS
from perdure.apps import App, degraded_agents, load_app, load_servers, publish, skipped_agents
from perdure.apps.mcp import difference, lock_path, read_lock, write_lock
from perdure.apps.publish import without_outlived_versions
from perdure.contracts.agents import AgentDefinition, PublishedAgent, ToolCard
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.mcp import McpLock, McpToolListing
from perdure.contracts.values import digest_of
from perdure.core.agents.plans import MAX_PLAN_BYTES
from perdure.local.config import ROOT, StackConfig, shipped_apps
from perdure.local.data_dir import StackError, open_home
from perdure.local.programs import environment, read_all_app_services
from perdure.sdk.tools import tool
from perdure.settings import Settings
from tests.unit.apps.skill_app import FILES, STEEP, STEEP_CARD, problems_of, write_app
from tests.unit.apps.tool_contexts import card

CORE = [card(name=name) for name in ("entity_resolve", "context_assemble", "create_entity")]
GOOD = '{"tools": [{"name": "look", "parameters": {"type": "object"}}]}'
SIX = tuple(apps.SHIPPED / name for name in ("care", "charts", "filings", "ops", "refunds", "skeleton"))
MINE, OTHER = "mine", "other"
Asked = tuple[str, str, tuple[str | Path, ...], bool | None, tuple[str | Path, ...]]


@tool(effect="read")
async def look(name: str) -> str:
    """Look."""
    return name


@tool(effect="opaque")
async def touch(name: str) -> str:
    """Touch."""
    return name


def app(**fields: object) -> apps.App:
    agent = AgentDefinition.model_validate({"id": "a", "title": "A", "topology": "t", **fields})
    return apps.App("app", "App", Path("nowhere"), (agent,), {"look": look, "touch": touch})


@pytest.mark.parametrize(("fields", "offered"), [
    # core tools come first and none twice; one that changes something only where it is named
    ({"tools": ("touch", "entity_resolve", "look", "touch")}, [*apps.ALWAYS_OFFERED, "touch", "look"]),
    ({}, [*apps.ALWAYS_OFFERED]), ({"tools": ("create_entity",)}, [*apps.ALWAYS_OFFERED, "create_entity"]),
    ({"core_tools": False}, []), ({"core_tools": False, "tools": ("context_assemble",)}, ["context_assemble"]),
])  # fmt: skip
def test_an_agent_is_offered_core_tools_and_its_own(fields: dict[str, object], offered: list[str]) -> None:
    (published,) = apps.publish(app(**fields), CORE)
    assert [card.name for card in published.cards] == offered
    assert apps.publish(app(**fields), CORE[::-1]) == [published], "however the core cards are ordered"


def test_the_reserved_names_are_those_of_the_core_tools() -> None:
    assert set(apps.Engine().core_tools) == set(ENGINE_TOOLS)
    assert [tool.card.name for tool in CORE_ALWAYS] == list(apps.ALWAYS_OFFERED)


def test_the_version_depends_on_the_definition_and_the_tools_alone() -> None:
    newer = [CORE[0].model_copy(update={"version": "2"}), *CORE[1:]]
    changes: list[dict[str, object]] = [{}, {"title": "B"}, {"tools": ("look", "touch")}, {"script": {"rules": []}}]
    made = [apps.publish(app(**{"tools": ("look",), **change}), CORE) for change in changes]
    made.append(apps.publish(app(tools=("look",)), newer))
    assert len({each.version for (each,) in made}) == len(made)
    assert apps.publish(app(tools=("look",)), CORE) == made[0]


def test_an_agent_with_an_unknown_initial_toolset_is_left_out() -> None:
    core = [*CORE, card(name="memory_patch", toolset="memory")]
    right = app(tools=("memory_patch",), toolsets={"memory": False})
    assert len(apps.publish(right, core)) == 1 and apps.skipped_agents(right, core, {}) == []
    wrong = app(tools=("memory_patch",), toolsets={"memry": False})
    assert apps.publish(wrong, core) == []
    (line,) = apps.skipped_agents(wrong, core, {})
    assert "memry" in line and "'memory'" in line


@pytest.mark.parametrize(("tools", "fits"), [(450, True), (600, False)])
def test_an_agent_whose_plan_would_fill_its_pauses_is_left_out(tools: int, fits: bool) -> None:
    names = tuple(f"{'long_' * 12}{number:03}" for number in range(tools))
    many, core = app(tools=names), [card(name=name) for name in names]
    assert (len(apps.publish(many, core)) == 1) is fits
    assert [f"{MAX_PLAN_BYTES:,}" in line for line in apps.skipped_agents(many, core, {})] == [True] * (not fits)


def test_an_unknown_tool_at_publication_is_an_internal_error() -> None:
    with pytest.raises(InvariantBroken, match="nothing_at_all"):
        apps.publish(app(tools=("nothing_at_all",)), CORE)


def test_blocks_offered_to_a_model_come_last(tmp_path: Path) -> None:
    hidden = {
        "skills/water/blocks/boil.py": STEEP,
        "skills/water/blocks/boil.yaml": STEEP_CARD.replace("true", "false").replace("leaves", "kettles"),
        "data/kettles.json": '{"_about": "Made up too."}',
        "data/unused.json": '{"_about": "Made up as well."}',
    }
    loaded = apps.load_app(write_app(tmp_path, {**hidden}))
    assert problems_of(loaded) == []
    (published,) = apps.publish(loaded, CORE)
    assert [card.name for card in published.cards] == ["entity_resolve", "context_assemble", "steep"]
    steep = published.cards[-1]
    assert (steep.effect.value, steep.needs_approval, steep.capability) == ("read", False, "tea.steep")
    assert steep.description == "How long a leaf steeps." and steep.parameters["required"] == ["leaf"]
    assert published.rules == loaded.rules and [rule.id for rule in published.rules] == ["parlour:no_batches"]
    assert set(published.tables) == {"kettles", "leaves"}
    assert {table.name for table in apps.tables_of(loaded, [published])} == {"kettles", "leaves"}
    for table in apps.tables_of(loaded, [published]):
        assert table.digest == published.tables[table.name] == digest_of(table.body)
    assert "Made up" not in published.model_dump_json()


@pytest.mark.parametrize(("path", "old", "new", "card_too"), [
    ("skills/tea/blocks/steep.py", "else 3", "else 4", True),
    ("skills/tea/blocks/steep.yaml", "steeps", "rests", False), ("data/leaves.json", "Made", "Thought", True),
    ("skills/tea/SKILL.md", "One", "Two", False), ("skills/tea/templates/facts.md", "bush", "tree", False),
    ("skills/tea/artifacts/leaves.md", "Green", "Red", False), ("skills/water/SKILL.md", "Heats", "Boils", False),
    ("rules/house.yaml", "abort", "require_hitl", False), ("personas/host.md", "house", "shop", False),
])  # fmt: skip
def test_a_change_anywhere_makes_a_new_version(tmp_path: Path, path: str, old: str, new: str, card_too: bool) -> None:
    (before,) = apps.publish(apps.load_app(write_app(tmp_path)), CORE)
    assert old in FILES[path]
    (after,) = apps.publish(apps.load_app(write_app(tmp_path, {path: FILES[path].replace(old, new)})), CORE)
    assert after.version != before.version
    assert (after.cards[-1].version != before.cards[-1].version) is card_too
    assert apps.publish(apps.load_app(write_app(tmp_path)), CORE) == [before]
    assert PublishedAgent.model_validate(before.model_dump(mode="json")) == before


def test_a_version_by_rule_1_ends_with_the_next_change_of_the_code(tmp_path: Path) -> None:
    path, changed = "skills/tea/blocks/steep.py", FILES["skills/tea/blocks/steep.py"].replace("else 3", "else 4")
    (first,) = apps.publish(apps.load_app(write_app(tmp_path)), CORE)
    old_rule = first.model_copy(
        update={"cards": tuple(card.model_copy(update={"version_rule": 1}) for card in first.cards)}
    )
    assert without_outlived_versions(first, [old_rule]) == first == without_outlived_versions(first, [first])
    (second,) = apps.publish(apps.load_app(write_app(tmp_path, {path: changed})), CORE)
    same_words = second.cards[-1].model_copy(update={"version_1": first.cards[-1].version_1})
    second = second.model_copy(update={"cards": (*second.cards[:-1], same_words)})
    published = without_outlived_versions(second, [first])
    assert [card.version_1 for card in published.cards] == [*(card.version_1 for card in second.cards[:-1]), ""]
    assert published.version not in (first.version, second.version)
    assert without_outlived_versions(second, [published]) == published, "a restart publishes the same"
    assert without_outlived_versions(first, [published]).cards[-1].version_1 == "", "a rollback does not bring it back"
    left_out = first.model_copy(update={"cards": first.cards[:-1]})
    assert without_outlived_versions(second, [left_out]).cards[-1].version_1 == "", "nor does a pause of its tool"


def test_an_agent_without_skill_folders_keeps_its_stored_form() -> None:
    skills = [{"id": "own", "name": "Own", "description": "Mine.", "body": "Do."}]
    (published,) = apps.publish(app(tools=("look",), skills=skills), CORE)
    stored = published.model_dump(mode="json")
    assert set(stored) == {"definition", "cards", "version"}
    fields = "id title topology model model_params persona core_tools tools skills limits window approvals script"
    assert set(stored["definition"]) == set(fields.split())
    assert stored["definition"]["skills"] == skills
    assert stored["version"] == digest_of({"definition": stored["definition"], "cards": stored["cards"]})


def in_process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("PERDURE_APP", "PERDURE_EXAMPLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Settings(_env_file=None)


@pytest.mark.parametrize("asked", [
    # PERDURE_APP, PERDURE_EXAMPLES, --app, --examples, the apps
    ("", "", (), None, ()), ("", "false", (), None, ()), ("", "true", (), None, SIX),
    ("", "1", (), False, ()), ("", "", (), True, SIX), ("", "off", (), True, SIX),
    (MINE, "", (), None, (MINE,)), ("", "", (MINE,), None, (MINE,)), (MINE, "", (OTHER,), None, (OTHER,)),
    (MINE, "true", (OTHER,), None, (*SIX, OTHER)), (MINE, "", (MINE,), None, (MINE,)),
    (f"{OTHER}{os.pathsep}{MINE}", "yes", (), None, (*SIX, OTHER, MINE)), ("", "", (MINE,), True, (*SIX, MINE)),
    ("", "", (apps.SHIPPED / "refunds",), None, (apps.SHIPPED / "refunds",)),
    ("", "", (apps.SHIPPED / "refunds", MINE), True, (*SIX, MINE)),
])  # fmt: skip
def test_only_the_requested_apps_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    variable, flag, typed, option, expected = asked
    for name in (MINE, OTHER):
        (tmp_path / name / "agents").mkdir(parents=True)
    written = os.pathsep.join(str(tmp_path / each) for each in variable.split(os.pathsep) if each)
    environ = {"PERDURE_HOME": str(tmp_path / "home"), "PERDURE_APP": written, "PERDURE_EXAMPLES": flag}
    config = StackConfig.from_env([tmp_path / each for each in typed], None, option, environ=environ)
    assert config.apps == tuple(tmp_path / each for each in expected)
    settings = in_process(environment(config, open_home(config.home), {}, {}), monkeypatch)
    assert apps.app_folders(settings.apps, settings.examples) == config.apps, "bootstrap and workers have these"
    assert [app.folder for app in apps.find_apps(config.apps)] == [*config.apps]


def test_the_stack_and_the_server_know_the_same_examples() -> None:
    assert shipped_apps() == apps.app_folders((), examples=True) == SIX
    assert apps.SHIPPED == ROOT / "perdure" / "examples"


def test_app_services_start_only_for_the_requested_apps(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()

    def services(app: Path, **environ: str) -> list[str]:
        config = StackConfig.from_env([app], environ={"PERDURE_HOME": str(tmp_path), **environ})
        return [service.name for _, service in read_all_app_services(config.apps)]

    assert services(tmp_path) == []
    assert services(apps.SHIPPED / "refunds") == ["payments"]
    assert services(apps.SHIPPED / "refunds", PERDURE_EXAMPLES="true") == ["bookings", "payments"]


@pytest.mark.parametrize("text", ["1", "0", "true", "False", "YES", "n", "on", "off", "t", "maybe", "2", " ", "truee"])
def test_the_stack_and_a_process_agree_on_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    environ = {"PERDURE_HOME": str(tmp_path), "PERDURE_EXAMPLES": text}
    try:
        settings = in_process({"PERDURE_EXAMPLES": text}, monkeypatch).examples
    except ValueError:
        with pytest.raises(StackError, match="PERDURE_EXAMPLES"):
            StackConfig.from_env(environ=environ)
    else:
        assert StackConfig.from_env(environ=environ).examples is settings


AGENT = "id: a\ntitle: A\ntopology: t\ncore_tools: false\ntools: ['{}']\n"
SERVER = "command: [python, -m, cluster]\n"
TOOL = '''from perdure import tool
@tool(effect="read")
async def cluster_look() -> str:
    """Look."""
    return ""
'''


def app_in(folder: Path, tools: str = "cluster_*", **files: str) -> App:
    """An app with one agent and these files; `mcp__x` is mcp/x.yaml."""
    named = {f"{name.replace('__', '/')}.yaml": text for name, text in files.items()}
    for path, text in {"agents/a.yaml": AGENT.format("', '".join(tools.split())), **named}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_app(folder)


def cards(*names: str) -> list[ToolCard]:
    return [card(name=name, version=name) for name in names]


def test_a_server_is_read_from_a_file_of_its_name_and_rules_may_speak_of_its_tools(tmp_path: Path) -> None:
    url = "url: https://h.example/mcp\nheaders: {A: 'b {secret:c}'}\ntoolsets: [k8s]\ntools:\n  drop: {risk: high}\n"
    rule = "- {id: r, on: before_tool_call, when: {tool: cluster_drop}, do: abort}\n"
    found = app_in(tmp_path, mcp__cluster=url, rules__r=rule)
    assert not found.problems
    server = found.servers["cluster"]
    assert (server.name, server.prefix, server.secrets()) == ("cluster", "cluster_", ("c",))
    assert not server.trust_annotations


@pytest.mark.parametrize(("file", "text", "line", "name"), [
    ("mcp__cluster", "command: [x]\ntrust_annotation: true\n", 2, "trust_annotations"),
    ("mcp__cluster", "command: [x]\nname: other\n", 2, ""), ("mcp__cluster", "toolsets: [a]\n", 1, ""),
    ("mcp__cluster", "command: [x]\ntimeout_seconds: 0\n", 2, "timeout_seconds"),
    ("mcp__cluster", "command: [x]\ntools:\n  a: {efect: read}\n", 3, "efect"),
    ("mcp__cluster", "command: [x]\ntools:\n  a: {effect: local}\n", 3, "effect"), ("mcp__cluster", "[]\n", 1, ""),
    ("mcp__Bad-Name", "command: [x]\n", None, ""),
])  # fmt: skip
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, file: str, text: str, line: int | None, name: str) -> None:
    found = app_in(tmp_path, "cluster_*", **{file: text})
    problem = next(each for each in found.problems if "mcp" in each.file.parts[-2])
    assert problem.line == line and name in problem.message
    assert "cluster" not in found.servers


def test_names_of_servers_and_tools_must_exist_and_not_overlap(tmp_path: Path) -> None:
    found = app_in(tmp_path, mcp__cluster=SERVER, mcp__cluster_two=SERVER)
    assert [*found.servers] == ["cluster"] and "cluster_two.yaml" in {each.file.name for each in found.problems}
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "look.py").write_text(TOOL)
    again = load_app(tmp_path)
    assert "cluster" not in again.servers and "cluster_look" in str(again.problems)
    (problem,) = app_in(tmp_path / "other", "clutter_*", mcp__cluster=SERVER).problems
    assert "clutter_*" in problem.message, "a server that is not there"


@pytest.mark.parametrize(("tools", "names"), [
    ("cluster_*", ["cluster_a", "cluster_b"]),
    ("cluster_b", ["cluster_b"]),
    ("cluster_b cluster_*", ["cluster_b", "cluster_a"]),
    ("cluster_c", []),
])  # fmt: skip
def test_an_agent_gets_each_of_its_named_tools_once(tmp_path: Path, tools: str, names: list[str]) -> None:
    found = app_in(tmp_path, tools, mcp__cluster=SERVER)
    offered = {"cluster": cards("cluster_a", "cluster_b")}
    published = publish(found, [], offered)
    assert [card.name for agent in published for card in agent.cards] == names
    assert skipped_agents(found, (), offered) == [] and bool(degraded_agents(published)) is not bool(names)
    (degraded,) = publish(found, [], None, ["cluster"])
    assert degraded.unreached == degraded.unavailable and not published[0].unreached
    assert degraded_agents([degraded]) != degraded_agents(published)
    assert (degraded.cards, degraded.unavailable) == ((), tuple(tools.split()))
    assert degraded.version != published[0].version
    assert all(name in degraded_agents([degraded])[0] for name in tools.split())
    assert not names or published[0].version == digest_of(published[0].model_dump(mode="json", exclude={"version"}))


def lock(*tools: dict[str, Any]) -> McpLock:
    return McpLock(tools=tuple(McpToolListing.model_validate({"parameters": {}, **tool}) for tool in tools))


def with_lock(folder: Path, text: str) -> Path:
    app_in(folder, mcp__cluster=SERVER)
    lock_path(folder, "cluster").write_text(text)
    return folder


def test_a_server_is_published_with_the_lock_beside_it(tmp_path: Path) -> None:
    found = load_app(with_lock(tmp_path, GOOD))
    assert not found.problems and [agent.id for agent in found.agents] == ["a"]
    assert [tool.name for tool in found.locks["cluster"].tools] == ["look"]
    lock_path(tmp_path, "clutter").write_text(GOOD)  # the lock of no server
    (problem,) = (found := load_app(tmp_path)).problems
    assert problem.warning and "mcp/clutter.yaml" in problem.message and found.agents
    lock_path(tmp_path, "clutter").unlink()
    lock_path(tmp_path, "cluster").unlink()
    lock_path(tmp_path, "cluster").mkdir()  # nothing that can be opened
    found = load_app(tmp_path)
    assert found.problems[0].file == lock_path(tmp_path, "cluster") and not found.agents


@pytest.mark.parametrize(("text", "line", "name"), [
    ("", 1, ""), ('{"tools":\n [}', 2, ""), ('{"tools": [], "tools": []}', None, "tools"),
    ('{"tools": [\n{"name": "look"}]}', 2, "tools.0.parameters"),
    ('{"tools": [\n{"name": "look", "parameters": {},\n "tag": []}]}', 3, "tags"),
    ('{"tools": [{"name": "look", "parameters": {"x": NaN}}]}', None, "x"),
    ('{"tools": [{"name": "a\\u0000", "parameters": {}}]}', None, "name"), ("[]", 1, ""), ("{}", 1, "tools"),
])  # fmt: skip
def test_a_malformed_lock_leaves_the_agent_out(tmp_path: Path, text: str, line: int | None, name: str) -> None:
    found = load_app(with_lock(tmp_path, text))
    problem = next(each for each in found.problems if each.file == lock_path(tmp_path, "cluster"))
    assert problem.line == line and name in problem.message and not problem.warning
    assert not found.agents and not found.servers and not found.locks
    assert [*load_servers(tmp_path).servers] == ["cluster"], "or no command could write it anew"


def test_a_lock_outside_the_app_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text(GOOD)
    (tmp_path / "app").mkdir()
    app_in(tmp_path / "app", mcp__cluster=SERVER)
    lock_path(tmp_path / "app", "cluster").symlink_to(tmp_path / "elsewhere.json")
    for found in (load_app(tmp_path / "app"), load_servers(tmp_path / "app")):
        assert not found.servers and "cluster.lock.json" in str(found.problems)


def test_a_written_lock_is_read_back_exactly(tmp_path: Path) -> None:
    whole = {
        "name": "b", "title": "B", "description": "é \u2028 \r\n",
        "parameters": {"type": "object", "x": [1, 1.0, True, None, 1e-7, "1e5"]},
        "hints": {"read_only": False, "destructive": True}, "tags": ["z", "a"], "key_ttl_seconds": 5,
    }  # fmt: skip
    given, path = lock(whole, {"name": "a"}), tmp_path / "s.lock.json"
    assert write_lock(path, given) == []
    again, problems = read_lock(path)
    assert again is not None and not problems and again.model_dump_json() == given.model_dump_json()
    turned = lock(dict(reversed(whole.items())), {"name": "a"})
    text = path.read_bytes()
    assert write_lock(path, turned) == [] and path.read_bytes() == text
    assert [*tmp_path.iterdir()] == [path] and [*json.loads(text)["tools"][1]] == ["name", "parameters"]


@pytest.mark.parametrize(
    "tool", [{"parameters": {"default": "\x00"}}, {"description": "\ud800"}, {"description": "x" * 5_000_000}]
)
def test_a_list_that_could_not_be_read_back_replaces_no_lock(tmp_path: Path, tool: dict[str, Any]) -> None:
    path = tmp_path / "s.lock.json"
    path.write_text(GOOD)
    assert len(write_lock(path, lock({"name": "a", **tool}))) == 1
    assert path.read_text() == GOOD and [*tmp_path.iterdir()] == [path]


def test_a_difference_names_added_removed_and_changed_tools() -> None:
    before = lock({"name": "a"}, {"name": "b"}, {"name": "c", "parameters": {"x": 1}})
    now = lock({"name": "c", "parameters": {"x": True}, "tags": ["t"]}, {"name": "d"}, {"name": "a"})
    found = difference(before, now)
    assert (found.added, found.removed) == (("d",), ("b",))
    assert found.changed == {"c": ("parameters", "tags")}
    assert not difference(before, lock(*reversed([tool.model_dump() for tool in before.tools])))
    assert difference(None, before).added == ("a", "b", "c")
