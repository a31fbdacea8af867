"""Who may do what: tokens, tenants, roles."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from perdure.api.auth import OPEN_PATHS
from perdure.contracts.turns import Kind
from perdure.contracts.values import sha256_hex
from perdure.core.identity import OperatorTokens
from perdure.store.status import ServerLooks
from tests.integration.conftest import Api
from tests.integration.test_api_approvals import paused
from tests.integration.test_api_turns import code, conversation, refusal

OPEN = {"/healthz", "/readyz", "/v1/auth/ways"}
"""The only routes without a token, beside the documentation and those by which one gets it; the last one says which
ways of getting it there are."""
SOME_ID = "01a1fdeb-b782-7ebe-9496-5deb828d9713"


async def routes(api: Api) -> list[tuple[str, str]]:
    async with api.client(None) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def filled(path: str) -> str:
    return "/".join(SOME_ID if part.startswith("{") else part for part in path.split("/"))


async def test_a_wrong_token_is_401(api: Api) -> None:
    async with api.client(None) as client:
        for given in (
            "",
            "Bearer",
            "Bearer nothing",
            "Basic dXNlcjpwYXNz",
            "bearer\tx",
            "Bearer " + "x" * 5_000,
            "Bearer é",
        ):
            answer = await client.get("/v1/turns", headers=[(b"Authorization", given.encode("latin-1"))])
            assert refusal(answer) in ((401, "token_missing"), (401, "token_invalid"))


async def test_a_revoked_token_and_a_disabled_user_are_out_at_once(api: Api) -> None:
    async with api.client("admin") as admin:
        await admin.post("/v1/users", json={"name": "leaver"})
        tokens = [(await admin.post("/v1/users/leaver/tokens", json={})).json()["token"] for _ in range(2)]
    async with api.client(None) as client:
        heads = [{"Authorization": f"Bearer {token}"} for token in tokens]
        revoked = f"UPDATE api_tokens SET revoked_at = now() WHERE token_sha256 = '{sha256_hex(tokens[0])}'"
        disabled = "UPDATE users SET disabled_at = now() WHERE name = 'leaver'"
        for what, expected in (("SELECT", [200, 200]), (revoked, [401, 200]), (disabled, [401, 401])):
            async with api.services.db.transaction("local") as tx:
                await tx.execute(what)
            assert [(await client.get("/v1/auth/me", headers=head)).status_code for head in heads] == expected


async def test_an_administrator_adds_users_gives_roles_and_mints_tokens(api: Api) -> None:
    async with api.client("admin") as client:
        added = await client.post("/v1/users", json={"name": "ann", "display_name": "Ann", "roles": ["reviewer"]})
        assert (added.status_code, added.json()["roles"]) == (201, ["reviewer"])
        assert refusal(await client.post("/v1/users", json={"name": "ann"})) == (409, "user_exists")
        token = (await client.post("/v1/users/ann/tokens", json={"label": "laptop"})).json()["token"]
        changed = await client.post("/v1/users/ann/roles", json={"roles": ["requester"]})
        assert changed.json()["roles"] == ["requester"]
        me = await client.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"})
        assert (me.json()["name"], me.json()["roles"]) == ("ann", ["requester"])
        assert (await client.post("/v1/users/nobody/tokens", json={})).status_code == 404
    async with api.services.db.transaction("local") as tx:
        kept = await tx.fetch("SELECT * FROM api_tokens")
    assert token not in str([dict(row) for row in kept]), "only its hash is stored"


async def test_agents_and_topologies_are_shown_to_whoever_has_a_token(api: Api) -> None:
    async with api.client() as client:
        agents = {agent["id"]: agent for agent in (await client.get("/v1/agents")).json()["items"]}
        assert agents["refunds"]["topology"] == "skill_pipeline"
        tools = {tool["name"]: tool for tool in (await client.get("/v1/agents/refunds/tools")).json()["items"]}
        assert (tools["refund"]["effect"], tools["refund"]["needs_approval"]) == ("keyed", True)
        assert "secrets" not in tools["refund"]
        assert (await client.get("/v1/agents/nobody/tools")).status_code == 404
        names = [topology["name"] for topology in (await client.get("/v1/topologies")).json()["items"]]
        assert names
        for name in names:
            assert (await client.get(f"/v1/topologies/{name}")).json()["nodes"]
            drawn = await client.get(f"/v1/topologies/{name}.mmd")
            assert drawn.text.startswith(("flowchart", "---", "graph", "%%")), drawn.text[:80]
        for missing in ("nothing", "nothing.mmd"):
            assert (await client.get(f"/v1/topologies/{missing}")).status_code == 404


OPERATOR_TOKEN = "o" * 40


@asynccontextmanager
async def having(api: Api, **given: object) -> AsyncIterator[None]:
    services = api.services
    api.app.state.services = replace(services, **given)  # type: ignore[arg-type]
    try:
        yield
    finally:
        api.app.state.services = services


@asynccontextmanager
async def operator(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """A client with an operator's token, which this API knows meanwhile."""
    async with having(api, operators=OperatorTokens.of(OPERATOR_TOKEN)), api.client(None) as client:
        client.headers["Authorization"] = f"Bearer {OPERATOR_TOKEN}"
        yield client


async def test_an_operator_sees_who_serves_which_queue_and_how_servers_were_met(api: Api) -> None:
    looks = ServerLooks(api.services.valkey)
    await looks.met("tools", "dead", "the server dead cannot be reached (OSError)")
    await looks.met("tools", "living", "")
    async with operator(api) as client:
        found = (await client.get("/v1/status")).json()
    routing = api.services.routing
    assert found["is_operator"] and not found["well"] and found["links"] == {}
    assert {each["name"] for each in found["queues"]} == {routing.waits, *(routing.queue(kind) for kind in Kind)}
    for queue in found["queues"]:
        assert (queue["workers"], queue["backlog"], queue["fault"]) == (1, 0, ""), queue
    met = {each["name"]: each["fault"] for each in found["mcp_servers"]}
    assert met["living"] == "" and "cannot be reached" in met["dead"]
    parts = {each["name"]: each["fault"] for each in found["parts"]}
    assert parts["relay"] and not parts["valkey"]
    assert (found["turns"], found["oldest_approval"]) == ([], None), "an operator's token is of no tenant"


@pytest.mark.parametrize("name", ["reviewer", "admin"])
async def test_of_the_deployment_a_tenant_sees_only_whether_it_is_well(api: Api, name: str) -> None:
    await ServerLooks(api.services.valkey).met("tools", "dead", "the server dead cannot be reached (OSError)")
    asked = await paused(api)
    async with api.client(name) as client:
        found = (await client.get("/v1/status")).json()
        parts = {each["name"]: each["fault"] for each in found["parts"]}
        assert parts.keys() == {"postgres", "temporal", "valkey", "workers", "relay", "mcp_servers"}
        assert {name for name, fault in parts.items() if fault} == {"relay", "mcp_servers"}
        assert (found["is_operator"], found["well"]) == (False, False)
        assert (found["queues"], found["mcp_servers"], found["links"]) == ([], [], {})
        assert [each["status"] for each in found["turns"]] == ["awaiting_approval"]
        assert found["oldest_approval"]["id"] == asked.approval["id"]
        for word in ("reached", "session", "backlog", "tools", "http"):
            assert word not in str(found), word
        await client.post(f"/v1/turns/{asked.turn_id}/stop")
    async with api.client() as client:
        assert code(await client.get("/v1/status")) == "role_required"


async def test_a_local_reviewer_is_the_operator_of_the_own_machine(api: Api) -> None:
    asked = await paused(api)
    ui = "http://temporal.test"
    for local in (False, True):
        others = api.client("reviewer"), api.client()
        async with having(api, local=local, temporal_ui=ui), others[0] as client, others[1] as requester:
            assert (await client.get("/v1/status")).json()["is_operator"] is local
            assert (await client.get("/metrics")).status_code == (200 if local else 403)
            for path in (f"/v1/turns/{asked.turn_id}", asked.path, "/v1/status"):
                shown = (await client.get(path)).json()
                assert (ui in str(shown)) is local, (path, shown["links"])
            assert (await requester.get("/metrics")).status_code == 403
            assert ui not in (await requester.get(f"/v1/turns/{asked.turn_id}")).text


async def test_an_operators_token_reads_metrics_without_a_name_and_status_and_nothing_else(api: Api) -> None:
    async with api.client() as client:
        await conversation(client)
    async with operator(api) as client:
        for method, path in await routes(api):
            answer = await client.request(method, filled(path), json={})
            if path in ("/metrics", "/v1/status"):
                assert answer.status_code == 200, path
            elif path not in OPEN | OPEN_PATHS:
                assert refusal(answer) == (401, "token_invalid"), (method, path)
        metrics = (await client.get("/metrics")).text
        for name in ("perdure_http_request_seconds", "perdure_streams", "perdure_turns_started", "perdure_decisions"):
            assert name in metrics
        assert 'route="/v1/conversations"' in metrics
        assert SOME_ID not in metrics and "requester" not in metrics
        for token in (OPERATOR_TOKEN[:-1], OPERATOR_TOKEN + "o"):
            answer = await client.get("/metrics", headers={"Authorization": f"Bearer {token}"})
            assert refusal(answer) == (401, "token_invalid"), token
