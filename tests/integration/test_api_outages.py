"""What the API says while one of its parts is away, and that it recovers by itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from perdure.local import DataParts
from tests.conftest import Person, Urls
from tests.doubles.link import Link
from tests.integration.conftest import Api, serving
from tests.integration.test_api_turns import conversation, refusal


@dataclass(frozen=True)
class Behind:
    api: Api
    postgres: Link
    valkey: Link
    temporal: Link


def through(url: str, link: Link) -> str:
    parsed = urlsplit(url)
    login = parsed.netloc.rpartition("@")[0]
    return urlunsplit(parsed._replace(netloc=f"{login}@127.0.0.1:{link.port}"))


async def link_to(address: str) -> Link:
    """To an address, or to that of a URL."""
    host, _, port = address.rpartition("@")[2].partition("/")[0].rpartition(":")
    return await Link(host, int(port)).open()


@dataclass(frozen=True, slots=True)
class Two:
    """Two API processes, as far as callers can tell, over one Valkey behind a link."""

    one: Api
    other: Api
    valkey: Link


@asynccontextmanager
async def two_processes(parts: DataParts, urls: Urls, people: dict[str, Person], **settings: str) -> AsyncIterator[Two]:
    assert parts.redis_url is not None and parts.temporal is not None
    valkey, where = await link_to(parts.redis_url), parts.temporal
    given = {"database_url": urls.app, "redis_url": through(parts.redis_url, valkey), **settings}
    given |= {"temporal": where.address, "namespace": where.namespace}
    async with serving(people, **given) as one, serving(people, **given) as other:
        yield Two(one, other, valkey)
    await valkey.cut()


@pytest.fixture(scope="module")
async def behind(parts: DataParts, urls: Urls, people: dict[str, Person]) -> AsyncIterator[Behind]:
    assert parts.redis_url is not None and parts.temporal is not None
    postgres, valkey = await link_to(urls.app), await link_to(parts.redis_url)
    temporal = await link_to(parts.temporal.address)
    async with serving(
        people,
        database_url=through(urls.app, postgres),
        redis_url=through(parts.redis_url, valkey),
        temporal=f"127.0.0.1:{temporal.port}",
        namespace=parts.temporal.namespace,
    ) as api:
        yield Behind(api, postgres, valkey, temporal)
    for link in (postgres, valkey, temporal):
        await link.cut()


async def until_ready(client: httpx.AsyncClient) -> None:
    for _ in range(150):
        if (await client.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the API did not recover")


def assert_unavailable(answer: httpx.Response) -> None:
    assert refusal(answer) == (503, "unavailable"), answer.text
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.timed
async def test_without_postgres_everything_is_503_with_a_time_to_come_back(behind: Behind) -> None:
    async with behind.api.client() as client:
        conversation_id = await conversation(client)
        await behind.postgres.cut()
        began = time.monotonic()
        assert_unavailable(await client.post("/v1/conversations", json={"agent": "refunds"}))
        path = f"/v1/conversations/{conversation_id}"
        assert_unavailable(await client.post(f"{path}/turns", json={"message": "hello"}))
        assert_unavailable(await client.get(f"{path}/stream"))
        assert time.monotonic() - began < 5
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        await behind.postgres.mend()
        assert (await client.get(path)).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.timed
async def test_a_postgres_that_says_nothing_is_503_within_seconds(behind: Behind) -> None:
    async with behind.api.client() as client:
        await client.get("/v1/turns")
        behind.postgres.stall()
        began = time.monotonic()
        assert_unavailable(await client.get("/v1/turns"))
        assert time.monotonic() - began < 14
        await behind.postgres.cut()
        await behind.postgres.mend()
        assert (await client.get("/v1/turns")).status_code == 200


@pytest.mark.timed
async def test_a_turn_accepted_without_temporal_is_durable_and_left_to_the_relay(behind: Behind) -> None:
    async with behind.api.client() as client:
        conversation_id = await conversation(client)
        await behind.temporal.cut()
        began = time.monotonic()
        accepted = await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "/echo later"})
        assert accepted.status_code == 202
        assert time.monotonic() - began < 5
        assert (await client.get("/readyz")).status_code == 503
        async with behind.api.client("reviewer") as reviewer:
            began = time.monotonic()
            status = (await reviewer.get("/v1/status")).json()
            assert time.monotonic() - began < 8
        assert "temporal" in [each["name"] for each in status["parts"] if each["fault"]] and status["queues"] == []
        assert not status["well"] and [each["status"] for each in status["turns"]] == ["accepted"]
        await behind.temporal.mend()
        await until_ready(client)
        async with behind.api.services.db.transaction("local") as tx:
            left = await tx.fetch("SELECT kind FROM outbox WHERE turn_id = $1", accepted.json()["turn_id"])
        assert [row["kind"] for row in left] == ["start"]


@pytest.mark.timed
async def test_without_valkey_the_api_stays_ready_and_turns_are_accepted(behind: Behind) -> None:
    async with behind.api.client() as client:
        await behind.valkey.cut()
        assert (await client.get("/readyz")).status_code == 200
        conversation_id = await conversation(client)
        began = time.monotonic()
        accepted = await client.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "/echo hi"})
        assert accepted.status_code == 202
        assert (await client.post(f"/v1/turns/{accepted.json()['turn_id']}/stop")).status_code == 202
        assert time.monotonic() - began < 3
        async with client.stream("GET", f"/v1/turns/{accepted.json()['turn_id']}/events") as stream:
            assert "event: ready" in await anext(stream.aiter_text())
        await behind.valkey.mend()
