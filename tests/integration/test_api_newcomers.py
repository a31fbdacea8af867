"""How people come in: signed in at a provider elsewhere, and the first person of a tenant by a code or a token."""

import asyncio
import re
import stat
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from joserfc.jwk import RSAKey
from structlog.testing import capture_logs

from perdure.api.oidc import OidcConfig, Provider
from perdure.apps.bootstrap import bootstrap
from perdure.core.identity import MAX_COUNTED, MAX_TRIES
from perdure.egress import EgressRefused
from perdure.local import DataParts
from perdure.settings import Settings
from perdure.store.database import new_id
from perdure.store.identity import registration, users
from tests.conftest import Person, Urls, as_owner
from tests.doubles.hostile_target import Talk, floods, threaded
from tests.doubles.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider
from tests.doubles.resolver import Names
from tests.integration.conftest import Api, Caller, serving
from tests.integration.test_api_access import PASSWORD, having
from tests.integration.test_api_approvals import paused
from tests.integration.test_api_turns import code, refusal

START, CALLBACK = "/v1/auth/oidc/start", "/v1/auth/oidc/callback"
WRONG = "AAAA-BBBB-CCCC-DDDD-EEEE-FFFF-GGGG-HHHH"
FORM = re.compile(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}")


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
    token = await api.new_user("puppet", "reviewer")
    async with api.client(None) as puppet:
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
        {"iss": "https://other.test"}, *({"aud": aud} for aud in ("somebody-else", [CLIENT_ID, "somebody-else"])),
        {"aud": [CLIENT_ID, "somebody-else"], "azp": "somebody-else"}, *({"nonce": "another"}, {"exp": 1}),
        *({name: None} for name in ("nonce", "exp", "iat", "sub")),
    ]  # fmt: skip
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


class EmptyTenant:
    def __init__(self, api: Api, owner: asyncpg.Connection, name: str) -> None:
        self.api, self.owner, self.name = api, owner, name

    async def prepared(self, before: str = "", *, local: bool = False) -> str:
        async with self.owner.transaction():
            await self.owner.execute("SELECT set_config('perdure.tenant', $1, true)", self.name)
            return (await registration.ensure_code(self.owner, self.name, before, local=local)).code

    async def set(self, what: str, table: str = "setup_codes") -> None:
        """Change what is kept of the code, for example to let time pass."""
        async with self.api.services.db.transaction(self.name) as tx:
            await tx.execute(f"UPDATE {table} SET {what}")

    async def ways(self) -> dict[str, Any]:
        """What the page of sign-in shows for this tenant."""
        signing_in = replace(self.api.services.signing_in, tenant=self.name)
        async with having(self.api, signing_in=signing_in), self.api.client(None) as client:
            return dict((await client.get("/v1/auth/ways")).json())

    async def register(
        self, name: str = "first", authorization: str = "", address: str = "", **given: str
    ) -> httpx.Response:
        body = {"name": name, "password": PASSWORD, "tenant": self.name, **given}
        headers = {"Authorization": f"Bearer {authorization}"} if authorization else {}
        way = httpx.AsyncHTTPTransport(local_address=address or None)
        async with httpx.AsyncClient(base_url=self.api.url, transport=way) as client:
            return await client.post("/v1/auth/register", json=body, headers=headers)

    async def refused(self, name: str = "first", **given: str) -> tuple[int, str]:
        return refusal(await self.register(name, **given))


@pytest.fixture
async def tenant(api: Api, urls: Urls) -> AsyncIterator[EmptyTenant]:
    name = f"t-{new_id()[-12:]}"
    async with as_owner(urls.owner) as owner:
        await users.ensure_tenant(owner, name)
        yield EmptyTenant(api, owner, name)


async def test_the_setup_code_registers_one_administrator_and_works_once(tenant: EmptyTenant) -> None:
    assert await tenant.refused() == (401, "setup_code_needed"), "no perdure/apps/bootstrap.py has run for it"
    given = await tenant.prepared()
    assert FORM.fullmatch(given)
    assert await tenant.refused() == (401, "setup_code_needed")
    for password, told in (("password1", "password_weak"), ("short", "invalid_input")):
        assert await tenant.refused(setup_code=given, password=password) == (422, told), "which leaves the code good"
    first = await tenant.register(setup_code=given.lower().replace("-", " "))
    assert (first.status_code, first.json()["user"]["roles"]) == (201, ["requester", "reviewer", "admin"])
    assert await tenant.refused("second", setup_code=given) == (403, "setup_code_invalid")
    assert await tenant.refused("second") == (403, "invitation_needed")
    assert await tenant.prepared() == "", "it has people now"


async def test_of_many_simultaneous_users_of_one_code_one_becomes_the_first(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    answers = await asyncio.gather(*(tenant.register(f"first-{i}", setup_code=given) for i in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201, *[403] * 7]
    codes = {code(answer) for answer in answers if answer.status_code == 403}
    assert codes <= {"invitation_needed", "setup_code_invalid"}


async def test_wrong_tries_make_their_address_wait_and_never_void_the_code(tenant: EmptyTenant) -> None:
    given, waits = await tenant.prepared(), [60, 120, 240, 480, 900, 900]
    for round, seconds in enumerate(waits, 1):
        with capture_logs() as said:
            many = 100 if round == 1 else 2 * MAX_TRIES
            tries = await asyncio.gather(*(tenant.refused(setup_code=WRONG) for _ in range(many)))
        told = {(403, "setup_code_invalid"): MAX_TRIES, (429, "too_many_tries"): many - MAX_TRIES}
        assert Counter(tries) == told, "though simultaneous"
        (line,) = (line for line in said if line["event"] == "setup_code_tries_limited")
        assert (line["address"], line["wait_seconds"], line["log_level"]) == ("127.0.0.1", seconds, "warning")
        assert line["way_out"]
        limited = await tenant.register(setup_code=given)
        assert refusal(limited) == (429, "too_many_tries"), "also with the right code"
        assert seconds - 5 < int(limited.headers["retry-after"]) <= seconds
        assert limited.json()["error"]["details"]["tries"] == round * MAX_TRIES
        await tenant.set(f"last_at = last_at - interval '{seconds} seconds'", "setup_code_tries")
    wrong = [await tenant.register(setup_code=WRONG) for _ in range(MAX_TRIES)]
    left = [each.json()["error"]["details"]["tries_left"] for each in wrong]
    assert left == [*range(MAX_TRIES - 1, -1, -1)] and (await tenant.ways())["setup_code"] is True
    assert (await tenant.register(setup_code=given, address="127.0.0.2")).status_code == 201
    assert await tenant.api.rows("SELECT * FROM setup_code_tries", tenant=tenant.name) == []


@pytest.mark.parametrize(("planted", "shared"), [(MAX_COUNTED[0], "127.0.0.0/16"), (MAX_COUNTED[1], "*")])
async def test_many_addresses_share_a_count_and_the_way_out_stays(
    tenant: EmptyTenant, planted: int, shared: str
) -> None:
    given = await tenant.prepared()
    assert await tenant.refused(setup_code=WRONG, address="127.0.0.9") == (403, "setup_code_invalid")
    async with tenant.api.services.db.transaction(tenant.name) as tx:
        await tx.execute(
            "INSERT INTO setup_code_tries SELECT $1, '2001:db8:0:' || to_hex(n) || '::/64', 1, now() "
            "FROM generate_series(1, $2) n",
            tenant.name,
            planted - 1,
        )
    for n in range(MAX_TRIES):
        assert await tenant.refused(setup_code=WRONG, address=f"127.0.1.{n + 1}") == (403, "setup_code_invalid")
    assert await tenant.refused(setup_code=given, address="127.0.2.1") == (429, "too_many_tries")
    assert await tenant.refused(setup_code=WRONG, address="127.0.0.9") == (403, "setup_code_invalid"), "its own count"
    rows = await tenant.api.rows("SELECT * FROM setup_code_tries ORDER BY address", tenant=tenant.name)
    assert len(rows) == planted + 1
    kept = {row["address"]: row["wrong_tries"] for row in rows}
    assert (kept[shared], kept["127.0.0.9"]) == (MAX_TRIES, 2)
    assert await tenant.prepared(given) == given
    assert (await tenant.register(setup_code=given, address="127.0.2.1")).status_code == 201


@pytest.mark.parametrize("way_out", ["waiting a day", "a run of perdure/apps/bootstrap.py"])
async def test_a_limit_counts_for_every_process_and_ends(
    tenant: EmptyTenant, parts: DataParts, urls: Urls, people: dict[str, Person], way_out: str
) -> None:
    given = await tenant.prepared()
    async with serving(parts, urls, people) as other:
        second = EmptyTenant(other, tenant.owner, tenant.name)
        for each in (tenant, second) * 5:
            assert await each.refused(setup_code=WRONG) == (403, "setup_code_invalid")
        for each in (tenant, second):
            assert await each.refused(setup_code=given) == (429, "too_many_tries")
    if way_out == "waiting a day":
        await tenant.set("last_at = last_at - interval '1 day'", "setup_code_tries")
    else:
        assert await tenant.prepared(given) == given
    wrong = await tenant.register(setup_code=WRONG)
    assert wrong.json()["error"]["details"] == {"reason": "wrong", "tries_left": MAX_TRIES - 1}, "counted anew"
    assert (await tenant.register(setup_code=given)).status_code == 201


async def test_the_end_of_a_code_is_told_with_its_reason(tenant: EmptyTenant) -> None:
    async def told(given: str) -> tuple[str, object, object]:
        error = (await tenant.register("second", setup_code=given)).json()["error"]
        ways = await tenant.ways()
        assert ways["setup_code"] is (ways["setup_code_ended"] is None)
        ended = ways["setup_code_ended"] or {}
        assert (error["details"].get("ended_at") is None) is (error["details"]["reason"] == "wrong")
        return error["code"], error["details"]["reason"], ended.get("reason")

    assert (await tenant.ways())["setup_code_ended"] == {"reason": "missing", "at": None}
    given = await tenant.prepared()
    assert await told(WRONG) == ("setup_code_invalid", "wrong", None)
    await tenant.set("expires_at = now()")
    assert await told(given) == ("setup_code_invalid", "expired", "expired")
    assert await told(WRONG) == ("setup_code_invalid", "wrong", "expired")
    given = await tenant.prepared(given)
    assert (await tenant.register(setup_code=given)).status_code == 201
    assert await told(given) == ("setup_code_invalid", "used", "used")
    for roles, state in (("{requester}", "missing"), ("{admin}", "used")):
        await tenant.set(f"roles = '{roles}'", "users")
        assert await told(given) == ("setup_code_invalid", state, state), (
            "only a new code helps without an administrator"
        )
    await tenant.set("ended_at = ended_at - interval '1 day'")
    ways = await tenant.ways()
    assert (ways["setup_code"], ways["setup_code_ended"]) == (False, None), "it is old news"


async def test_a_code_ends_after_a_day_by_the_clock_of_the_database(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    assert await tenant.prepared(given) == given, "a good one is printed again"
    (stored,) = await tenant.api.rows("SELECT *, expires_at - now() AS left FROM setup_codes", tenant=tenant.name)
    assert 86_390 < stored["left"].total_seconds() <= 86_400 and given not in str(stored)
    await tenant.set("expires_at = now()")
    assert await tenant.refused(setup_code=given) == (403, "setup_code_invalid")
    assert await tenant.prepared(given) != given


async def test_open_registration_still_needs_the_code_for_the_first_administrator(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    async with open_to_all(tenant.api, local=False):
        newcomer = await tenant.register("newcomer")
        assert (newcomer.status_code, newcomer.json()["user"]["roles"]) == (201, ["requester"])
        assert await tenant.refused("x", setup_code=WRONG) == (403, "setup_code_invalid")
        first = await tenant.register("boss", setup_code=given)
        assert first.json()["user"]["roles"] == ["requester", "reviewer", "admin"]
        assert await tenant.refused("second", setup_code=given) == (403, "setup_code_invalid")
        assert (await tenant.register("third")).json()["user"]["roles"] == ["requester"]


def open_to_all(api: Api, **given: object) -> AbstractAsyncContextManager[None]:
    return having(api, signing_in=replace(api.services.signing_in, open_registration=True), **given)


async def test_an_unknown_tenant_is_answered_like_a_closed_one(tenant: EmptyTenant) -> None:
    await tenant.register(setup_code=await tenant.prepared())
    closed = [await tenant.register("eve", **more) for more in ({}, {"setup_code": WRONG})]
    tenant.name = "not-there"
    absent = [await tenant.register("eve", **more) for more in ({}, {"setup_code": WRONG})]
    told = {(*refusal(answer), answer.json()["error"]["message"]) for answer in (*closed, *absent)}
    assert len(told) == 1 and next(iter(told))[:2] == (403, "invitation_needed")
    async with open_to_all(tenant.api):
        assert await tenant.refused("eve") == (403, "invitation_needed")


async def test_only_the_local_admins_token_registers_the_first_user(tenant: EmptyTenant, tmp_path: Path) -> None:
    """Of the tenant `local`, whose own users are not people."""
    api, tenant.name = tenant.api, "local"
    kept = tmp_path / "setup.code"
    kept.write_text(await tenant.prepared(local=True))
    tokens = {name: person.token for name, person in api.people.items()}
    async with having(api, local=False):
        assert await tenant.refused(authorization=tokens["admin"]) == (403, "invitation_needed"), "not embedded"
    async with having(api, local=True, setup_code_file=kept), api.client(None) as client:
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is True
        for name in ("requester", "reviewer"):
            assert await tenant.refused(authorization=tokens[name]) == (401, "setup_code_needed"), name
        assert await tenant.refused(authorization="perdure_admin_guessed") == (401, "token_invalid")
        assert kept.exists()
        first = await tenant.register(authorization=tokens["admin"])
        assert first.json()["user"]["roles"] == ["requester", "reviewer", "admin"]
        assert not kept.exists(), "the supervisor sees by this that the code is used"
        assert await tenant.refused("second", authorization=tokens["admin"]) == (403, "invitation_needed")
        client.cookies.clear()
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is False


async def test_prepare_prints_a_code_until_one_registers(tenant: EmptyTenant, urls: Urls, tmp_path: Path) -> None:
    given = {"DATABASE_OWNER_URL": urls.owner, "DATABASE_URL": urls.app, "DATABASE_RELAY_URL": urls.relay}
    given |= {"PERDURE_HOME": str(tmp_path), "PERDURE_TENANT": tenant.name}
    local = Settings(_env_file=None, PERDURE_LOCAL="1", **given)  # type: ignore[arg-type]
    elsewhere = Settings(_env_file=None, **given)  # type: ignore[arg-type]
    kept = tmp_path / "setup.code"
    first = (await bootstrap(local)).setup_code
    assert FORM.fullmatch(first) and kept.read_text().strip() == first
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (await bootstrap(local)).setup_code == first
    await tenant.set("expires_at = now()")
    second = (await bootstrap(local)).setup_code
    assert second != first and kept.read_text().strip() == second
    third = (await bootstrap(elsewhere)).setup_code
    assert third not in (first, second), "outside of the embedded stack no code is kept"
    assert await tenant.refused(setup_code=second) == (403, "setup_code_invalid")
    assert (await tenant.register(setup_code=(await bootstrap(local)).setup_code)).status_code == 201
    assert (await bootstrap(local)).setup_code == (await bootstrap(elsewhere)).setup_code == ""
    assert not kept.exists()


async def test_prepare_makes_no_code_beside_an_administrator(tenant: EmptyTenant, urls: Urls, tmp_path: Path) -> None:
    given = {"DATABASE_OWNER_URL": urls.owner, "PERDURE_HOME": str(tmp_path), "PERDURE_TENANT": tenant.name}
    settings = Settings(_env_file=None, **given)  # type: ignore[arg-type]
    code_before = (await bootstrap(settings)).setup_code
    made = await bootstrap(settings, "root", tenant.name)
    assert (made.setup_code, list(made.tokens)) == ("", ["root"])
    assert (await bootstrap(settings)).setup_code == ""
    late = await tenant.register(setup_code=code_before)
    assert (refusal(late), late.json()["error"]["details"]["reason"]) == (
        (403, "setup_code_invalid"), "administrator_exists",
    )  # fmt: skip


async def test_the_form_registers_the_first_person(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    signing_in = replace(tenant.api.services.signing_in, tenant=tenant.name)
    async with having(tenant.api, signing_in=signing_in), tenant.api.client(None) as client:
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is True
        asked = {"name": "first", "password": PASSWORD, "setup_code": WRONG}
        back = httpx.URL((await client.post("/sign-in", data=asked)).headers["location"])
        assert dict(back.params) == {"failed": "setup_code_invalid", "next": "/review", "name": "first"}
        for _ in range(MAX_TRIES):
            limited = httpx.URL((await client.post("/sign-in", data=asked)).headers["location"])
        assert limited.params["failed"] == "too_many_tries" and 0 < int(limited.params["after"]) <= 60
        assert await tenant.prepared(given) == given
        entered = await client.post("/sign-in", data={**asked, "setup_code": given})
        assert (entered.status_code, entered.headers["location"]) == (303, "/review")
        assert (await client.get("/v1/auth/me")).json()["roles"] == ["admin", "requester", "reviewer"]
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is False
