"""Locks of MCP servers' tools: read with every mistake, written whole, compared as versions are."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.apps import load_app, load_servers
from perdure.apps.mcp import difference, lock_path, read_lock, write_lock
from perdure.contracts.mcp import McpLock, McpToolListing
from tests.unit.apps.test_mcp_files import SERVER, app

GOOD = '{"tools": [{"name": "look", "parameters": {"type": "object"}}]}'


def lock(*tools: dict[str, Any]) -> McpLock:
    return McpLock(tools=tuple(McpToolListing.model_validate({"parameters": {}, **tool}) for tool in tools))


def with_lock(folder: Path, text: str) -> Path:
    app(folder, mcp__cluster=SERVER)
    lock_path(folder, "cluster").write_text(text)
    return folder


def test_a_lock_is_part_of_the_app_beside_its_server(tmp_path: Path) -> None:
    found = load_app(with_lock(tmp_path, GOOD))
    assert not found.problems and [agent.id for agent in found.agents] == ["a"]
    assert [tool.name for tool in found.locks["cluster"].tools] == ["look"]


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("", 1, ""),
        ('{"tools":\n [}', 2, ""),
        ('{"tools": [], "tools": []}', None, "tools"),
        ('{"tools": [\n{"name": "look"}]}', 2, "tools.0.parameters"),
        ('{"tools": [\n{"name": "look", "parameters": {},\n "tag": []}]}', 3, "tags"),
        ('{"tools": [{"name": "look", "parameters": {"x": NaN}}]}', None, "x"),
        ('{"tools": [{"name": "a\\u0000", "parameters": {}}]}', None, "name"),
        ("[]", 1, ""),
        ("{}", 1, "tools"),
    ],
)
def test_a_malformed_lock_is_told_with_its_place_and_leaves_the_agent_out(
    tmp_path: Path, text: str, line: int | None, name: str
) -> None:
    found = load_app(with_lock(tmp_path, text))
    problem = next(each for each in found.problems if each.file == lock_path(tmp_path, "cluster"))
    assert problem.line == line and name in problem.message and not problem.warning
    assert not found.agents and not found.servers and not found.locks
    assert [*load_servers(tmp_path).servers] == ["cluster"], "or no command could write it anew"


def test_a_lock_that_cannot_be_opened_is_a_mistake(tmp_path: Path) -> None:
    app(tmp_path, mcp__cluster=SERVER)
    lock_path(tmp_path, "cluster").mkdir()
    found = load_app(tmp_path)
    assert found.problems[0].file == lock_path(tmp_path, "cluster") and not found.agents


def test_a_lock_that_leads_out_of_the_app_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text(GOOD)
    (tmp_path / "app").mkdir()
    app(tmp_path / "app", mcp__cluster=SERVER)
    lock_path(tmp_path / "app", "cluster").symlink_to(tmp_path / "elsewhere.json")
    for found in (load_app(tmp_path / "app"), load_servers(tmp_path / "app")):
        assert not found.servers and "cluster.lock.json" in str(found.problems)


def test_a_lock_of_no_server_is_a_warning(tmp_path: Path) -> None:
    app(tmp_path, mcp__cluster=SERVER)
    lock_path(tmp_path, "clutter").write_text(GOOD)
    found = load_app(tmp_path)
    (problem,) = found.problems
    assert problem.warning and "mcp/clutter.yaml" in problem.message and found.agents


def test_what_is_written_is_read_again_to_the_digit(tmp_path: Path) -> None:
    whole = {
        "name": "b",
        "title": "B",
        "description": "é \u2028 \r\n",
        "parameters": {"type": "object", "x": [1, 1.0, True, None, 1e-7, "1e5"]},
        "hints": {"read_only": False, "destructive": True},
        "tags": ["z", "a"],
        "key_ttl_seconds": 5,
    }
    given, path = lock(whole, {"name": "a"}), tmp_path / "s.lock.json"
    assert write_lock(path, given) == []
    again, problems = read_lock(path)
    assert again is not None and not problems and again.model_dump_json() == given.model_dump_json()
    turned = lock(dict(reversed(whole.items())), {"name": "a"})
    text = path.read_bytes()
    assert write_lock(path, turned) == [] and path.read_bytes() == text
    assert [*tmp_path.iterdir()] == [path] and [*json.loads(text)["tools"][1]] == ["name", "parameters"]


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "a", "parameters": {"default": "\x00"}},
        {"name": "a", "description": "\ud800"},
        {"name": "a", "description": "x" * 5_000_000},
    ],
)
def test_a_list_that_could_not_be_read_again_does_not_take_the_place_of_a_lock(
    tmp_path: Path, tool: dict[str, Any]
) -> None:
    path = tmp_path / "s.lock.json"
    path.write_text(GOOD)
    assert len(write_lock(path, lock(tool))) == 1
    assert path.read_text() == GOOD and [*tmp_path.iterdir()] == [path]


def test_a_difference_names_what_came_what_went_and_what_changed() -> None:
    before = lock({"name": "a"}, {"name": "b"}, {"name": "c", "parameters": {"x": 1}})
    now = lock({"name": "c", "parameters": {"x": True}, "tags": ["t"]}, {"name": "d"}, {"name": "a"})
    found = difference(before, now)
    assert (found.added, found.removed) == (("d",), ("b",))
    assert found.changed == {"c": ("parameters", "tags")}
    assert not difference(before, lock(*reversed([tool.model_dump() for tool in before.tools])))
    assert difference(None, before).added == ("a", "b", "c")
