"""Access: tokens, tenants, roles; no user decides on an own request under any name."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from perdure.api.auth import OPEN_PATHS
from perdure.api.credentials import SESSION_COOKIE
from perdure.contracts.turns import Kind
from perdure.contracts.values import sha256_hex
from perdure.core.identity import OperatorTokens
from perdure.store.database import new_id
from perdure.store.status import ServerStates
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_approvals import Paused, final_turn, item, many, paused
from tests.integration.test_api_turns import code, conversation, refusal

OPEN = {"/healthz", "/readyz", "/v1/auth/ways"}
"""The only routes without a token, in addition to the documentation and the sign-in routes."""
FAULT = "dead server"
SOME_ID = "01a1fdeb-b782-7ebe-9496-5deb828d9713"
OPERATOR_TOKEN = "o" * 40
PASSWORD = "correct horse battery"
OWN = (403, "own_request")
RELATED = (403, "four_eyes_related")


async def routes(api: Api) -> list[tuple[str, str]]:
    async with api.client(None) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def filled(path: str) -> str:
    return "/".join(SOME_ID if part.startswith("{") else part for part in path.split("/"))


async def test_revoked_tokens_and_disabled_users_are_refused_at_once(api: Api, admin: Caller, visitor: Caller) -> None:
    await admin.post("/v1/users", json={"name": "leaver"})
    tokens = [(await admin.post("/v1/users/leaver/tokens", json={})).json()["token"] for _ in range(2)]
    heads = [{"Authorization": f"Bearer {token}"} for token in tokens]
    revoked = f"UPDATE api_tokens SET revoked_at = now() WHERE token_sha256 = '{sha256_hex(tokens[0])}'"
    disabled = "UPDATE users SET disabled_at = now() WHERE name = 'leaver'"
    for what, expected in (("SELECT", [200, 200]), (revoked, [401, 200]), (disabled, [401, 401])):
        await api.write(what)
        assert [(await visitor.get("/v1/auth/me", headers=head)).status_code for head in heads] == expected


async def test_an_administrator_adds_users_gives_roles_and_mints_tokens(api: Api, admin: Caller) -> None:
    added = await admin.post("/v1/users", json={"name": "ann", "display_name": "Ann", "roles": ["reviewer"]})
    assert (added.status_code, added.json()["roles"]) == (201, ["reviewer"])
    assert refusal(await admin.post("/v1/users", json={"name": "ann"})) == (409, "user_exists")
    token = (await admin.post("/v1/users/ann/tokens", json={"label": "laptop"})).json()["token"]
    assert (await admin.post("/v1/users/ann/roles", json={"roles": ["requester"]})).json()["roles"] == ["requester"]
    me = await admin.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"})
    assert (me.json()["name"], me.json()["roles"]) == ("ann", ["requester"])
    left = await admin.post("/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    assert refusal(left) == (409, "no_session")
    assert (await admin.post("/v1/users/nobody/tokens", json={})).status_code == 404
    kept = await api.rows("SELECT * FROM api_tokens")
    assert token not in str([dict(row) for row in kept]), "only its hash is stored"


async def test_agents_are_shown_to_every_token(requester: Caller) -> None:
    agents = {agent["id"]: agent for agent in (await requester.get("/v1/agents")).json()["items"]}
    assert agents["refunds"]["topology"] == "skill_pipeline"
    assert (await requester.get("/v1/agents/refunds")).json()["on_length"] == "continue"
    tools = {tool["name"]: tool for tool in (await requester.get("/v1/agents/refunds/tools")).json()["items"]}
    assert (tools["refund"]["effect"], tools["refund"]["needs_approval"]) == ("keyed", True)
    assert "secrets" not in tools["refund"]
    assert (await requester.get("/v1/agents/nobody/tools")).status_code == 404


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


async def test_an_operator_sees_which_worker_serves_which_queue_and_the_servers_faults(api: Api) -> None:
    looks = ServerStates(api.services.valkey)
    await looks.record_state("tools", "dead", FAULT)
    await looks.record_state("tools", "living", "")
    async with operator(api) as client:
        found = (await client.get("/v1/status")).json()
    routing = api.services.routing
    assert found["is_operator"] and not found["well"] and found["links"] == {}
    assert {each["name"] for each in found["queues"]} == {routing.waits, *(routing.queue(kind) for kind in Kind)}
    for queue in found["queues"]:
        assert (queue["workers"], queue["backlog"], queue["fault"]) == (1, 0, ""), queue
    met = {each["name"]: each["fault"] for each in found["mcp_servers"]}
    assert met["living"] == "" and FAULT in met["dead"]
    parts = {each["name"]: each["fault"] for each in found["parts"]}
    assert parts["relay"] and not parts["valkey"]
    assert (found["turns"], found["oldest_approval"]) == ([], None), "an operator's token is of no tenant"


@pytest.mark.parametrize("name", ["reviewer", "admin"])
async def test_a_tenant_sees_only_whether_the_deployment_is_well(api: Api, requester: Caller, name: str) -> None:
    await ServerStates(api.services.valkey).record_state("tools", "dead", FAULT)
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
    assert code(await requester.get("/v1/status")) == "role_required"


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


async def test_an_operators_token_reads_only_metrics_and_status(api: Api) -> None:
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


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Team:
    def __init__(self, api: Api) -> None:
        self.api = api

    def client(self, token: str) -> httpx.AsyncClient:
        return self.api.client_of(token)

    def token_of(self, name: str) -> str:
        """Of a local user, made by perdure/apps/bootstrap.py."""
        return self.api.people[name].token

    async def minted(self, by: str, *roles: str, name: str = "") -> tuple[str, str]:
        """A user and a token that the owner of the token `by` created for that user."""
        name = name or f"u{new_id()[-10:]}"
        async with self.client(by) as client:
            if roles:
                assert (await client.post("/v1/users", json={"name": name, "roles": roles})).status_code == 201
            made = await client.post(f"/v1/users/{name}/tokens", json={"label": "ci"})
        return name, str(made.json()["token"])

    async def invited(
        self, by: str, *roles: str, name: str = "", password: str = PASSWORD, at: str = "", also: str = ""
    ) -> tuple[str, str]:
        """A user and the access token of the session that the owner's registration with the invitation opened, by
        default at another address than the inviter's. `also` is the token with which the client is signed in."""
        elsewhere = httpx.AsyncHTTPTransport(local_address=at or "127.0.0.2")
        client_of = httpx.AsyncClient(base_url=self.api.url, transport=elsewhere, headers=bearer(also) if also else {})
        async with self.client(by) as client, client_of as visitor:
            if name:
                made = await client.post(f"/v1/team/{name}/invitation")
            else:
                name = f"u{new_id()[-10:]}"
                made = await client.post("/v1/team/invitations", json={"name": name, "roles": roles})
            given = {"name": name, "password": password, "invitation": made.json()["invitation"]}
            registered = await visitor.post("/v1/auth/register", json=given)
            assert registered.status_code == 201, registered.text
        return name, str(registered.json()["access_token"])

    async def signed_in(self, **given: str) -> dict[str, Any]:
        async with self.api.client(None) as visitor:
            answer = await visitor.post("/v1/auth/login", json=given)
            assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def decides(self, asked: Paused, token: str, decision: str = "approve") -> tuple[int, str]:
        """The answer: its status, and the code of its error or the approval's new status."""
        async with self.client(token) as client:
            answer = await asked.decided(client, decision, comment="so")
            if answer.status_code == 200:
                await final_turn(client, asked.turn_id)
        said = answer.json()
        return answer.status_code, said["error"]["code"] if "error" in said else said["status"]

    async def opened(self, asked: Paused) -> dict[str, Any]:
        """What the history says of the request and its requester."""
        async with self.client(self.token_of("reviewer")) as client:
            return dict((await client.get(asked.path)).json()["history"][0]["data"])

    async def signed_in_as(self, token: str) -> dict[str, Any]:
        async with self.client(token) as client:
            return dict((await client.get("/v1/auth/me")).json())

    async def history(self, asked: Paused) -> list[dict[str, Any]]:
        async with self.client(self.token_of("reviewer")) as client:
            shown: list[dict[str, Any]] = (await client.get(asked.path)).json()["history"]
        return [each for each in shown if each["what"] == "approval.decided"]

    async def paused(self, token: str) -> Paused:
        """A high-risk request, made with this token."""
        async with self.client(token) as client:
            path = f"/v1/conversations/{await conversation(client)}/turns"
            turn = (await client.post(path, params={"wait": 20}, json={"message": "Refund order 1042"})).json()
            approval = (await client.get(f"/v1/approvals/{turn['waiting_for']['ids'][0]}")).json()
        assert approval["risk"] == "high"
        return Paused(turn["turn_id"], approval)

    async def is_related(self, asked: Paused, token: str, *wanted: tuple[str, str, str]) -> None:
        """Checks that the owner of the token may only reject, for these reasons, and that another reviewer decides."""
        async with self.client(token) as client:
            answer = await asked.decided(client)
            assert refusal(answer) == RELATED
            reasons = [
                (each["relation"], each["of"], each["by"]) for each in answer.json()["error"]["details"]["related"]
            ]
            assert reasons == [*wanted]
            shown = (await client.get(asked.path)).json()
            assert shown["related"] == answer.json()["error"]["details"]["related"]
            assert shown["allowed_decisions"] == ["reject", "respond"]


@pytest.fixture
def team(api: Api) -> Team:
    return Team(api)


async def test_a_minted_token_decides_nothing_that_its_creator_requested_in_whatever_form(team: Team) -> None:
    admin = team.token_of("admin")
    asked = await paused(team.api, by="admin")
    assert await team.decides(asked, admin) == OWN
    name, minted = await team.minted(admin, "requester", "reviewer", "admin")
    assert await team.decides(asked, minted) == OWN, "the token"
    assert await team.decides(asked, minted, "reject") == OWN
    session = await team.signed_in(token=minted)
    assert await team.decides(asked, session["access_token"]) == OWN, "a session that it opened"
    async with team.api.client(None) as client:
        again = await client.post("/v1/auth/refresh", json={"refresh_token": session["refresh_token"]})
    assert await team.decides(asked, again.json()["access_token"]) == OWN, "the session, refreshed"
    token = session["access_token"]
    before: dict[str, str] = {}
    for password in (PASSWORD, "another good one"):
        async with team.client(token) as client:
            assert (await client.post("/v1/auth/password", json={"password": password, **before})).status_code == 200
        token, before = (await team.signed_in(name=name, password=password))["access_token"], {"current": password}
        assert await team.decides(asked, token) == OWN, "a password that it set or changed"
    _, second = await team.minted(token, "reviewer")
    assert await team.decides(asked, second) == OWN, "a token that it minted"
    _, own = await team.minted(minted, name=name)
    assert await team.decides(asked, own) == OWN, "a token that it minted for itself"
    assert await team.decides(asked, team.token_of("reviewer")) == (200, "approved")


async def test_a_minted_token_neither_sees_nor_chooses_reviewers_of_its_creators_requests(team: Team) -> None:
    asked = await paused(team.api, by="admin")
    _, minted = await team.minted(team.token_of("admin"), "reviewer", "admin")
    async with team.client(minted) as client:
        for verb, body in (("claim", {}), ("reassign", {"to": "reviewer"}), ("escalate", {})):
            assert refusal(await client.post(f"{asked.path}/{verb}", json=body)) == OWN, verb
        assert (await client.get(asked.path)).json()["allowed_decisions"] == []
        mine = (await client.get("/v1/approvals", params={"mine": True, "limit": 200})).json()["items"]
        assert asked.approval["id"] not in [each["id"] for each in mine]
        before = (await client.get("/v1/approvals/counts")).json()["mine"]
        (refused,) = await many(client, item(asked, comment="so"))
        assert refused["error"]["code"] == "own_request"
    other = await paused(team.api, by="requester")
    async with team.client(minted) as client:
        assert (await client.get("/v1/approvals/counts")).json()["mine"] == before + 1
    assert await team.decides(other, minted) == (200, "approved"), "what others requested it decides"
    assert await team.decides(asked, team.token_of("reviewer"), "reject") == (200, "rejected")


async def test_a_chain_of_token_creators_is_followed_to_its_end(team: Team) -> None:
    asked = await paused(team.api, by="admin")
    _, second_admin = await team.minted(team.token_of("admin"), "admin")
    _, third_admin = await team.minted(second_admin, "admin")
    _, reviewer = await team.minted(third_admin, "reviewer")
    assert await team.decides(asked, reviewer) == OWN
    own_admin, session = await team.invited(team.token_of("admin"), "admin", "reviewer")
    name, minted = await team.minted(session, "reviewer")
    assert await team.decides(asked, minted) == (200, "approved"), "another administrator's own session made it"
    entry = (await team.history(asked))[-1]
    assert entry["data"]["signed_in"] == {"how": "token", "created_by": own_admin}
    assert (entry["what"], entry["by"]) == ("approval.decided", name)


async def test_an_invited_reviewer_decides_and_the_history_shows_who_invited(team: Team) -> None:
    asked = await paused(team.api, by="admin")
    name, session = await team.invited(team.token_of("admin"), "reviewer")
    by_password = await team.signed_in(name=name, password=PASSWORD)
    assert await team.decides(asked, by_password["access_token"]) == (200, "approved")
    assert (await team.history(asked))[-1]["data"]["signed_in"] == {"how": "password", "invited_by": "admin"}
    asked = await paused(team.api, by="admin")
    assert await team.decides(asked, session) == (200, "approved")
    assert (await team.history(asked))[-1]["data"]["signed_in"] == {"how": "invitation", "invited_by": "admin"}


async def test_a_user_whose_password_the_requester_reset_never_decides_on_their_requests(team: Team) -> None:
    admin = team.token_of("admin")
    asked = await paused(team.api, by="admin")
    name, before = await team.invited(admin, "reviewer")
    for password in ("the second one here", "the third one here"):
        _, session = await team.invited(admin, name=name, password=password)
        assert await team.decides(asked, session) == OWN
        by_password = await team.signed_in(name=name, password=password)
        assert await team.decides(asked, by_password["access_token"]) == OWN
    async with team.client(before) as client:
        over = await client.get("/v1/auth/me")
        assert refusal(over) == (401, "session_over"), "a reset ends the sessions that were open"
    _, other = await team.invited(admin, "admin")
    _, session = await team.invited(other, name=name, password="the fourth one here")
    assert await team.decides(asked, session) == (200, "approved"), "reset by another administrator"


async def test_a_token_of_an_unknown_creator_decides_no_administrators_request(team: Team) -> None:
    _, minted = await team.minted(team.token_of("admin"), "reviewer")
    await team.api.write("UPDATE api_tokens SET created_by = DEFAULT WHERE token_sha256 = $1", sha256_hex(minted))
    asked, plain = await paused(team.api, by="admin"), await paused(team.api, by="requester")
    assert await team.decides(asked, minted) == OWN
    assert await team.decides(plain, minted) == (200, "approved")
    assert (await team.history(plain))[-1]["data"]["signed_in"] == {"how": "token", "created_by": "unknown"}
    _, child = await team.minted((await team.minted(team.token_of("admin"), "admin"))[1], "reviewer")
    assert await team.decides(asked, child) == OWN
    assert await team.decides(asked, team.token_of("reviewer")) == (200, "approved")


ROLES = ("requester", "reviewer")


async def test_an_inviter_and_who_redeemed_beside_them_do_not_approve_each_others_calls(team: Team) -> None:
    admin = team.token_of("admin")
    name, session = await team.invited(admin, *ROLES, at="127.0.0.1")
    await team.is_related(asked := await team.paused(session), admin, ("inviter", "requester", "admin"))
    opened = {"opened": "invitation", "invited_near": True, "invited_by": "admin", "roles_by": "admin"}
    assert (await team.opened(asked))["account"] == opened
    assert await team.decides(asked, team.token_of("reviewer")) == (200, "approved")
    await team.is_related(asked := await team.paused(admin), session, ("inviter", "reviewer", "admin"))
    by_password = (await team.signed_in(name=name, password=PASSWORD))["access_token"]
    await team.is_related(asked, by_password, ("inviter", "reviewer", "admin"))
    assert await team.decides(asked, session, "reject") == (200, "rejected")
    said = (await team.history(asked))[-1]["data"]
    assert said["related"] == [{"relation": "inviter", "of": "reviewer", "by": "admin"}]
    assert said["account"] == opened
    _, others_session = await team.invited(admin, *ROLES, at="127.0.0.1")
    asked = await team.paused(session)
    assert await team.decides(asked, others_session) == (200, "approved"), "one inviter of two is no relation"


async def test_an_invitation_redeemed_as_its_inviter_makes_two_accounts_of_one(team: Team) -> None:
    _, own = await team.invited(team.token_of("admin"), "admin", *ROLES)
    me = (await team.signed_in_as(own))["name"]
    _, session = await team.invited(own, *ROLES, also=own)
    _, seconds_session = await team.invited(own, *ROLES, also=own)
    why = ("opened_as", "requester", me)
    await team.is_related(asked := await team.paused(session), own, why)
    assert (await team.opened(asked))["account"]["opened_as"] == me
    await team.is_related(asked, seconds_session, why, ("opened_as", "reviewer", me))
    await team.is_related(await team.paused(own), session, ("opened_as", "reviewer", me))
    assert await team.decides(asked, team.token_of("admin")) == (200, "approved")


@pytest.mark.parametrize(("leaves", "relation"), [(False, "opened_as"), (True, "inviter")])
async def test_an_invitation_redeemed_in_its_inviters_browser_shows_no_other_person(
    team: Team, leaves: bool, relation: str
) -> None:
    me, own = await team.invited(team.token_of("admin"), "admin", *ROLES)
    elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.3")
    name = f"u{new_id()[-10:]}"
    async with team.client(own) as client, httpx.AsyncClient(base_url=team.api.url, transport=elsewhere) as browser:
        made = await client.post("/v1/team/invitations", json={"name": name, "roles": [*ROLES]})
        await browser.post("/sign-in", data={"name": me, "password": PASSWORD})
        if leaves:
            browser.cookies.delete(SESSION_COOKIE)
        form = {"name": name, "password": PASSWORD, "invitation": made.json()["invitation"]}
        assert "failed" not in (await browser.post("/sign-in", data=form)).headers["location"]
    session = (await team.signed_in(name=name, password=PASSWORD))["access_token"]
    await team.is_related(await team.paused(session), own, (relation, "requester", me))


async def test_who_redeems_elsewhere_or_before_this_was_recorded_is_another_person(team: Team) -> None:
    admin = team.token_of("admin")
    _, session = await team.invited(admin, *ROLES)
    asked = await team.paused(session)
    assert (await team.opened(asked))["account"]["invited_near"] is False
    assert await team.decides(asked, admin) == (200, "approved")
    near, session = await team.invited(admin, *ROLES, at="127.0.0.1")
    await team.api.write("UPDATE users SET opened = '', invited_near = NULL WHERE name = $1", near)
    assert await team.decides(await team.paused(session), admin) == (200, "approved")


async def test_who_gave_a_registered_account_its_roles_does_not_decide_with_it(team: Team) -> None:
    admin = team.token_of("admin")
    signing_in = replace(team.api.services.signing_in, open_registration=True)
    async with having(team.api, signing_in=signing_in), team.api.client(None) as visitor, team.client(admin) as client:
        sessions = {}
        for name in (f"u{new_id()[-10:]}" for _ in range(2)):
            made = await visitor.post("/v1/auth/register", json={"name": name, "password": PASSWORD})
            sessions[name] = made.json()["access_token"]
            visitor.cookies.clear()
            given = await client.post(f"/v1/users/{name}/roles", json={"roles": ["admin", *ROLES]})
            assert given.status_code == 200, given.text
        (second, own), (third, other) = sessions.items()
        await team.is_related(asked := await team.paused(own), admin, ("role_giver", "requester", "admin"))
        assert (await team.opened(asked))["account"] == {"opened": "registration", "roles_by": "admin"}
        await team.is_related(await team.paused(admin), own, ("role_giver", "reviewer", "admin"))
        async with team.client(own) as second_client:
            assert (await second_client.post(f"/v1/users/{third}/roles", json={"roles": [*ROLES]})).status_code == 200
        await team.is_related(await team.paused(admin), other, ("role_giver", "reviewer", "admin"))
        await team.is_related(await team.paused(own), other, ("role_giver", "reviewer", second))
        alias = {"name": f"u{new_id()[-10:]}", "password": PASSWORD}
        asked = await team.paused((await client.post("/v1/auth/register", json=alias)).json()["access_token"])
        await team.is_related(asked, admin, ("opened_as", "requester", "admin"))


async def test_who_registers_after_signing_out_in_one_browser_is_its_earlier_user(team: Team) -> None:
    me, own = await team.invited(team.token_of("admin"), "admin", *ROLES)
    signing_in = replace(team.api.services.signing_in, open_registration=True)
    async with having(team.api, signing_in=signing_in), team.api.client(None) as browser:
        await browser.post("/sign-in", data={"name": me, "password": PASSWORD})
        forged = {each.name: each.value for each in browser.cookies.jar if each.name != SESSION_COOKIE}
        for is_forged in (False, True):
            browser.cookies.clear()
            head = {"Cookie": "; ".join(f"{name}={value}{'x' * is_forged}" for name, value in forged.items())}
            name = {"name": f"u{new_id()[-10:]}", "password": PASSWORD}
            session = (await browser.post("/v1/auth/register", json=name, headers=head)).json()["access_token"]
            asked = await team.paused(session)
            if is_forged:
                assert (await team.opened(asked))["account"] == {"opened": "registration"}
                assert await team.decides(asked, own) == (200, "approved")
            else:
                await team.is_related(asked, own, ("opened_as", "requester", me))


async def test_who_made_the_token_that_answers_a_question_does_not_approve_what_follows(team: Team) -> None:
    admin, question = team.token_of("admin"), new_id()
    me, own = await team.invited(admin, *ROLES)
    asked = await team.paused(own)
    await team.api.write(
        "INSERT INTO questions (id, tenant_id, conversation_id, turn_id, call_id, kind, asked, answer_schema, "
        "expires_at) SELECT $1, tenant_id, conversation_id, id, 'q1', 'clarification', '{}', '{}', now() + interval "
        "'1 day' FROM turns WHERE id = $2",
        question,
        asked.turn_id,
    )
    _, minted = await team.minted(admin, name=me)
    async with team.client(minted) as client:
        said = {"kind": "clarification", "payload": {"text": "order 1042"}}
        answer = await client.post(f"/v1/turns/{asked.turn_id}/answers/{question}", json=said)
        assert answer.status_code == 200, answer.text
    await team.is_related(asked, admin, ("credential", "requester", "admin"))


async def test_who_made_the_requesting_token_does_not_approve_what_it_requested(team: Team) -> None:
    admin = team.token_of("admin")
    _, minted = await team.minted(admin, *ROLES)
    asked = await team.paused(minted)
    assert (await team.opened(asked))["asked_with"] == {"how": "token", "created_by": "admin"}
    await team.api.write("DELETE FROM api_tokens WHERE token_sha256 = $1", sha256_hex(minted))
    await team.is_related(asked, admin, ("credential", "requester", "admin"))
    async with team.api.client(None) as browser:
        await browser.post("/sign-in", data={"token": admin})
        page = (await browser.get(f"/review/{asked.approval['id']}")).text
        assert 'id="related"' in page and 'value="reject"' in page and 'value="approve"' not in page
    _, second = await team.minted(admin, "reviewer")
    assert await team.decides(asked, second) == (200, "approved"), "one creator of two tokens is no relation"


async def test_a_tenant_can_allow_related_decisions_and_the_history_shows_them(team: Team) -> None:
    admin = team.token_of("admin")
    _, minted = await team.minted(admin, *ROLES)
    asked = await team.paused(minted)
    async with team.client(minted) as client:
        assert refusal(await client.put("/v1/rules/related", json={"related_decide": True}))[0] == 403
    async with team.client(admin) as client:
        assert (await client.put("/v1/rules/related", json={"related_decide": True})).json() == {"related_decide": True}
        try:
            assert (await client.get(asked.path)).json()["allowed_decisions"][0] == "approve"
            assert await team.decides(asked, admin) == (200, "approved")
        finally:
            await client.put("/v1/rules/related", json={"related_decide": False})
        exported = (await client.get("/v1/audit/export")).text.splitlines()
    settings = [row["data"] for row in map(json.loads, exported) if row["kind"] == "approval.four_eyes_set"]
    assert settings == [{"related_decide": allowed, "before": not allowed} for allowed in (True, False)]
    assert (await team.history(asked))[-1]["data"]["related"] == [
        {"relation": "credential", "of": "requester", "by": "admin"}
    ]


async def test_a_promotion_is_not_decided_by_its_proposer_with_another_token(team: Team) -> None:
    admin = team.token_of("admin")
    _, minted = await team.minted(admin, "reviewer", "admin")
    async with team.client(admin) as client:
        refused = await client.post("/v1/users/reviewer/tokens", json={"label": "local"})
        assert refusal(refused) == (422, "label_reserved"), "the one of bootstrap's own tokens"
        text = {"scope": "user", "path": "n", "type": "user_preference", "title": "n", "content": "herons"}
        made = await client.post("/v1/memory/documents", json=text)
        proposal = {"document_id": made.json()["id"], "store": "workspace_runbooks", "path": "r/x", "risk": "low"}
        promotion = (await client.post("/v1/memory/promotions", json=proposal)).json()
    async with team.client(minted) as client:
        body = {"decision": "approve", "sha256": promotion["sha256"], "comment": ""}
        refused = await client.post(f"/v1/memory/promotions/{promotion['id']}/decision", json=body)
    assert refusal(refused) == (403, "own_promotion")
