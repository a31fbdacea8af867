"""The pages of agents and topologies on a double of the API, with the manifests of the real topologies."""

import re
from typing import Any

import pytest

from perdure.graph.manifest import manifest_of
from perdure.graph.registry import names, spec
from tests.unit.pages.conftest import Browse, SpokenApi

HOSTILE = "<script>window.hit = 1</script>\u202egnp"
AGENT: dict[str, Any] = {
    "id": "desk", "title": HOSTILE, "app": "desk", "topology": "tool_loop", "model": "scripted", "version": "ab" * 32,
    "limits": {"max_tokens": 50_000, "max_cost_microusd": 1_500_000, "max_iterations": 10},
    "day_limits": {"max_tokens": None, "max_cost_microusd": 9_000_000},
    "approvals": {"reviewer_role": "reviewer", "reviewers": [HOSTILE], "allow_self_approval": False, "quorum": 2,
        "quorum_high_risk": None, "expires_seconds": 604_800, "on_timeout": "deny", "fallback_reviewer": "",
        "fallback_after_seconds": 86_400, "hold_seconds": 0},
    "skills": [], "toolsets": {"k": False},
}  # fmt: skip


async def test_an_agents_limits_are_shown(api: SpokenApi, browse: Browse) -> None:
    rule = {"trigger": "before_tool_call", "action": "require_hitl", "rule": "app:look", "why": HOSTILE}
    pay = {
        "name": "pay", "description": HOSTILE, "effect": "keyed", "risk": "high", "timeout_seconds": 30.0,
        "key_ttl_seconds": 86_400.0, "describe": "Pay {amount}", "reasons": [rule, rule | {"action": "abort"}],
    }  # fmt: skip
    look = {"name": "look", "effect": "read", "needs_approval": False, "free_because": "it changes nothing (read)"}
    api.answers |= {
        "/v1/agents": (200, {"items": [AGENT | {"tools": ["pay", "look"]}]}),
        "/v1/agents/desk": (200, AGENT),
        "/v1/agents/desk/tools": (200, {"items": [pay, look]}),
    }
    listed, page = (await browse("/agents")).text, (await browse("/agents/desk")).text
    assert 'href="/agents/desk"' in listed and 'href="/topologies/tool_loop"' in listed
    assert all(each in page for each in ("50,000", "$1.50", "$9.00", "7 d", "1 d", "Pay {amount}"))
    for text in (listed, page):
        assert "&lt;script&gt;window.hit" in text and "<script>window" not in text and "\u202e" not in text
    for path in ("/agents/nobody", "/topologies/nothing"):
        assert (await browse(path)).status_code == 404


@pytest.mark.parametrize("name", names())
async def test_a_topology_is_drawn(api: SpokenApi, browse: Browse, name: str) -> None:
    api.answers[f"/v1/topologies/{name}"] = 200, manifest_of(spec(name))
    page = (await browse(f"/topologies/{name}")).text
    for node in spec(name).nodes:
        assert f'data-node="{node.id}"' in page and f"<code>{node.id}</code>" in page
    assert f"max_steps {spec(name).limits.steps}" in page and "model.complete" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert 'class="line taken"' not in page and '<a href="/agents" aria-current="page">' in page
