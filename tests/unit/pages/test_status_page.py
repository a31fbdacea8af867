"""The page of the deployment in front of an API that says what it is told to."""

from typing import Any

from tests.unit.pages.conftest import Browse, SpokenApi, problem

HOSTILE = "<script>window.hit = 1</script>\u202egnp"
AT = "2026-01-01T10:00:00Z"


def deployment(**given: Any) -> dict[str, Any]:
    """One in which all is well."""
    queue = {"name": "q-turns", "kinds": ["turns", "tools"], "workers": 2, "links": {"temporal": "http://temporal/q"}}
    parts = [{"name": name, "fault": ""} for name in ("postgres", "temporal", "valkey", "relay")]
    return {"at": AT, "well": True, "parts": parts, "queues": [queue], "mcp_servers": [], "turns": []} | given


async def test_what_is_wrong_is_said_where_it_is_and_is_inert(api: SpokenApi, browse: Browse) -> None:
    late = {"name": HOSTILE, "kinds": ["llm"], "backlog": 1_200, "oldest_seconds": 75.2, "fault": "its oldest task"}
    api.answers["/v1/status"] = (
        200,
        deployment(
            well=False,
            queues=[late],
            mcp_servers=[{"app": "tools", "name": "dead", "fault": HOSTILE, "at": AT}],
            turns=[{"status": "awaiting_approval", "count": 3, "oldest_at": AT}],
            oldest_approval={"id": "0192-a", "tool": HOSTILE, "agent": "desk", "requested_at": AT, "expires_at": AT},
        ),
    )
    page = (await browse("/status")).text
    assert "something is wrong" in page and "1,200" in page and "75 s" in page
    assert 'href="/review/0192-a"' in page and "awaiting approval" in page
    assert page.count("&lt;script&gt;window.hit") == 3
    assert "<script>window" not in page and "\u202e" not in page


async def test_it_is_read_anew_by_itself_and_leads_to_temporals_pages(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/status"] = 200, deployment()
    page = (await browse("/status")).text
    assert "all is well" in page and 'href="http://temporal/q"' in page and 'hx-get="/status"' in page
    assert '<a href="/status" aria-current="page">' in page
    part = (await browse("/status", headers={"HX-Request": "true"})).text
    assert "all is well" in part and "<html" not in part


async def test_who_may_not_look_is_not_led_there(api: SpokenApi, browse: Browse) -> None:
    api.answers["/v1/auth/me"] = 200, {"name": "rob", "roles": ["requester"]}
    api.answers["/v1/status"] = 403, problem("role_required", "this needs the role reviewer or admin")
    refused = await browse("/status")
    assert refused.status_code == 403 and "not yours to do" in refused.text
    api.answers["/v1/agents"] = 200, {"items": [], "next": None}
    page = (await browse("/agents")).text
    assert 'href="/agents"' in page and 'href="/status"' not in page


async def test_a_tenants_administrator_sees_that_the_rest_is_the_operators(api: SpokenApi, browse: Browse) -> None:
    parts = [{"name": "postgres", "fault": ""}, {"name": "workers", "fault": "unavailable"}]
    api.answers["/v1/status"] = 200, deployment(is_operator=False, well=False, queues=[], parts=parts)
    page = (await browse("/status")).text
    assert "something is wrong" in page and "unavailable" in page and "workers" in page
    assert "shown to the operator of this deployment" in page
    assert "Temporal does not answer" not in page and 'id="queues"' not in page and 'id="servers"' not in page
