"""The MCP servers of an app folder: read with every mistake and its line, named by agents, published."""

from pathlib import Path

import pytest

from perdure.apps import App, left_out, load_app, publish
from perdure.contracts.agents import ToolCard
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
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return load_app(folder)


def cards(*names: str) -> list[ToolCard]:
    return [card(name=name, version=name) for name in names]


def test_a_server_is_read_from_a_file_of_its_name(tmp_path: Path) -> None:
    found = app(tmp_path, mcp__cluster="url: https://h.example/mcp\nheaders: {A: 'b {secret:c}'}\ntoolsets: [k8s]\n")
    assert not found.problems
    server = found.servers["cluster"]
    assert (server.name, server.prefix, server.secrets(), server.trust_annotations) == (
        "cluster",
        "cluster_",
        ("c",),
        False,
    )


@pytest.mark.parametrize(
    ("file", "text", "line", "name"),
    [
        ("mcp__cluster", "command: [x]\ntrust_annotation: true\n", 2, "trust_annotations"),
        ("mcp__cluster", "command: [x]\nname: other\n", 2, ""),
        ("mcp__cluster", "toolsets: [a]\n", 1, ""),
        ("mcp__cluster", "command: [x]\ntimeout_seconds: 0\n", 2, "timeout_seconds"),
        ("mcp__cluster", "command: [x]\ntools:\n  a: {efect: read}\n", 3, "efect"),
        ("mcp__cluster", "command: [x]\ntools:\n  a: {effect: local}\n", 3, "effect"),
        ("mcp__cluster", "[]\n", 1, ""),
        ("mcp__Bad-Name", "command: [x]\n", None, ""),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, file: str, text: str, line: int | None, name: str) -> None:
    found = app(tmp_path, "cluster_*", **{file: text})
    problem = next(each for each in found.problems if "mcp" in each.file.parts[-2])
    assert problem.line == line and name in problem.message
    assert "cluster" not in found.servers


def test_an_agent_that_names_a_server_which_is_not_there_has_a_mistake(tmp_path: Path) -> None:
    (problem,) = app(tmp_path, "clutter_*", mcp__cluster=SERVER).problems
    assert "clutter_*" in problem.message


def test_names_of_servers_and_tools_may_not_begin_alike(tmp_path: Path) -> None:
    found = app(tmp_path, mcp__cluster=SERVER, mcp__cluster_two=SERVER)
    assert [*found.servers] == ["cluster"] and "cluster_two.yaml" in {each.file.name for each in found.problems}
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "look.py").write_text(TOOL)
    again = load_app(tmp_path)
    assert "cluster" not in again.servers and "cluster_look" in str(again.problems)


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ("cluster_*", ["cluster_a", "cluster_b"]),
        ("cluster_b", ["cluster_b"]),
        ("cluster_b cluster_*", ["cluster_b", "cluster_a"]),
        ("cluster_c", []),
    ],
)
def test_an_agent_has_the_cards_that_it_names_each_once(tmp_path: Path, tools: str, names: list[str]) -> None:
    found = app(tmp_path, tools, mcp__cluster=SERVER)
    offered = {"cluster": cards("cluster_a", "cluster_b")}
    published = publish(found, [], offered)
    assert [card.name for agent in published for card in agent.cards] == names
    told_of = left_out(found, (), offered)
    assert bool(told_of) is not bool(names)
    assert not names or published[0].version == digest_of(published[0].model_dump(mode="json", exclude={"version"}))


def test_without_any_cards_the_agent_is_left_out_and_told(tmp_path: Path) -> None:
    found = app(tmp_path, mcp__cluster=SERVER)
    assert publish(found, []) == []
    (line,) = left_out(found, (), {})
    assert found.name in line and "cluster_*" in line


def test_rules_may_speak_of_tools_that_the_servers_file_names(tmp_path: Path) -> None:
    files = {
        "mcp__cluster": SERVER + "tools:\n  drop: {risk: high}\n",
        "rules__r": "- {id: r, on: before_tool_call, when: {tool: cluster_drop}, do: abort}\n",
    }
    assert not app(tmp_path, **files).problems
