"""Work on tables in a process of its own: what it comes to, and what becomes of it when a limit is met."""

import asyncio
import subprocess

import psutil
import pytest

from perdure.sdk.tables import TableError
from perdure.sdk.tables import isolation as confined
from perdure.sdk.tables.isolation import TableFile, profile_in_subprocess, run_plan_in_subprocess
from tests.eventually import until

SALES = TableFile("sales.csv", "text/csv", b"region,sales\nNorth,30\nSouth,10\n")
NAMES = TableFile("names.csv", "text/csv", b"key,name\nNorth,Upland\n")
BROKEN = TableFile("b.csv", "text/csv", b'a,b\n1,"\n')
JOIN = '<plan><join table="names.csv"><on left="region" right="key"/></join></plan>'


async def test_tables_are_profiled_and_invalid_ones_left_out_except_the_first() -> None:
    first, second, third = await profile_in_subprocess([SALES, BROKEN, NAMES])
    assert first is not None and first["rows"] == 2
    assert [each["name"] for each in first["columns"]] == ["region", "sales"]
    assert second is None and third is not None and third["rows"] == 1
    with pytest.raises(TableError):
        await profile_in_subprocess([BROKEN, SALES])


async def test_a_plan_is_carried_out_with_the_tables_that_it_joins() -> None:
    ran = await run_plan_in_subprocess([SALES, NAMES, BROKEN], JOIN)
    assert ran["rows"] == 1 and '"name": "Upland"' in ran["drawn"]
    with pytest.raises(TableError):
        await run_plan_in_subprocess([SALES], "<nonsense/>")
    with pytest.raises(TableError, match=r"names\.csv"):
        await run_plan_in_subprocess([SALES], JOIN)


async def test_a_table_that_uses_all_memory_ends_only_its_process() -> None:
    wide = b",".join(b"c%d" % n for n in range(1_000_000)) + b"\n" + b",".join([b"1"] * 1_000_000)
    before = psutil.Process().memory_info().rss
    with pytest.raises(TableError, match="2 GiB"):
        await profile_in_subprocess([TableFile("wide.csv", "text/csv", wide)])
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    assert (await profile_in_subprocess([SALES]))[0] is not None


async def test_a_job_has_a_time_limit_and_an_abandoned_one_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    taken = confined._pool._take_process

    def noted() -> "subprocess.Popen[bytes]":
        begun.append(taken())
        return begun[-1]

    monkeypatch.setattr(confined._ProcessPool, "_take_process", lambda _: noted())
    rows = b"a\n" + b"1\n" * 1_000_000
    with pytest.raises(TableError, match="0 s"):
        await profile_in_subprocess([TableFile("long.csv", "text/csv", rows)], seconds=0.01)
    job = asyncio.create_task(profile_in_subprocess([TableFile("long.csv", "text/csv", rows)]))
    await until(lambda: len(begun) == 2)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await until(lambda: all(process.poll() is not None for process in begun))


async def test_the_process_gets_no_secrets_and_the_next_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_MODEL", "hunter2")
    bench = confined._ProcessPool()  # a job that another test gave up may still add a process to the common one
    monkeypatch.setattr(confined, "_pool", bench)
    await profile_in_subprocess([SALES])
    (waiting,) = bench.waiting
    assert set(psutil.Process(waiting.pid).environ()) <= {"POLARS_MAX_THREADS", "LC_CTYPE"}
    await profile_in_subprocess([SALES])
    assert waiting.poll() is not None  # a process is used for one job
    assert len(bench.waiting) == 1
    bench.close()
