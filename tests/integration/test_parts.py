"""What the API finds out about its parts: whether they can write, and what it says where it cannot find out."""

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.api.health import WRITE_SECONDS, Parts
from perdure.store.status import write_fault
from perdure.temporal import status as write_probe
from tests.conftest import Urls
from tests.eventually import eventually
from tests.integration.conftest import Api


def parts_of(api: Api, home: Path | None = None, least_free_bytes: int = 0) -> Parts:
    """New ones, which have not written yet."""
    return Parts(api.services.db, api.services.doorbell.client, api.services.valkey, home, least_free_bytes)


async def faults(parts: Parts) -> dict[str, str]:
    return {name: part.fault for name, part in (await parts.look()).items()}


async def written_at(urls: Urls) -> object:
    connection = await asyncpg.connect(urls.admin.rpartition("/")[0] + "/" + urls.app.rpartition("/")[2])
    try:
        return await connection.fetchval("SELECT at FROM perdure.write_probes WHERE tenant_id = '*'")
    finally:
        await connection.close()


async def test_parts_that_are_well_have_no_fault_and_were_written_to(api: Api, urls: Urls, temporal: Client) -> None:
    parts = parts_of(api)
    before, began = await written_at(urls), time.monotonic()
    assert await faults(parts) == {"postgres": "", "temporal": "", "valkey": ""}
    first = await written_at(urls)
    assert first is not None and first != before
    found = await asyncio.gather(*(parts.look() for _ in range(500)))
    assert all(each is found[0] for each in found), "many looks at once are one"
    assert await written_at(urls) == first and time.monotonic() - began < WRITE_SECONDS, "a write speaks for seconds"


async def test_a_postgres_that_only_reads_is_at_fault(api: Api, urls: Urls) -> None:
    """As a provider does it whose disk is full: every new transaction is read-only."""
    name = urls.app.rpartition("/")[2]
    admin = await asyncpg.connect(urls.admin)
    parts = parts_of(api)

    async def unready() -> bool:  # its own look may have written a moment ago
        async with api.client(None) as client:
            ready = await client.get("/readyz")
        return (ready.status_code, ready.json()) == (503, {"ready": False})

    try:
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await api.services.db.pool.expire_connections()
        assert (await faults(parts))["postgres"]
        await eventually(unready)
    finally:
        await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await api.services.db.pool.expire_connections()
        await admin.close()
    assert (await faults(parts))["postgres"] == ""


async def test_the_disk_is_looked_at_where_the_data_is_on_this_machine(api: Api, tmp_path: Path) -> None:
    assert (await faults(parts_of(api, tmp_path)))["disk"] == ""
    more_than_there_is = shutil.disk_usage(tmp_path).total + 1
    assert "the disk is nearly full" in (await faults(parts_of(api, tmp_path, more_than_there_is)))["disk"]
    assert "disk" not in await faults(parts_of(api, None, more_than_there_is))


@dataclass
class Refusing:
    """A Temporal that is reached by a client without the right to write settings, as a hosted one may be."""

    status: RPCStatusCode

    async def update_task_queue_config(self, _request: object) -> None:
        raise RPCError("Request unauthorized.", self.status, b"")


@pytest.mark.parametrize("status", [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED])
async def test_a_temporal_that_forbids_the_write_is_well_and_it_is_said(
    api: Api, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode
) -> None:
    client = api.services.doorbell.client
    monkeypatch.setattr(type(client), "workflow_service", Refusing(status))
    parts = parts_of(api)
    for _ in range(2):
        look = (await parts.look())["temporal"]
        assert look.fault == "" and look.note


def test_each_kind_of_error_is_told_apart() -> None:
    kinds = asyncpg.DiskFullError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError
    of_postgres = [write_fault(kind("x")) for kind in (*kinds, asyncpg.UndefinedTableError, TimeoutError)]
    assert all(of_postgres) and len(set(of_postgres)) == 5 and "UndefinedTableError" in of_postgres[3]
    assert write_fault(ConnectionRefusedError()) == of_postgres[4]
    full = RPCError("UpdateTaskQueueUserData failed: database or disk is full", RPCStatusCode.UNAVAILABLE, b"")
    busy = RPCError("too many", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    of_temporal = [write_probe.write_fault(error) for error in (full, busy, TimeoutError())]
    assert all(of_temporal) and len(set(of_temporal)) == 3


async def test_the_write_to_temporal_leaves_nothing_behind_that_grows(temporal: Client) -> None:
    for _ in range(5):
        await write_probe.write_once(temporal)
    running = [each async for each in temporal.list_workflows(f"TaskQueue = '{write_probe.QUEUE}'")]
    assert running == []
