"""The pages of the deployment and of the reference in front of an API that says what it is told to."""

import re
from typing import Any

from perdure.api.app import create_app
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
