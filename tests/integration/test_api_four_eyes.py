"""Nobody decides on an own request with a token, a session or a password that was made for another user."""

from typing import Any

import httpx
import pytest

from perdure.contracts.values import sha256_hex
from perdure.store.database import new_id
from tests.integration.conftest import Api
from tests.integration.test_api_approvals import Paused, ended, item, many, paused
from tests.integration.test_api_turns import refusal

PASSWORD = "correct horse battery"
OWN = (403, "own_request")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Team:
    def __init__(self, api: Api) -> None:
        self.api = api

    def client(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.api.url, headers=bearer(token), timeout=30)

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

    async def invited(self, by: str, *roles: str, name: str = "", password: str = PASSWORD) -> tuple[str, str]:
        """A user and the access token of the session that the owner's registration with the invitation opened."""
        async with self.client(by) as client, self.api.client(None) as visitor:
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
                await ended(client, asked.turn_id)
        said = answer.json()
        return answer.status_code, said["error"]["code"] if "error" in said else said["status"]

    async def history(self, asked: Paused) -> list[dict[str, Any]]:
        async with self.client(self.token_of("reviewer")) as client:
            shown: list[dict[str, Any]] = (await client.get(asked.path)).json()["history"]
        return [each for each in shown if each["what"] == "approval.decided"]


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
            given = {"password": password, **before}
            assert (await client.post("/v1/auth/password", json=given)).status_code == 200
        token, before = (await team.signed_in(name=name, password=password))["access_token"], {"current": password}
        assert await team.decides(asked, token) == OWN, "a password that it set or changed"
    _, second = await team.minted(token, "reviewer")
    assert await team.decides(asked, second) == OWN, "a token that it minted"
    _, own = await team.minted(minted, name=name)
    assert await team.decides(asked, own) == OWN, "a token that it minted for itself"
    assert await team.decides(asked, team.token_of("reviewer")) == (200, "approved")


async def test_nor_does_it_choose_who_decides_or_see_it_as_its_own_to_decide(team: Team) -> None:
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


async def test_the_chain_of_creators_is_as_long_as_it_is(team: Team) -> None:
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
    entry = (await team.history(asked))[-1]
    assert entry["data"]["signed_in"] == {"how": "password", "invited_by": "admin"}
    asked = await paused(team.api, by="admin")
    assert await team.decides(asked, session) == (200, "approved")
    assert (await team.history(asked))[-1]["data"]["signed_in"] == {"how": "invitation", "invited_by": "admin"}


async def test_a_password_that_the_requester_reset_decides_nothing_of_theirs_however_often_it_is_reset(
    team: Team,
) -> None:
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


async def test_a_token_of_an_unknown_creator_decides_nothing_that_an_administrator_requested(team: Team) -> None:
    _, minted = await team.minted(team.token_of("admin"), "reviewer")
    async with team.api.services.db.transaction("local") as tx:
        await tx.execute("UPDATE api_tokens SET created_by = DEFAULT WHERE token_sha256 = $1", sha256_hex(minted))
    asked, plain = await paused(team.api, by="admin"), await paused(team.api, by="requester")
    assert await team.decides(asked, minted) == OWN
    assert await team.decides(plain, minted) == (200, "approved")
    assert (await team.history(plain))[-1]["data"]["signed_in"] == {"how": "token", "created_by": "unknown"}
    _, child = await team.minted((await team.minted(team.token_of("admin"), "admin"))[1], "reviewer")
    assert await team.decides(asked, child) == OWN
    assert await team.decides(asked, team.token_of("reviewer")) == (200, "approved")


async def test_nor_is_a_promotion_decided_by_its_proposer_in_another_name(team: Team) -> None:
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
