"""The first person of a tenant registers with a setup code or a local administrator's token, and no other user does."""

import asyncio
import re
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import asyncpg
import httpx
import pytest

from perdure.apps.bootstrap import bootstrap
from perdure.core.identity import MAX_TRIES
from perdure.settings import Settings
from perdure.store.database import new_id
from perdure.store.identity import registration, users
from tests.conftest import Urls, as_owner
from tests.integration.conftest import Api
from tests.integration.test_api_access import PASSWORD, having
from tests.integration.test_api_turns import code, refusal

WRONG = "AAAA-BBBB-CCCC-DDDD-EEEE-FFFF-GGGG-HHHH"
FORM = re.compile(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}")


class EmptyTenant:
    def __init__(self, api: Api, owner: asyncpg.Connection, name: str) -> None:
        self.api, self.owner, self.name = api, owner, name

    async def prepared(self, before: str = "", *, local: bool = False) -> str:
        async with self.owner.transaction():
            await self.owner.execute("SELECT set_config('perdure.tenant', $1, true)", self.name)
            return await registration.ensure_code(self.owner, self.name, before, local=local)

    async def set(self, what: str) -> None:
        """Change what is kept of the code, for example to let time pass."""
        async with self.api.services.db.transaction(self.name) as tx:
            await tx.execute(f"UPDATE setup_codes SET {what}")

    async def register(self, name: str = "first", authorization: str = "", **given: str) -> httpx.Response:
        body = {"name": name, "password": PASSWORD, "tenant": self.name, **given}
        headers = {"Authorization": f"Bearer {authorization}"} if authorization else {}
        async with self.api.client(None) as client:
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
    assert await tenant.refused("second", setup_code=given) == (403, "invitation_needed")
    assert await tenant.refused("second") == (403, "invitation_needed")
    assert await tenant.prepared() == "", "it has people now"


async def test_of_many_simultaneous_users_of_one_code_one_becomes_the_first(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    answers = await asyncio.gather(*(tenant.register(f"first-{i}", setup_code=given) for i in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201, *[403] * 7]
    codes = {code(answer) for answer in answers if answer.status_code == 403}
    assert codes <= {"invitation_needed", "setup_code_invalid"}


async def test_ten_wrong_attempts_void_the_code_though_they_are_simultaneous(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    tries = await asyncio.gather(*(tenant.refused(setup_code=each) for each in (*[WRONG] * (MAX_TRIES - 1), "x")))
    assert {*tries, await tenant.refused(setup_code=given)} == {(403, "setup_code_invalid")}
    again = await tenant.prepared(given)
    assert again != given and (await tenant.register(setup_code=again)).status_code == 201


async def test_a_code_ends_after_a_day_by_the_clock_of_the_database(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    assert await tenant.prepared(given) == given, "a good one is printed again"
    async with tenant.api.services.db.transaction(tenant.name) as tx:
        assert 86_390 < (await tx.fetchval("SELECT expires_at - now() FROM setup_codes")).total_seconds() <= 86_400
        assert given not in str(await tx.fetch("SELECT * FROM setup_codes"))
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
    assert await tenant.refused(setup_code=code_before) == (403, "invitation_needed")


async def test_the_form_registers_the_first_person(tenant: EmptyTenant) -> None:
    given = await tenant.prepared()
    signing_in = replace(tenant.api.services.signing_in, tenant=tenant.name)
    async with having(tenant.api, signing_in=signing_in), tenant.api.client(None) as client:
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is True
        asked = {"name": "first", "password": PASSWORD, "setup_code": WRONG}
        back = httpx.URL((await client.post("/sign-in", data=asked)).headers["location"])
        assert dict(back.params) == {"failed": "setup_code_invalid", "next": "/review", "name": "first"}
        entered = await client.post("/sign-in", data={**asked, "setup_code": given})
        assert (entered.status_code, entered.headers["location"]) == (303, "/review")
        assert (await client.get("/v1/auth/me")).json()["roles"] == ["admin", "requester", "reviewer"]
        assert (await client.get("/v1/auth/ways")).json()["setup_code"] is False
