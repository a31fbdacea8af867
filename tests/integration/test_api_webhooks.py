"""Webhooks over HTTP, and what a chat may decide as a person."""

from dataclasses import replace

import pytest

from tests.integration.conftest import Api
from tests.integration.test_api_approvals import paused
from tests.integration.test_api_turns import refusal


@pytest.fixture
def allowed(api: Api) -> None:
    """The operator lets webhooks go to one host."""
    api.app.state.services = replace(api.services, webhook_hosts=("hooks.example.org",))


async def test_an_administrator_makes_sees_and_ends_webhooks(api: Api, allowed: None) -> None:
    async with api.client("admin") as admin:
        made = await admin.post("/v1/webhooks", json={"url": "https://hooks.example.org/x", "with_args": True})
        assert (made.status_code, len(made.json()["secret"])) == (201, 64)
        (shown,) = (await admin.get("/v1/webhooks")).json()["items"]
        assert (shown["url"], shown["made_by"], shown["waiting"]) == ("https://hooks.example.org/x", "admin", 0)
        assert "secret" not in shown, "it is shown once"
        path = f"/v1/webhooks/{shown['id']}"
        assert (await admin.delete(path)).json() == {"ended": True}
        assert (await admin.delete(path)).status_code == 404
        assert (await admin.get("/v1/webhooks")).json()["items"] == []
    async with api.services.db.transaction("local") as tx:
        kept = str([dict(row) for row in await tx.fetch("SELECT * FROM webhooks")])
    assert made.json()["secret"] not in kept


@pytest.mark.parametrize(
    "url", ["http://hooks.example.org/", "https://169.254.169.254/", "https://other.test/", "x", "", "https://a b"]
)
async def test_an_address_that_the_operator_does_not_allow_is_422(url: str, api: Api, allowed: None) -> None:
    async with api.client("admin") as admin:
        assert (await admin.post("/v1/webhooks", json={"url": url})).status_code == 422


async def test_without_the_operators_word_there_are_none(api: Api) -> None:
    api.app.state.services = api.services
    async with api.client("admin") as admin:
        answer = await admin.post("/v1/webhooks", json={"url": "https://hooks.example.org/x"})
        assert refusal(answer) == (422, "address_refused")


async def chat_token(api: Api, name: str) -> dict[str, str]:
    """The header of a chat that decides as this person."""
    async with api.client("admin") as admin:
        minted = await admin.post(f"/v1/users/{name}/tokens", json={"label": "chat"})
    return {"Authorization": f"Bearer {minted.json()['token']}"}


async def test_a_chat_decides_on_low_risk_alone_and_as_the_person(api: Api) -> None:
    head = await chat_token(api, "reviewer")
    async with api.client(None) as chat:
        asked = await paused(api)
        refused = await chat.post(f"{asked.path}/decision", json=asked.body(), headers=head)
        assert refusal(refused) == (403, "not_from_chat")
        async with api.services.db.transaction("local") as tx:
            await tx.execute("UPDATE approvals SET risk = 'low' WHERE id = $1", asked.approval["id"])
        own = await chat.post(f"{asked.path}/decision", json=asked.body(), headers=await chat_token(api, "requester"))
        assert own.status_code == 403, "nobody decides on the own request there either"
        done = await chat.post(f"{asked.path}/decision", json=asked.body(), headers=head)
        assert (done.status_code, done.json()["decided_by"]) == (200, "reviewer")
        assert done.json()["decision"]["channel"] == "chat"
        async with api.client("reviewer") as reviewer:
            assert refusal(await reviewer.post(f"{asked.path}/decision", json=asked.body())) == (409, "already_decided")


async def test_a_chats_token_is_good_for_nothing_else(api: Api) -> None:
    head = await chat_token(api, "admin")
    asked = await paused(api)
    async with api.client(None) as chat:
        assert (await chat.get(asked.path, headers=head)).status_code == 200
        for method, path, body in (
            ("GET", "/v1/approvals", None),
            ("POST", "/v1/approvals/decisions", {"items": [{"id": str(asked.approval["id"]), **asked.body()}]}),
            ("POST", f"{asked.path}/claim", {}),
            ("POST", f"{asked.path}/reassign", {"to": "admin"}),
            ("GET", "/v1/turns", None),
            ("POST", "/v1/conversations", {"agent": "refunds"}),
            ("POST", "/v1/users", {"name": "eve", "roles": ["admin"]}),
            ("POST", "/v1/auth/password", {"password": "taken over"}),
        ):
            assert refusal(await chat.request(method, path, json=body, headers=head)) == (403, "chat_token"), path
        token = head["Authorization"].removeprefix("Bearer ")
        assert refusal(await chat.post("/v1/auth/login", json={"token": token})) == (403, "chat_token")


async def test_an_event_stream_is_read_by_the_session_cookie(api: Api) -> None:
    asked = await paused(api)
    async with api.client(None) as browser:
        await browser.post("/v1/auth/login", json={"token": api.people["requester"].token})
        async with browser.stream("GET", f"/v1/turns/{asked.turn_id}/events") as events:
            assert events.status_code == 200
            async for line in events.aiter_lines():
                if "tool.awaiting_approval" in line:
                    break
            else:
                raise AssertionError("the stream never told of the approval")
