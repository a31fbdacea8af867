"""A degraded stack: parts that hang, a disk that is full. It says so, and it recovers by itself."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.api.idempotency import DELIVERY_SECONDS
from perdure.local.output import _FULL_DISK
from perdure.temporal.status import WriteObserver, storage_fault
from tests.acceptance.command import Command
from tests.acceptance.running import RunningStack, running
from tests.eventually import wait_until

pytestmark = pytest.mark.soak

BACK_SECONDS = 60.0
DISK_MIB = 420


def terminal(stack: RunningStack) -> str:
    """What the person who started the stack has seen so far."""
    return (stack.home.parent / f"{stack.home.name}.log").read_text()


def ready(stack: RunningStack) -> int:
    """The status of /readyz; 0 while the API does not answer."""
    try:
        answer = httpx.get(f"{stack.api}/readyz", timeout=10)
    except httpx.HTTPError:
        return 0
    assert answer.json() == {"ready": answer.status_code == 200}
    return answer.status_code


def faults(stack: RunningStack) -> dict[str, str]:
    """The faults of the parts, as the API reports them to an operator."""
    headers = {"Authorization": f"Bearer {stack.token('reviewer')}"}
    found = httpx.get(f"{stack.api}/v1/status", headers=headers, timeout=30).json()
    return {part["name"]: part["fault"] for part in found["parts"] if part["fault"]}


def requester(stack: RunningStack) -> httpx.Client:
    headers = {"Authorization": f"Bearer {stack.token('requester')}"}
    return httpx.Client(base_url=stack.api, headers=headers, timeout=30)


def try_turn(stack: RunningStack) -> int:
    """The status of a request that starts a turn in a new conversation."""
    with requester(stack) as client:
        made = client.post("/v1/conversations", json={"agent": "general"})
        if made.status_code != 201:
            return made.status_code
        return client.post(f"/v1/conversations/{made.json()['id']}/turns", json={"message": "/echo hi"}).status_code


def missed_start(stack: RunningStack) -> BaseException | None:
    """What the API's observer learns of a start in the stack's Temporal that its caller gives up."""
    learned = list[BaseException]()

    async def start() -> None:
        observer = WriteObserver(learned.append, lambda: None)
        address = f"127.0.0.1:{stack.read()['ports']['temporal']}"
        client = await Client.connect(address, interceptors=[observer])
        with suppress(TimeoutError, RPCError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                await client.start_workflow("none", id=f"missed:{time.time_ns()}", task_queue="none")

    asyncio.run(start())
    return learned[0] if learned else None


def echo(stack: RunningStack) -> str:
    """The answer of a turn that is started now."""
    with requester(stack) as client:
        body = {"agent": "general", "message": "/echo still here"}
        return str(client.post("/v1/execute", json=body, timeout=90).json().get("answer"))


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running(tmp_path_factory.mktemp("degraded") / "home", "--examples") as started:
        wait_until(lambda: started.token("admin") in terminal(started), 60, "the stack did not come up")
        yield started


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "roles",
    [("worker-turns", "valkey"), ("worker-llm", "temporal"), ("api", "payments", "worker-relay"), ("postgres",)],
)
def test_stopped_parts_are_named_killed_and_started_again(own_stack: RunningStack, roles: tuple[str, ...]) -> None:
    before = own_stack.read()["pids"]
    began = time.monotonic()
    for role in roles:
        os.kill(before[role], signal.SIGSTOP)

    def all_hang() -> bool:
        states = {part["name"]: part["state"] for part in Command(own_stack.home)("status", "--json").json["parts"]}
        return all(states[{"valkey": "redis"}.get(role, role)] == "hangs" for role in roles)

    if not {"api", "postgres"} & {*roles}:  # the API itself knows it too
        wait_until(lambda: roles[0] in faults(own_stack).get("processes", ""), 10, f"the API does not know of {roles}")
    wait_until(all_hang, 20, f"status does not show that {roles} hang")
    wait_until(
        lambda: all(own_stack.read()["pids"].get(role) != before[role] for role in roles), 40, f"{roles} not killed"
    )
    assert time.monotonic() - began < 30.0
    own_stack.wait_restarted({role: before[role] for role in roles}, BACK_SECONDS)
    for role in roles:
        assert f"{role:<16} | " in terminal(own_stack)
    others = set(before) - set(roles)
    assert {role: own_stack.read()["pids"][role] for role in others} == {role: before[role] for role in others}
    wait_until(lambda: ready(own_stack) == 200, BACK_SECONDS, "not ready again")
    assert echo(own_stack) == "still here"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0711", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    assert os.geteuid() or not mounted.returncode, f"root could not mount a small disk: {mounted.stderr}"
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    file = folder / "filler"
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 65_536)
        except OSError:
            pass
    assert shutil.disk_usage(folder).free < 1 << 20
    return file


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Holds the lock that a backup or another program can take on the store."""
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    file = fill(disk)
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.timeout(300)
def test_a_locked_store_and_a_full_disk_are_red_within_seconds_and_green_after(tmp_path: Path) -> None:
    """Without a least number of free bytes, so that only what cannot be written tells."""
    with small_disk(tmp_path / "home") as disk, running(disk, "--examples", PERDURE_LEAST_FREE_BYTES="0") as stack:
        wait_until(lambda: stack.token("admin") in terminal(stack), 60, "the stack did not come up")
        for fault, parts in ((locked(disk / "temporal.db"), {"temporal"}), (filled(disk), {"postgres", "disk"})):
            wait_until(lambda: ready(stack) == 200, 30, "the stack is not ready")
            assert echo(stack) == "still here"
            with fault:
                wait_until(lambda: ready(stack) == 503, 10, f"it is ready without {parts}")
                assert parts <= faults(stack).keys()
                if parts == {"temporal"}:
                    missed = missed_start(stack)
                    assert missed and storage_fault(missed)
                with ThreadPoolExecutor(5) as pool:
                    answers = {*pool.map(lambda _: try_turn(stack), range(5))}
                assert answers == {202} if parts == {"temporal"} else 503 in answers, answers
                for _ in range(20):
                    assert ready(stack) == 503
                    time.sleep(0.25)
            wait_until(lambda: ready(stack) == 200, 10, f"not ready after {parts}")
            assert not faults(stack)
        wait_until(lambda: echo(stack) == "still here", BACK_SECONDS, "no turn completes")


@pytest.mark.timeout(300)
def test_a_full_disk_is_red_is_reported_once_and_is_survived(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home") as disk, running(disk, "--examples") as stack:
        wait_until(lambda: stack.token("admin") in terminal(stack), 60, "the stack did not come up")
        wait_until(lambda: ready(stack) == 200, 30, "the stack is not ready")
        assert echo(stack) == "still here"
        file = fill(disk)
        wait_until(lambda: ready(stack) == 503, 10, "a full disk is ready")
        assert Command(stack.home)("status").code == 1
        with requester(stack) as client:
            for _ in range(30):  # each of them makes every part write
                client.post("/v1/conversations", json={"agent": "general"})
                time.sleep(0.5)
        killed = stack.kill("worker-llm")
        assert stack.process.poll() is None, "it ended"
        time.sleep(10)
        file.unlink()
        wait_until(lambda: ready(stack) == 200, BACK_SECONDS, "not ready with room on the disk")
        stack.wait_restarted(killed, BACK_SECONDS)
        wait_until(lambda: echo(stack) == "still here", BACK_SECONDS, "no turn completes")
        lines = [line for line in terminal(stack).splitlines() if _FULL_DISK.search(line)]
        assert not lines, "what the parts say of it is counted only"
        assert json.loads((stack.home / "run.json").read_text())["supervisor"] == stack.process.pid
