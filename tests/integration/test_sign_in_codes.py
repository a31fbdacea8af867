"""Links that sign a browser of this machine in: once, for a while, as whoever asked for them."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from tests.integration.conftest import Api
from tests.integration.test_api_turns import code as code_of

CODES = "/v1/auth/codes"


@pytest.fixture
async def local(api: Api) -> AsyncIterator[Api]:
    """The API as the embedded stack has it."""
    before = api.app.state.services
    api.app.state.services = replace(before, local=True)
    yield api
    api.app.state.services = before


async def made(api: Api, name: str = "requester") -> str:
    async with api.client(name) as client:
        answer = await client.post(CODES)
    assert answer.status_code == 201 and answer.headers["cache-control"] == "no-store", answer.text
    return str(answer.json()["code"])


async def entered(api: Api, code: str, **given: object) -> httpx.Response:
    """Follow the link's form."""
    async with api.client(None) as client:
        return await client.post("/sign-in", data={"code": code, "next": "/chat"}, **given)  # type: ignore[arg-type]


def refused(answer: httpx.Response) -> bool:
    where = httpx.URL(answer.headers["location"])
    told = (where.path, where.params.get("failed")) == ("/sign-in", "code_invalid")
    return told and "set-cookie" not in answer.headers


async def test_a_code_signs_one_browser_in_as_whoever_asked_for_it(local: Api) -> None:
    code = await made(local)
    answer = await entered(local, code, headers={"Origin": local.url})
    assert (answer.status_code, answer.headers["location"]) == (303, "/chat")
    async with local.client(None) as client:
        cookie = answer.headers["set-cookie"].partition(";")[0]
        me = (await client.get("/v1/auth/me", headers={"Cookie": cookie})).json()
        assert (me["name"], me["roles"]) == ("requester", ["requester"]) and me["form_token"]
        again = await client.post(CODES, headers={"Cookie": cookie, "X-Perdure-Request": "1"})
        assert (again.status_code, code_of(again)) == (403, "codes_are_local"), "a browser makes no other"
    assert refused(await entered(local, code)), "it is used up"


async def test_a_code_is_refused_that_is_too_old_guessed_from_another_site_or_of_another_machine(local: Api) -> None:
    code = await made(local)
    tenant, _, secret = code.partition(".")
    for guess in (f"{tenant}.{'x' * 32}", f"nobody.{secret}", secret, code + "x", "'; --", "." * 500):
        assert refused(await entered(local, guess)), guess
    foreign = await entered(local, code, headers={"Origin": "https://elsewhere.example"})
    assert foreign.status_code == 403
    port = httpx.URL(local.url).port
    assert (await entered(local, code, headers={"Host": f"leads-here.example:{port}"})).status_code == 421
    for name in ("X-Forwarded-For", "Forwarded", "Via"):
        through_proxy = await entered(local, code, headers={name: "127.0.0.1"})
        assert refused(through_proxy), "a proxy of this machine brings people of others"
    async with local.services.db.transaction("local") as tx:
        await tx.execute("UPDATE sign_in_codes SET expires_at = now()")
    assert refused(await entered(local, code))
    await made(local)
    async with local.services.db.transaction("local") as tx:
        assert await tx.fetchval("SELECT count(*) FROM sign_in_codes") == 1, "those that are over go with the next one"


async def test_only_the_stack_of_one_machine_gives_codes(api: Api, local: Api) -> None:
    code = await made(local)
    api.app.state.services = replace(api.app.state.services, local=False)
    assert refused(await entered(api, code))
    async with api.client("reviewer") as client:
        answer = await client.post(CODES)
    assert (answer.status_code, code_of(answer)) == (403, "codes_are_local")
    async with api.client(None) as client:
        assert (await client.post(CODES)).status_code == 401
        ways = await client.get("/v1/auth/ways")
    assert (ways.status_code, ways.json()) == (200, {"oidc": False, "open_registration": False, "setup_code": False})
