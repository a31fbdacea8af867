"""Signing in at a provider elsewhere, over real HTTP: who gets in, as whom, and what is turned away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey

from perdure.api.oidc import OidcConfig, Provider
from perdure.egress import EgressRefused
from tests.doubles.hostile_target import Talk, bomb, floods, says, threaded
from tests.doubles.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider
from tests.doubles.resolver import Names
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_approvals import paused
from tests.integration.test_api_turns import refusal

START, CALLBACK = "/v1/auth/oidc/start", "/v1/auth/oidc/callback"


@pytest.fixture(scope="module")
async def oidc_server() -> AsyncIterator[OidcProvider]:
    provider = await OidcProvider().start()
    yield provider
    await provider.stop()


@pytest.fixture
def provider(oidc_server: OidcProvider, api: Api) -> OidcProvider:
    oidc_server.person = {"sub": "s-1", "preferred_username": "Olga.N", "name": "Olga N"}
    oidc_server.bent, oidc_server.signs_with = {}, None
    oidc_server.redirect_uris = {f"{api.url}{CALLBACK}"}
    trust(api, oidc_server)
    return oidc_server


def trust(api: Api, provider: OidcProvider, **changed: Any) -> None:
    config = replace(OidcConfig(provider.issuer, CLIENT_ID, CLIENT_SECRET, ("requester",)), **changed)
    api.app.state.services = replace(api.services, oidc=Provider(config))


async def come(client: httpx.AsyncClient, **asked: str) -> httpx.Response:
    """Sign in as a browser does, to the answer of the callback."""
    begun = await client.get(START, params=asked)
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as elsewhere:  # the provider's own cookies are not ours
        back = await elsewhere.get(begun.headers["location"])
    assert back.status_code == 307, back.text
    return await client.get(back.headers["location"])


def failed(answer: httpx.Response) -> str:
    where = httpx.URL(answer.headers["location"])
    assert (answer.status_code, where.path) == (303, "/sign-in"), answer.text
    return where.params["failed"]


async def test_a_new_user_gets_an_account_and_finds_it_again(api: Api, provider: OidcProvider) -> None:
    ids = []
    for _ in range(2):
        async with api.client(None) as client:
            answer = await come(client, next="/review?mine=1")
            assert (answer.status_code, answer.headers["location"]) == (303, "/review?mine=1")
            me = (await client.get("/v1/auth/me")).json()
            assert (me["name"], me["display_name"], me["roles"]) == ("olga.n", "Olga N", ["requester"])
            ids.append(me["user_id"])
            assert set(client.cookies) == {"perdure_session"}, "what the sign-in carried along is gone"
    assert len(set(ids)) == 1


async def test_an_account_is_linked_by_its_owner_and_never_by_its_name_alone(api: Api, provider: OidcProvider) -> None:
    provider.person = {"sub": "s-2", "preferred_username": "reviewer"}
    async with api.client(None) as client:
        assert failed(await come(client)) == "user_exists"
        assert "perdure_session" not in client.cookies
        assert (await client.post("/v1/auth/login", json={"token": api.people["reviewer"].token})).status_code == 200
        forged = await client.get(START, params={"link": "1"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert failed(forged) == "foreign_origin", "no user is linked to an identity of another site's choice"
        assert (await come(client, link="1")).headers["location"] == "/review"
    async with api.client(None) as client:
        await come(client)
        assert (await client.get("/v1/auth/me")).json()["user_id"] == api.people["reviewer"].user_id, "one person"
        await client.post("/v1/auth/login", json={"token": api.people["requester"].token})
        assert failed(await come(client, link="1")) == "identity_taken"


async def test_an_identity_linked_by_a_minted_token_is_its_creators_too(api: Api, provider: OidcProvider) -> None:
    provider.person = {"sub": "s-puppet", "preferred_username": "somebody"}
    asked = await paused(api, by="admin")
    async with api.client("admin") as admin, api.client(None) as puppet:
        await admin.post("/v1/users", json={"name": "puppet", "roles": ["reviewer"]})
        token = (await admin.post("/v1/users/puppet/tokens", json={})).json()["token"]
        await puppet.post("/v1/auth/login", json={"token": token})
        assert (await come(puppet, link="1")).headers["location"] == "/review"
    for sub, name, expected in (("s-puppet", "puppet", 403), ("s-olga", "olga.b", 200)):
        provider.person = {"sub": sub, "preferred_username": name}
        trust(api, provider, newcomers=("reviewer",))
        async with api.client(None) as client:
            await come(client)
            assert (await client.get("/v1/auth/me")).json()["name"] == name
            headers = {"X-Perdure-Request": "1", "Origin": api.url}
            answer = await client.post(f"{asked.path}/decision", json=asked.body(), headers=headers)
            assert answer.status_code == expected, (name, answer.text)
    assert answer.json()["history"][-1]["data"]["signed_in"] == {"how": "oidc"}


async def test_uninvited_and_disabled_users_are_not_signed_in(api: Api, provider: OidcProvider) -> None:
    trust(api, provider, newcomers=())
    provider.person = {"sub": "s-3", "preferred_username": "new"}
    async with api.client(None) as client:
        assert failed(await come(client)) == "newcomers_refused"
    trust(api, provider)
    provider.person = {"sub": "s-4", "preferred_username": "shut"}
    async with api.client(None) as client, api.client("admin") as admin:
        await come(client)
        await admin.delete("/v1/team/shut")
        assert failed(await come(client)) == "account_closed"


async def test_the_providers_answer_must_be_for_this_sign_in(api: Api, provider: OidcProvider) -> None:
    wrong: list[dict[str, Any]] = [
        {"iss": "https://other.test"},
        *({"aud": aud} for aud in ("somebody-else", [CLIENT_ID, "somebody-else"])),
        {"aud": [CLIENT_ID, "somebody-else"], "azp": "somebody-else"},
        *({"nonce": "another"}, {"exp": 1}),
        *({name: None} for name in ("nonce", "exp", "iat", "sub")),
    ]
    async with api.client(None) as client:
        for provider.bent in wrong:
            assert failed(await come(client)) == "oidc_refused", provider.bent
            assert "perdure_session" not in client.cookies


async def test_an_id_token_of_another_key_is_refused_and_a_new_key_fetched(api: Api, provider: OidcProvider) -> None:
    async with api.client(None) as client:
        provider.signs_with = RSAKey.generate_key(2048, {"kid": provider.key.kid or ""})
        assert failed(await come(client)) == "oidc_refused"
        provider.signs_with = None
        assert (await come(client)).headers["location"] == "/review"
        provider.key = RSAKey.generate_key(2048, {"kid": "2"})
        assert (await come(client)).headers["location"] == "/review"


async def test_only_the_browser_that_began_a_sign_in_can_complete_it(api: Api, provider: OidcProvider) -> None:
    async with api.client(None) as client, api.client(None) as victim:
        begun = await client.get(START)
        async with httpx.AsyncClient() as elsewhere:
            back = (await elsewhere.get(begun.headers["location"])).headers["location"]
        assert failed(await victim.get(back)) == "oidc_refused", "a link with another user's code"
        await victim.get(START)
        assert failed(await victim.get(back)) == "oidc_refused", "another state"
        assert (await client.get(back)).headers["location"] == "/review"
        assert failed(await client.get(back)) == "oidc_refused", "nor twice"
        forged = {"Cookie": "perdure_oidc=e30.AAAA"}
        assert failed(await victim.get(f"{CALLBACK}?code=x&state=", headers=forged)) == "oidc_refused"


async def test_a_provider_that_refuses_or_is_silent_signs_no_user_in(api: Api, provider: OidcProvider) -> None:
    provider.person = {}
    async with api.client(None) as client:
        assert failed(await come(client)) == "oidc_refused"
        for issuer, said in (
            ("http://127.0.0.1:9", "oidc_unavailable"),
            (f"{provider.issuer}/", "oidc_unavailable"),  # it is not that issuer
            ("http://provider.test", "address_refused"),  # not without TLS
        ):
            trust(api, provider, issuer=issuer)
            assert failed(await client.get(START)) == said
        trust(api, provider, client_secret="wrong")
        provider.person = {"sub": "s-1"}
        assert failed(await come(client)) == "oidc_refused"


HOSTILE: dict[str, Talk] = {
    "huge": floods(200, b" " * 65_536, "content-type: application/json"),
    "a bomb": says(200, bomb(), "content-type: application/json", "content-encoding: gzip"),
    "elsewhere": says(302, b"", "location: http://127.0.0.1:1/"),
    "a trickle": floods(200, b" ", gap=0.05),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_endless_answer_of_the_provider_ends_the_sign_in(
    api: Api, provider: OidcProvider, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "a trickle":
        monkeypatch.setattr("perdure.api.oidc._TIMEOUT_SECONDS", 0.4)
    with threaded(HOSTILE[kind]) as made:
        trust(api, provider, issuer=made.url)
        async with api.client() as client, asyncio.timeout(30):
            answer = await client.get(START)
    assert answer.status_code in (303, 503)
    assert "oidc_unavailable" in answer.text + answer.headers.get("location", "")
    assert len(made.heads) == 1, "it is asked once"


async def test_only_the_issuer_is_requested(api: Api, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch)("keys.public.test", ["127.0.0.1"])
    config = OidcConfig(provider.issuer, CLIENT_ID, CLIENT_SECRET, ("requester",))
    async with Provider(config)._timed_client(f"{api.url}{CALLBACK}") as client:
        assert (await client.request("GET", f"{provider.issuer}/keys", withhold_token=True)).status_code == 200
        for url in ("https://keys.public.test/keys", "http://127.0.0.1:1/keys"):
            with pytest.raises(EgressRefused):
                await client.request("GET", url, withhold_token=True)


async def test_without_a_configured_provider_oidc_routes_are_404(api: Api, visitor: Caller) -> None:
    api.app.state.services = api.services
    for path in (START, CALLBACK):
        assert refusal(await visitor.get(path)) == (404, "oidc_not_set_up")
