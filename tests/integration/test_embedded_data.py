"""The data parts themselves: made, found again, killed, restarted; every way of running Postgres."""

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from redis.asyncio import Redis
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.local import embedded, postgres
from perdure.local.data_dir import DataDir, load_credentials, open_home
from perdure.local.output import Console
from perdure.local.ports import HOST, PortFile, port_open
from perdure.local.postgres import PostgresLaunch, ways_for_root
from perdure.local.processes import postgres_install
from perdure.local.services import DataParts
from perdure.local.supervisor import Supervisor
from tests.eventually import until

ROOT = Path(__file__).parents[2]
STATUS = SearchAttributeKey.for_keyword("PerdureStatus")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run Postgres as another user")


@workflow.defn
class Waits:
    def __init__(self) -> None:
        self._go = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self._go)
        return "went on"

    @workflow.signal
    def go(self) -> None:
        self._go = True


@pytest.fixture
def readable_folder() -> Any:
    """A folder that every user can reach; pytest's own are closed to other users."""
    folder = Path("/var/tmp") / f"perdure-test-{os.getpid()}-{time.time_ns()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def connected(temporal: str, *, before: float) -> Client:
    return await until(lambda: Client.connect(temporal), before - time.monotonic(), despite=(RuntimeError,))


def of(parts: DataParts) -> tuple[str, str, str]:
    assert parts.postgres is not None and parts.redis_url is not None and parts.temporal is not None
    return parts.postgres.admin, parts.redis_url, parts.temporal.address


@pytest.mark.timed
async def test_all_data_survives_kill_9_of_every_process_at_once(tmp_path: Path) -> None:
    async with embedded(tmp_path / "home") as parts:
        admin, redis_url, temporal = of(parts)
        connection = await asyncpg.connect(admin)
        await connection.execute("create table kept (n int)")
        redis = Redis.from_url(redis_url)
        client = await Client.connect(temporal)
        attributes = TypedSearchAttributes([SearchAttributePair(STATUS, "waiting")])
        await client.start_workflow(Waits.run, id="w", task_queue="q", search_attributes=attributes)

        for number in range(20):
            await connection.execute("insert into kept values ($1)", number)
        await redis.set("kept", "yes")
        await redis.waitaof(1, 0, 5000)

        before = dict(parts.pids())
        assert set(before) == {"postgres", "valkey", "temporal"}
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        connection.terminate()
        await redis.aclose()
        await until(lambda: set(parts.pids()) == set(before) and not set(parts.pids().values()) & set(before.values()))
        away = (OSError, asyncpg.PostgresError, TimeoutError)
        left_seconds = killed_at + 10 - time.monotonic()
        again = await until(lambda: asyncpg.connect(admin, timeout=2), left_seconds, despite=away)
        assert await again.fetchval("select count(*) from kept") == 20
        await again.close()
        redis = Redis.from_url(redis_url)
        assert await redis.get("kept") == b"yes"
        await redis.aclose()

        client = await connected(temporal, before=killed_at + 10)
        handle = client.get_workflow_handle_for(Waits.run, "w")
        async with Worker(client, task_queue="q", workflows=[Waits], workflow_runner=UnsandboxedWorkflowRunner()):
            await handle.signal(Waits.go)
            assert await handle.result(rpc_timeout=timedelta(seconds=30)) == "went on"
    # The folder outlives the stack: the same addresses, the same data, after an orderly stop as well.
    async with embedded(tmp_path / "home") as parts:
        assert of(parts) == (admin, redis_url, temporal)
        again = await asyncpg.connect(admin)
        assert await again.fetchval("select sum(n) from kept") == sum(range(20))
        await again.close()
        client = await Client.connect(temporal)
        found = [run async for run in client.list_workflows("PerdureStatus = 'waiting'")]
        assert [(run.id, run.status) for run in found] == [("w", WorkflowExecutionStatus.COMPLETED)]


async def test_a_folder_with_an_unusual_name_holds_all_data(tmp_path: Path) -> None:
    home = tmp_path / 'my "home" #1?%20 \'x'
    async with embedded(home) as parts:
        assert set(parts.pids()) == {"postgres", "valkey", "temporal"}
        assert parts.temporal is not None and parts.temporal.metrics is not None and parts.temporal.ui is not None
        client = await Client.connect(parts.temporal.address)
        await client.start_workflow(Waits.run, id="w", task_queue="q")
        async with httpx.AsyncClient() as http:
            page = (await http.get(parts.temporal.metrics)).text
            assert (await http.get(parts.temporal.ui, follow_redirects=True)).status_code == 200
        counted = [line for line in page.splitlines() if line.startswith("service_requests{")]
        assert any('operation="StartWorkflowExecution"' in line for line in counted)
    assert (home / "temporal.db").stat().st_size > 0
    assert (home / "valkey" / "appendonlydir").is_dir()
    assert [entry.name for entry in os.scandir(tmp_path)] == [home.name]


async def test_only_the_requested_parts_start_and_overrides_are_ignored(tmp_path: Path) -> None:
    environ = {**os.environ, "REDIS_URL": "redis://elsewhere"}
    async with embedded(tmp_path / "home", {"valkey"}, environ=environ) as parts:
        assert (set(parts.pids()), parts.postgres, parts.temporal) == ({"valkey"}, None, None)
        assert parts.redis_url is not None and "elsewhere" not in parts.redis_url


@pytest.mark.parametrize("part", ["postgres", "valkey", "temporal"])
async def test_a_part_without_its_ports_gets_others(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take, lost = PortFile.take, dict[str, socket.socket]()

    def take_and_lose(ports: PortFile, name: str) -> int:
        port = take(ports, name)
        if name.partition("_")[0] == part and name not in lost:
            lost[name] = socket.socket()
            lost[name].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT counts as free
            lost[name].bind((HOST, port))
            lost[name].listen()
        return port

    monkeypatch.setattr(PortFile, "take", take_and_lose)
    async with embedded(tmp_path / "home", {part}) as parts:
        assert set(parts.pids()) == {part}
        kept = json.loads((tmp_path / "home" / "ports.json").read_text())
        for name, taken in lost.items():
            assert kept[name] != taken.getsockname()[1] and await port_open(HOST, kept[name])
    assert len(lost) == (4 if part == "temporal" else 1)
    for taken in lost.values():
        taken.close()


NOT_ROOT = """
import asyncio, os, sys
from perdure.local import StackError, embedded
async def main():
    async with embedded(sys.argv[1]) as parts:
        print("up as", os.geteuid(), *sorted(parts.pids()))
try:
    asyncio.run(main())
except StackError as error:
    print(error)
"""


def namespaces_are_allowed() -> bool:
    return subprocess.run(("unshare", "--user", "true"), capture_output=True).returncode == 0


async def as_a_normal_user(home: Path) -> str:
    """Returns the output of a normal user's start of the data parts. In a user namespace, root becomes such a user."""
    prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.geteuid() == 0 else ()
    started = await asyncio.create_subprocess_exec(
        *prefix, sys.executable, "-c", NOT_ROOT, str(home), cwd=ROOT, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await started.communicate()
    return said.decode()


async def test_a_normal_user_has_all_parts_and_one_error_if_root_owns_the_data(readable_folder: Path) -> None:
    if (is_root := os.geteuid() == 0) and not namespaces_are_allowed():
        pytest.skip("root cannot become a normal user here")
    home, user = readable_folder / "home", 1000 if is_root else os.geteuid()
    assert await as_a_normal_user(home) == f"up as {user} postgres temporal valkey\n"
    if is_root:
        nobody = pwd.getpwnam("nobody")
        os.chown(home / "pg", nobody.pw_uid, nobody.pw_gid)
        said = await as_a_normal_user(home)
        assert f"{home}/pg/PG_VERSION" in said and said.count("\n") == 1


async def try_launch(home: DataDir, launch: PostgresLaunch) -> tuple[int, str]:
    """Make, start, ask and stop a cluster in just this way; who owns it, and what the server says."""
    credentials = load_credentials(home)
    supervisor = Supervisor(home, Console(None))
    await postgres.make_ready(home, launch, credentials)
    port = PortFile(home.ports_file).take("postgres")
    try:
        await supervisor.launch(postgres.postgres_spec(home, launch, port))
        connection = await asyncpg.connect(postgres.postgres_address(port, credentials).admin)
        await connection.execute("create table if not exists visits (n int)")
        await connection.execute("insert into visits values (1)")
        said = await connection.fetchval("select count(*) || ' ' || current_setting('fsync') from visits")
        await connection.close()
    finally:
        await supervisor.stop()
    return home.postgres.stat().st_uid, said


@needs_root
async def test_every_way_of_running_postgres_as_root_opens_the_same_cluster(readable_folder: Path) -> None:
    home = open_home(readable_folder / "home")
    ways = list(ways_for_root(postgres_install(), home.root))
    works = [way for way in ways if await asyncio.to_thread(way.works_from, home.root)]
    by_user = [way for way in works if way.run_as is not None and not way.prefix]
    assert by_user, "neither the wheel nor its copy can be run by another user"
    assert any(way.install.is_relative_to(home.root) for way in by_user), "the copy of the programs does not run"
    for visits, way in enumerate(works, start=1):
        assert await try_launch(home, way) == (way.run_as.uid if way.run_as else 0, f"{visits} on")
    assert bool([way for way in works if way.prefix]) == await asyncio.to_thread(namespaces_are_allowed)


@needs_root
async def test_a_data_folder_that_no_other_user_can_reach_is_run_in_a_user_namespace(readable_folder: Path) -> None:
    closed = readable_folder / "closed"
    closed.mkdir(mode=0o700)
    home = open_home(closed / "home")
    by_user, by_namespace, _copy = ways_for_root(postgres_install(), home.root)
    assert not by_user.works_from(home.root)
    if not by_namespace.works_from(home.root):
        pytest.skip("this machine forbids user namespaces, which the closed folder needs")
    assert await try_launch(home, by_namespace) == (0, "1 on")
