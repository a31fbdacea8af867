"""Every port of a running stack against a page of another site. A page can send plain requests from its own site and,
once its name points to 127.0.0.1 (DNS rebinding), any request with its own Host. None may read or end a turn."""

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import temporalio.client
from playwright.async_api import async_playwright

from perdure.client import Client
from perdure.local.ports import HOST
from tests.acceptance.running import RunningStack
from tests.eventually import until, wait_until

FOREIGN = "rebound.example"
ANSWER_SECONDS = 3.0
WORKFLOWS = "/api/v1/namespaces/default/workflows"
BATCHES = "/api/v1/namespaces/default/batch-operations"
HOSTS = (f"Host: {FOREIGN}\r\n", f"Host: {FOREIGN}:8233\r\n", "")
"""The Host headers after rebinding, with a port, and none, as HTTP/1.0 allows."""
READS = (
    *("/", WORKFLOWS, f"http://{FOREIGN}{WORKFLOWS}", "//api/v1/namespaces/default/workflows"),
    *("/api/v1/namespaces", "/metrics"),
)
NEXUS = (
    "/namespaces/default/task-queues/perdure-turns/nexus-services/a/b",
    "/nexus/namespaces/default/task-queues/perdure-turns/nexus-services/a/b",
    "/nexus/endpoints/a/services/b/c",
    "/namespaces/default/nexus/callback",
    "/nexus/callback",
)
"""Paths of the HTTP API that its list of hosts does not cover."""


def ports(stack: RunningStack) -> dict[int, str]:
    """Every TCP port on which a process of this stack listens, with the process's name."""
    supervisor = psutil.Process(stack.process.pid)
    found = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # one that ended meanwhile
            for each in process.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN:
                    assert each.laddr.ip == HOST, f"{process.name()} listens on {each.laddr}"
                    found[each.laddr.port] = process.name()
    return found


def raw_answer(port: int, request: str) -> bytes:
    answer = b""
    with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.sendall(request.encode())
            while chunk := connection.recv(65_536):
                answer += chunk
        except OSError:
            pass
    return answer


def batch(path: str, host: str, turn_id: str) -> str:
    """The POST that ended all open turns: simple enough for a page of another site to send it without asking."""
    body = json.dumps(
        {
            "jobId": f"ended-{time.time_ns()}",
            "reason": "a page",
            "visibilityQuery": f"WorkflowId = 'turn:{turn_id}' OR ExecutionStatus = 'Running'",
            "terminationOperation": {"identity": "a page"},
        }
    )
    return (
        f"POST {path} HTTP/1.{1 if host else 0}\r\n{host}Origin: http://{FOREIGN}\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )


@pytest.fixture(scope="module")
def requester(stack: RunningStack) -> Iterator[Client]:
    with Client(stack.api, stack.token("requester")) as client:
        yield client


@pytest.fixture(scope="module")
def paused_id(requester: Client) -> Iterator[str]:
    turn = requester.turns.start(requester.conversations.create("refunds").id, "Refund order 1001")
    assert requester.turns.wait(turn.turn_id, timeout_seconds=60).status == "awaiting_approval"
    yield turn.turn_id
    requester.turns.stop(turn.turn_id)


async def is_listed(stack: RunningStack, turn_id: str) -> bool:
    """Returns whether the turn is running in Temporal's lists, which a batch uses."""
    client = await temporalio.client.Client.connect(stack.read()["temporal"])
    return f"turn:{turn_id}" in [each.id async for each in client.list_workflows("ExecutionStatus = 'Running'")]


async def test_no_foreign_page_can_read_or_end_a_turn(stack: RunningStack, requester: Client, paused_id: str) -> None:
    await until(lambda: is_listed(stack, paused_id))
    found = ports(stack)
    assert len(found) >= 8, found
    reads = [
        f"GET {path} HTTP/1.{1 if host else 0}\r\n{host}Connection: close\r\n\r\n" for host in HOSTS for path in READS
    ]
    paths = (f"{BATCHES}/ended-{time.time_ns()}", *NEXUS)
    ends = [batch(path, host, paused_id) for host in HOSTS for path in paths]
    # A plain request of a page of another site has the machine's own name.
    ends.append(batch(paths[0], f"Host: {HOST}\r\n", paused_id))
    asked = list(product(found, (*reads, *ends)))
    with ThreadPoolExecutor(32) as pool:  # some ports never answer such a request
        for (port, request), answer in zip(asked, pool.map(lambda each: raw_answer(*each), asked), strict=True):
            assert paused_id.encode() not in answer, f"{found[port]} on {port}: {request}"
            ended = request in ends and answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2"))
            assert not ended, f"{found[port]} on {port}: {answer[:200]!r}"
            held = port == stack.read()["ports"]["temporal_http"] and not answer
            assert not held, f"{ANSWER_SECONDS} s were not enough for {request}"
    await asyncio.sleep(3.0)  # a batch works in the background
    assert await is_listed(stack, paused_id)
    assert requester.turns.get(paused_id).status == "awaiting_approval"


async def test_a_foreign_page_cannot_book_a_session_through_an_app_service(stack: RunningStack) -> None:
    slot = json.dumps({"provider": "a page", "slot": "now"}).encode()
    async with httpx.AsyncClient(base_url=stack.read()["companions"]["bookings"]) as http:
        for headers in ({"Origin": f"http://{FOREIGN}", "Content-Type": "text/plain"}, {"Host": FOREIGN}):
            assert (await http.post("/bookings", content=slot, headers=headers)).status_code == 403
        assert (await http.get("/bookings", headers={"Host": FOREIGN})).status_code == 403
        booked = (await http.get("/bookings")).json()["bookings"]
    assert "a page" not in {each["provider"] for each in booked}


def test_run_json_names_every_open_port(stack: RunningStack) -> None:
    wait_until(lambda: set(ports(stack)) == set(stack.read()["ports"].values()), 10, "a port has no name or no process")
    run = stack.read()
    for name in ("api", "temporal_ui", "postgres"):
        assert run["ports"][name] == urlsplit(run[name]).port
    assert {"temporal", "temporal_http", "temporal_metrics", "valkey", "companion-payments"} <= run["ports"].keys()


async def test_the_web_ui_shows_a_turn_at_the_address_that_is_printed(stack: RunningStack, paused_id: str) -> None:
    await until(lambda: is_listed(stack, paused_id))
    faults: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in (HOST, "localhost"):
            pages = stack.read()["temporal_ui"].replace(HOST, name) + "/namespaces/default/workflows"
            page = await browser.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("response", lambda answer: faults.append(answer.url) if answer.status >= 400 else None)
            await page.goto(pages)
            await page.get_by_text(f"turn:{paused_id}").first.wait_for(timeout=60_000)
            await page.goto(f"{pages}/turn:{paused_id}")
            await page.get_by_text("TurnWait").first.wait_for(timeout=60_000)
        await browser.close()
    assert not faults, faults
