"""The pages of the deployment, the reference, agents and topologies, with a scripted API."""

import re
from typing import Any

import pytest

from perdure.api.app import create_app
from perdure.graph.manifest import manifest_of
from perdure.graph.registry import names, spec
from perdure.settings import Settings
from tests.unit.pages.conftest import Browse, SpokenApi, ok, problem

HOSTILE = "<script>window.hit = 1</script>\u202egnp"
AT = "2026-01-01T10:00:00Z"


def deployment(**given: Any) -> dict[str, Any]:
    """One in which all is well."""
    queue = {"name": "q-turns", "kinds": ["turns", "tools"], "workers": 2, "links": {"temporal": "http://temporal/q"}}
    parts = [{"name": name, "fault": ""} for name in ("postgres", "temporal", "valkey", "relay")]
    return {"at": AT, "well": True, "parts": parts, "queues": [queue], "mcp_servers": [], "turns": []} | given


async def test_faults_are_shown_in_place_and_inert(api: SpokenApi, browse: Browse) -> None:
    late = {"name": HOSTILE, "kinds": ["llm"], "backlog": 1_200, "oldest_seconds": 75.2, "fault": "its oldest task"}
    approval = {"id": "0192-a", "tool": HOSTILE, "agent": "desk", "requested_at": AT, "expires_at": AT}
    api.answers["/v1/status"] = ok(
        deployment(
            well=False,
            queues=[late],
            mcp_servers=[{"app": "tools", "name": "dead", "fault": HOSTILE, "at": AT}],
            turns=[{"status": "awaiting_approval", "count": 3, "oldest_at": AT}],
            oldest_approval=approval,
        )
    )
    page = (await browse("/status")).text
    assert page.count('<span class="tag bad">') == 3, "of all, of the queue, of the server"
    assert "1,200" in page and "75 s" in page and 'href="/review/0192-a"' in page
    assert page.count("&lt;script&gt;window.hit") == 3
    assert "<script>window" not in page and "\u202e" not in page


async def test_it_is_read_anew_by_itself_and_leads_to_temporals_pages(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/status"] = ok(deployment())
    page = (await browse("/status")).text
    assert 'class="tag bad"' not in page and 'href="http://temporal/q"' in page
    assert 'hx-get="/status" hx-trigger="every 5s" hx-swap="outerMorph"' in page
    assert '<a href="/status" aria-current="page">' in page
    part = (await browse("/status", headers={"HX-Request": "true"})).text
    assert part.count('class="tag good"') == 6 and "<html" not in part


async def test_who_may_not_look_is_not_led_there(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/me"] = ok({"name": "rob", "roles": ["requester"]})
    api.answers["/v1/status"] = 403, problem("role_required", "no")
    assert (await browse("/status")).status_code == 403
    api.answers["/v1/agents"] = ok({"items": [], "next": None})
    page = (await browse("/agents")).text
    assert 'href="/agents"' in page and 'href="/status"' not in page


async def test_a_tenants_admin_sees_parts_alone(api: SpokenApi, browse: Browse) -> None:
    parts = [{"name": "postgres", "fault": ""}, {"name": "workers", "fault": "unavailable"}]
    servers = [{"app": "tools", "name": "dead", "fault": "", "at": AT}]
    api.answers["/v1/status"] = ok(deployment(is_operator=False, well=False, parts=parts, mcp_servers=servers))
    page = (await browse("/status")).text
    assert page.count('class="tag bad"') == 2 and "workers" in page and "unavailable" in page
    assert 'id="queues"' not in page and 'id="servers"' not in page
    assert "q-turns" not in page and "dead" not in page and "http://temporal/q" not in page


async def test_an_unknown_workload_is_not_shown_as_none(api: SpokenApi, browse: Browse) -> None:
    for known, callouts in ((True, 0), (False, 1)):
        api.answers["/v1/status"] = ok(deployment(well=False, is_workload_known=known))
        page = (await browse("/status")).text
        section = page[page.index('id="turns"') : page.index('id="parts"')]
        assert (section.count("callout bad"), section.count('class="quiet"')) == (callouts, 2 - 2 * callouts)


async def test_any_status_is_shown_without_a_script_or_another_host(api: SpokenApi, browse: Browse) -> None:
    said = create_app(Settings(_env_file=None)).openapi()
    api.answers["/openapi.json"] = 200, said
    page = (await browse("/docs")).text
    for path, item in said["paths"].items():
        for method in item:
            assert f"<strong>{method.upper()}</strong> <code>{path}</code>" in page
    decide = page[page.index("<code>/v1/approvals/{approval_id}/decision</code>") :]
    assert "<code>digest</code>" in decide[: decide.index("</details>")]
    assert len(page.encode()) < 130_000 and not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)


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
