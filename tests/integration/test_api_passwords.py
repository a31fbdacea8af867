"""Weak passwords are refused, wrong ones get slower, and the owner is never locked out of a known device."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import randrange

import httpx
import pytest

from perdure.contracts.values import sha256_hex
from perdure.core.identity import ACCOUNT, ADDRESS, DEVICE, PLACE
from perdure.local import DataParts
from perdure.store.database import new_id
from tests.conftest import Person, Urls
from tests.integration.test_api_outages import Two, two_processes
from tests.integration.test_api_sign_in import PASSWORD, invited
from tests.integration.test_api_turns import code, refusal

WRONG = "a wrong one, surely"


@pytest.fixture(scope="module")
async def two(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[Two]:
    async with two_processes(parts, urls, people) as running:
        yield running


class Account:
    """A person with a password, and the places that this person or a stranger signs in from."""

    def __init__(self, two: Two, name: str) -> None:
        self.two, self.name = two, name
        self.address = f"127.{randrange(1, 250)}.{randrange(1, 250)}.{randrange(1, 250)}"

    async def sign_in(
        self, password: str, client: httpx.AsyncClient | None = None, *, name: str = "", address: str = ""
    ) -> httpx.Response:
        """From a browser that keeps its cookies, or from a program at some loopback address."""
        body = {"name": name or self.name, "password": password}
        if client is not None:
            return await client.post("/v1/auth/login", json=body)
        transport = httpx.AsyncHTTPTransport(local_address=address or self.address)
        async with httpx.AsyncClient(base_url=self.two.one.url, transport=transport, timeout=30) as program:
            return await program.post("/v1/auth/login", json=body)

    async def wrong(self, times: int, **where: str) -> Counter[tuple[int, str]]:
        answers = [await self.sign_in(WRONG, **where) for _ in range(times)]  # type: ignore[arg-type]
        return Counter(refusal(answer) for answer in answers)


@pytest.fixture
async def ann(two: Two) -> Account:
    return Account(two, await invited(two.one, "reviewer"))


def delayed(answer: httpx.Response) -> int:
    assert refusal(answer) == (429, "sign_in_delayed")
    assert "set-cookie" not in answer.headers
    return int(answer.headers["retry-after"])


async def test_wrong_guesses_wait_longer_and_longer_and_the_right_password_waits_too(ann: Account) -> None:
    assert await ann.wrong(PLACE.free) == {(401, "sign_in_failed"): PLACE.free}
    assert delayed(await ann.sign_in(WRONG)) == 1
    assert delayed(await ann.sign_in(PASSWORD)) == 1, "or a guesser would know"
    await asyncio.sleep(1.1)
    assert await ann.wrong(1) == {(401, "sign_in_failed"): 1}
    assert delayed(await ann.sign_in(WRONG)) == 2
    here = httpx.AsyncHTTPTransport(local_address=ann.address)
    async with httpx.AsyncClient(base_url=ann.two.other.url, transport=here, timeout=30) as client:
        assert 0 < delayed(await ann.sign_in(PASSWORD, client)) <= 2, "every process counts with the others"


async def test_a_name_that_nobody_has_waits_alike(ann: Account) -> None:
    nobody = f"nobody-{new_id()[-8:]}"
    for name in (ann.name, nobody):
        seen = [await ann.sign_in(WRONG, name=name, address="127.0.0.9") for _ in range(PLACE.free + 2)]
        told = [(answer.status_code, code(answer), answer.headers.get("retry-after")) for answer in seen]
        assert told == [(401, "sign_in_failed", None)] * PLACE.free + [(429, "sign_in_delayed", "1")] * 2


async def test_many_guesses_at_once_get_no_further_than_one_after_the_other(ann: Account) -> None:
    answers = await asyncio.gather(*(ann.sign_in(WRONG, address="127.0.0.7") for _ in range(40)))
    seen = Counter(answer.status_code for answer in answers)
    assert seen[401] <= PLACE.free + 1 and seen[401] + seen[429] == 40


async def test_guesses_from_elsewhere_never_delay_a_known_device(ann: Account) -> None:
    async with ann.two.one.client(None) as browser:
        assert (await ann.sign_in(PASSWORD, browser)).status_code == 200
        (device,) = [cookie for cookie in browser.cookies.jar if cookie.name.startswith("perdure_device_")]
        assert device.has_nonstandard_attr("HttpOnly") and "strict" in str(device.__dict__).lower()
        browser.cookies.delete("perdure_session")
        for place in range(ACCOUNT.free // PLACE.free + 2):
            await ann.wrong(PLACE.free, address=f"127.0.1.{place + 1}")
        delayed(await ann.sign_in(PASSWORD, address="127.0.2.1"))
        for _ in range(DEVICE.free + 2):
            assert (await ann.sign_in(PASSWORD, browser)).status_code == 200
        assert [(await ann.sign_in(WRONG, browser)).status_code for _ in range(DEVICE.free)] == [401] * DEVICE.free
        assert delayed(await ann.sign_in(PASSWORD, browser)) == 1, "it has a counter of its own"
        await asyncio.sleep(1.1)
        assert (await ann.sign_in(PASSWORD, browser)).status_code == 200
        assert (await ann.sign_in(PASSWORD, browser)).status_code == 200, "the right one ends the count"


async def test_one_address_that_guesses_at_many_accounts_is_delayed_at_all_of_them(ann: Account) -> None:
    """And what many people share is forgotten an hour after the first mistake, however many follow."""
    codes = [(await ann.sign_in(WRONG, name=f"n{index}")).status_code for index in range(ADDRESS.free + 1)]
    assert codes == [401] * ADDRESS.free + [429]
    delayed(await ann.sign_in(PASSWORD))
    client = ann.two.one.services.valkey.client
    lasts = {}
    for pace, of in ((ADDRESS, ann.address), (PLACE, f"local/n1/{ann.address}")):
        lasts[pace] = await client.ttl(f"perdure:guesses:{pace.name}:{sha256_hex(of)[:32]}")
    assert 0 < lasts[ADDRESS] <= 3_600 < lasts[PLACE] <= 86_400


async def test_a_forged_or_foreign_device_is_an_unknown_one(ann: Account) -> None:
    async with ann.two.one.client(None) as browser, ann.two.one.client(None) as forger:
        await ann.sign_in(PASSWORD, browser)
        (device,) = [cookie for cookie in browser.cookies.jar if cookie.name.startswith("perdure_device_")]
        assert device.value is not None
        name, until, seal = device.value.split(".")
        await ann.wrong(PLACE.free + 1, address="127.0.0.1")
        forged = (f"{name}x.{until}.{seal}", f"{name}.{int(until) + 1}.{seal}", f"{name}.{until}.x", "x", "..", ".0.")
        for value in forged:
            forger.cookies.set(device.name, value)
            delayed(await ann.sign_in(PASSWORD, forger))
        other = Account(ann.two, "reviewer")
        forger.cookies.set(device.name, device.value)
        assert (await ann.sign_in(PASSWORD, forger)).status_code == 200, "whole, it is the device"
        assert (await other.sign_in(WRONG, forger)).status_code in (401, 429)


async def test_the_own_password_cannot_be_guessed_by_a_session_either(ann: Account) -> None:
    answer = await ann.sign_in(PASSWORD)
    async with ann.two.one.client(None) as client:
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        body = {"password": "another good one", "current": WRONG}
        seen = [await client.post("/v1/auth/password", json=body) for _ in range(DEVICE.free + 1)]
        assert [each.status_code for each in seen] == [403] * DEVICE.free + [429]
        right = await client.post("/v1/auth/password", json={**body, "current": PASSWORD})
        assert refusal(right) == (429, "sign_in_delayed")


async def test_weak_passwords_are_refused_wherever_one_is_set(ann: Account) -> None:
    session = (await ann.sign_in(PASSWORD)).json()["access_token"]
    name = f"carla.mendez-{new_id()[-4:]}"
    async with ann.two.one.client("admin") as admin, ann.two.one.client(None) as client:
        made = await admin.post("/v1/team/invitations", json={"name": name, "display_name": "Xaviera Quillfeather"})
        for weak in ("password1", "Carla.Mendez", "xaviera1", "local1234"):
            given = {"name": name, "password": weak, "invitation": made.json()["invitation"]}
            assert refusal(await client.post("/v1/auth/register", json=given)) == (422, "password_weak"), weak
            form = await client.post("/sign-in", data=given)
            assert httpx.URL(form.headers["location"]).params["failed"] == "password_weak"
        body, head = {"password": "Trustno1", "current": PASSWORD}, {"Authorization": f"Bearer {session}"}
        refused = await client.post("/v1/auth/password", json=body, headers=head)
        assert refusal(refused) == (422, "password_weak")
        assert refused.json()["error"]["details"] == {"field": "password"}
        stranger = {"name": "eve", "password": "password1"}
        assert code(await client.post("/v1/auth/register", json=stranger)) != "password_weak", "nothing is computed"
        long = "🐙 any character, " * 11
        taken = await client.post("/v1/auth/register", json={**given, "password": long})
        assert taken.status_code == 201, "up to 200 characters"
        assert (await client.post("/v1/auth/login", json={"name": name, "password": long})).status_code == 200


async def test_while_valkey_is_away_each_process_counts_alone(ann: Account) -> None:
    two = ann.two
    async with two.one.client(None) as browser:
        assert (await ann.sign_in(PASSWORD, browser)).status_code == 200
        await two.valkey.cut()
        try:
            assert (await ann.wrong(PLACE.free + 2))[(429, "sign_in_delayed")] == 2
            assert (await ann.sign_in(PASSWORD, browser)).status_code == 200, "a known device gets in"
        finally:
            await two.valkey.mend()
