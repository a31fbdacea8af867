"""The MCP servers of an app folder: read with every mistake and its line, named by agents, published."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.apps import App, degraded_agents, load_app, load_servers, publish, skipped_agents
from perdure.apps.mcp import difference, lock_path, read_lock, write_lock
from perdure.contracts.agents import ToolCard
from perdure.contracts.mcp import McpLock, McpToolListing
from perdure.contracts.values import digest_of
from tests.unit.apps.tool_contexts import card

AGENT = "id: a\ntitle: A\ntopology: t\ncore_tools: false\ntools: ['{}']\n"
SERVER = "command: [python, -m, cluster]\n"
TOOL = '''from perdure import tool
@tool(effect="read")
async def cluster_look() -> str:
    """Look."""
    return ""
'''


def app(folder: Path, tools: str = "cluster_*", **files: str) -> App:
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
    found = app(tmp_path, mcp__cluster=url, rules__r=rule)
    assert not found.problems
    server = found.servers["cluster"]
    assert (server.name, server.prefix, server.secrets()) == ("cluster", "cluster_", ("c",))
    assert not server.trust_annotations


@pytest.mark.parametrize(("file", "text", "line", "name"), [
    ("mcp__cluster", "command: [x]\ntrust_annotation: true\n", 2, "trust_annotations"),
    ("mcp__cluster", "command: [x]\nname: other\n", 2, ""),
    ("mcp__cluster", "toolsets: [a]\n", 1, ""),
    ("mcp__cluster", "command: [x]\ntimeout_seconds: 0\n", 2, "timeout_seconds"),
    ("mcp__cluster", "command: [x]\ntools:\n  a: {efect: read}\n", 3, "efect"),
    ("mcp__cluster", "command: [x]\ntools:\n  a: {effect: local}\n", 3, "effect"),
    ("mcp__cluster", "[]\n", 1, ""),
    ("mcp__Bad-Name", "command: [x]\n", None, ""),
])  # fmt: skip
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, file: str, text: str, line: int | None, name: str) -> None:
    found = app(tmp_path, "cluster_*", **{file: text})
    problem = next(each for each in found.problems if "mcp" in each.file.parts[-2])
    assert problem.line == line and name in problem.message
    assert "cluster" not in found.servers


def test_names_of_servers_and_tools_must_exist_and_not_overlap(tmp_path: Path) -> None:
    found = app(tmp_path, mcp__cluster=SERVER, mcp__cluster_two=SERVER)
    assert [*found.servers] == ["cluster"] and "cluster_two.yaml" in {each.file.name for each in found.problems}
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "look.py").write_text(TOOL)
    again = load_app(tmp_path)
    assert "cluster" not in again.servers and "cluster_look" in str(again.problems)
    (problem,) = app(tmp_path / "other", "clutter_*", mcp__cluster=SERVER).problems
    assert "clutter_*" in problem.message, "a server that is not there"


@pytest.mark.parametrize(("tools", "names"), [
    ("cluster_*", ["cluster_a", "cluster_b"]),
    ("cluster_b", ["cluster_b"]),
    ("cluster_b cluster_*", ["cluster_b", "cluster_a"]),
    ("cluster_c", []),
])  # fmt: skip
def test_an_agent_gets_each_of_its_named_tools_once(tmp_path: Path, tools: str, names: list[str]) -> None:
    found = app(tmp_path, tools, mcp__cluster=SERVER)
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


GOOD = '{"tools": [{"name": "look", "parameters": {"type": "object"}}]}'


def lock(*tools: dict[str, Any]) -> McpLock:
    return McpLock(tools=tuple(McpToolListing.model_validate({"parameters": {}, **tool}) for tool in tools))


def with_lock(folder: Path, text: str) -> Path:
    app(folder, mcp__cluster=SERVER)
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
    ("", 1, ""),
    ('{"tools":\n [}', 2, ""),
    ('{"tools": [], "tools": []}', None, "tools"),
    ('{"tools": [\n{"name": "look"}]}', 2, "tools.0.parameters"),
    ('{"tools": [\n{"name": "look", "parameters": {},\n "tag": []}]}', 3, "tags"),
    ('{"tools": [{"name": "look", "parameters": {"x": NaN}}]}', None, "x"),
    ('{"tools": [{"name": "a\\u0000", "parameters": {}}]}', None, "name"),
    ("[]", 1, ""),
    ("{}", 1, "tools"),
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
    app(tmp_path / "app", mcp__cluster=SERVER)
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
