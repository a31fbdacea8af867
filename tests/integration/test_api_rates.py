"""The request limits of one caller in a minute, with Valkey and without."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import httpx
import pytest

from perdure.api.rate_limits import FALLBACK_PER_MINUTE, PAGE_LIMIT_FACTOR, PageApi
from perdure.local import DataParts
from perdure.store.database import new_id
from tests.conftest import Person, Urls
from tests.integration.test_api_access import having
from tests.integration.test_api_process import TwoApis, two_apis
from tests.integration.test_api_turns import code, refusal

PER_MINUTE = 40


class LimitedApis(TwoApis):
    async def token(self) -> str:
        """The token of a new user, who has sent no request yet."""
        name = f"p{new_id()[-8:]}"
        async with having(self.one, local=True):  # the administrator is not counted
            return await self.one.new_user(name)


@pytest.fixture(scope="module")
async def limited_apis(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[LimitedApis]:
    limited = {"RATE_LIMITING_ENABLED": "1", "RATE_LIMIT_PER_MINUTE": str(PER_MINUTE)}
    async with two_apis(parts, urls, people, **limited) as two:
        yield LimitedApis(two.one, two.other, two.valkey)


@asynccontextmanager
async def burst(limit: int) -> AsyncIterator[Counter[int]]:
    """Counts statuses of a burst; checks that as many requests as the limit, and no more, were admitted.

    The window slides: a burst that crosses a minute's end, or takes long, is admitted its share of the limit again.
    """
    found: Counter[int] = Counter()
    began = monotonic()
    yield found
    again = math.ceil(limit * (monotonic() - began) / 60)
    assert limit <= found[200] <= limit + again and set(found) <= {200, 429}, (found, again)


async def statuses(client: httpx.AsyncClient, times: int, path: str = "/v1/auth/me") -> Counter[int]:
    answers = await asyncio.gather(*(client.get(path) for _ in range(times)))
    for answer in answers:
        if answer.status_code == 429:
            assert code(answer) == "rate_limited" and int(answer.headers["retry-after"]) > 0
    return Counter(answer.status_code for answer in answers)


async def test_a_users_requests_are_counted_by_all_processes_and_apart_from_others(limited_apis: LimitedApis) -> None:
    token = await limited_apis.token()
    async with limited_apis.one.client_of(token) as one, limited_apis.other.client_of(token) as other:
        async with burst(PER_MINUTE) as found:
            for each in await asyncio.gather(statuses(one, PER_MINUTE), statuses(other, PER_MINUTE)):
                found.update(each)
        one.headers["Authorization"] = f"Bearer {await limited_apis.token()}"
        assert await statuses(one, 3) == {200: 3}


async def test_callers_without_a_token_are_counted_by_address_but_probes_are_not(limited_apis: LimitedApis) -> None:
    async with limited_apis.one.client(None) as client:
        found = await statuses(client, 2 * PER_MINUTE)
        assert found[429] > 0 and found[401] + found[429] == 2 * PER_MINUTE
        late = await client.post("/v1/auth/login", json={"name": "admin", "password": "guessed"})
        assert refusal(late) == (429, "rate_limited"), "nor guess passwords"
        assert (await client.get("/openapi.json")).status_code == 429
        assert await statuses(client, 5, "/healthz") == {200: 5}
        head = {"Authorization": f"Bearer {await limited_apis.token()}"}
        assert (await client.get("/v1/auth/me", headers=head)).status_code == 200, "a token is a name of its own"


async def test_requests_of_this_processs_own_pages_are_counted_separately(limited_apis: LimitedApis) -> None:
    head = {"Authorization": f"Bearer {await limited_apis.token()}"}
    async with limited_apis.one.client_of(head["Authorization"].removeprefix("Bearer ")) as client:
        assert (await statuses(client, 2 * PER_MINUTE))[429] > 0
    inside = httpx.ASGITransport(PageApi(limited_apis.one.app))
    async with httpx.AsyncClient(base_url="http://inside", transport=inside, headers=head) as page:
        async with burst(PER_MINUTE * PAGE_LIMIT_FACTOR) as found:
            found.update(await statuses(page, PER_MINUTE * PAGE_LIMIT_FACTOR + 10))


async def test_local_tokens_of_the_stack_have_no_limit(limited_apis: LimitedApis) -> None:
    async with having(limited_apis.one, local=True), limited_apis.one.client() as client:
        assert await statuses(client, 3 * PER_MINUTE) == {200: 3 * PER_MINUTE}


async def test_without_valkey_each_process_counts_alone_with_a_low_limit(limited_apis: LimitedApis) -> None:
    token = await limited_apis.token()
    await limited_apis.valkey.cut()
    try:
        async with limited_apis.one.client_of(token) as client:
            async with burst(FALLBACK_PER_MINUTE) as found:
                found.update(await statuses(client, PER_MINUTE))
    finally:
        await limited_apis.valkey.mend()
