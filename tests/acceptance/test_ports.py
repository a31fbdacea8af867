"""Every port of a running stack, found by its processes, against a page of another site.

A page can send requests to this machine: plain ones from its own site, and, once its name has been pointed to 127.0.0.1
(DNS rebinding), any request with a Host of its own. None may read a workflow or end a turn.
"""

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from playwright.async_api import Error, Response, async_playwright

from perdure.local.ports import HOST
from tests.acceptance.running import RunningStack

FOREIGN = "rebound.example"
ANSWER_SECONDS = 3.0
TURN_SECONDS = 60.0
WORKFLOWS = "/api/v1/namespaces/default/workflows"
HOSTS = (f"Host: {FOREIGN}\r\n", f"Host: {FOREIGN}:8233\r\n", "")
"""As after rebinding, with a port, and without any, as HTTP/1.0 allows."""
READS = (
    "/",
    WORKFLOWS,
    f"http://{FOREIGN}{WORKFLOWS}",
    "//api/v1/namespaces/default/workflows",
    "/api/v1/namespaces",
    "/metrics",
)
NEXUS = (
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
        for each in process.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN:
                assert each.laddr.ip == HOST, f"{process.name()} listens on {each.laddr}"
                found[each.laddr.port] = process.name()
    return found


def sent(port: int, request: str) -> bytes:
    """What the port answers to these bytes."""
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


def batch(host: str, workflow_id: str) -> str:
    """The POST that ended all open turns: simple enough for a page of another site to send it without asking."""
    body = json.dumps(
        {
            "jobId": f"ended-{time.time_ns()}",
            "reason": "a page",
            "visibilityQuery": f"WorkflowId = '{workflow_id}' OR ExecutionStatus = 'Running'",
            "terminationOperation": {"identity": "a page"},
        }
    )
    return (
        f"POST /api/v1/namespaces/default/batch-operations/ended-{time.time_ns()} HTTP/1.{1 if host else 0}\r\n{host}"
        f"Origin: http://{FOREIGN}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}"
    )


@pytest.fixture(scope="module")
def paused(stack: RunningStack) -> Iterator[str]:
    headers = {"Authorization": f"Bearer {stack.token('requester')}"}
    with httpx.Client(base_url=stack.api, headers=headers, timeout=30) as client:
        made = client.post("/v1/conversations", json={"agent": "refunds"}).json()["id"]
        turn = client.post(f"/v1/conversations/{made}/turns", json={"message": "Refund order 1001"}).json()["turn_id"]
        until_status(stack, turn, "awaiting_approval")
        yield turn
        client.post(f"/v1/turns/{turn}/stop")


def status_of(stack: RunningStack, turn_id: str) -> str:
    headers = {"Authorization": f"Bearer {stack.token('requester')}"}
    return str(httpx.get(f"{stack.api}/v1/turns/{turn_id}", headers=headers, timeout=30).json()["status"])


def until_status(stack: RunningStack, turn_id: str, wanted: str) -> None:
    deadline = time.monotonic() + TURN_SECONDS
    while (now := status_of(stack, turn_id)) != wanted:
        assert time.monotonic() < deadline, now
        time.sleep(0.1)


async def open_workflows(stack: RunningStack) -> list[str]:
    from temporalio.client import Client

    client = await Client.connect(stack.read()["temporal"])
    return [each.id async for each in client.list_workflows("ExecutionStatus = 'Running'")]


async def until_listed(stack: RunningStack, turn_id: str) -> None:
    """Wait until Temporal's lists have the turn: what a batch goes by."""
    for _ in range(200):
        if f"turn:{turn_id}" in await open_workflows(stack):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the turn is not listed as running")


async def test_no_port_tells_a_foreign_page_of_a_workflow_or_lets_it_end_a_turn(
    stack: RunningStack, paused: str
) -> None:
    await until_listed(stack, paused)
    found = ports(stack)
    assert len(found) >= 8, found
    for port, name in found.items():
        for host in HOSTS:
            for path in READS:
                head = f"GET {path} HTTP/1.{1 if host else 0}\r\n{host}Connection: close\r\n\r\n"
                answer = await asyncio.to_thread(sent, port, head)
                assert paused.encode() not in answer, f"{name} on {port}: {host!r} {path}"
            answer = await asyncio.to_thread(sent, port, batch(host, f"turn:{paused}"))
            assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")), f"{name} on {port}: {answer[:200]!r}"
            for path in NEXUS:
                body = batch(host, f"turn:{paused}").partition(" HTTP/")[2]
                answer = await asyncio.to_thread(sent, port, f"POST {path} HTTP/{body}")
                assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")), f"{name} on {port}: {answer[:200]!r}"
    loopback = f"Host: {HOST}\r\n"  # a plain request of a page of another site has the machine's own name
    for port, name in found.items():
        answer = await asyncio.to_thread(sent, port, batch(loopback, f"turn:{paused}"))
        assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")), f"{name} on {port}: {answer[:200]!r}"
    await asyncio.sleep(3.0)  # a batch works in the background
    assert f"turn:{paused}" in await open_workflows(stack)
    assert status_of(stack, paused) == "awaiting_approval"


async def test_no_page_books_a_session_by_the_apps_own_service(stack: RunningStack) -> None:
    bookings = stack.read()["companions"]["bookings"]
    slot = json.dumps({"provider": "a page", "slot": "now"}).encode()
    async with httpx.AsyncClient(base_url=bookings) as http:
        for headers in ({"Origin": f"http://{FOREIGN}", "Content-Type": "text/plain"}, {"Host": FOREIGN}):
            assert (await http.post("/bookings", content=slot, headers=headers)).status_code == 403
        assert (await http.get("/bookings", headers={"Host": FOREIGN})).status_code == 403
        booked = (await http.get("/bookings")).json()["bookings"]
    assert "a page" not in {each["provider"] for each in booked}


def test_run_json_names_every_open_port(stack: RunningStack) -> None:
    deadline = time.monotonic() + 10
    while set(ports(stack)) != set(stack.read()["ports"].values()):
        assert time.monotonic() < deadline, (ports(stack), stack.read()["ports"])
        time.sleep(0.5)
    named = stack.read()["ports"]
    run = stack.read()
    for name, address in (("api", run["api"]), ("temporal_ui", run["temporal_ui"]), ("postgres", run["postgres"])):
        assert named[name] == urlsplit(address).port
    assert {"temporal", "temporal_http", "temporal_metrics", "valkey", "companion-payments"} <= named.keys()


def note_error(faults: list[str], error: Error) -> None:
    faults.append(str(error))


def note_answer(faults: list[str], answer: Response) -> None:
    if answer.status >= 400:
        faults.append(f"{answer.status} {answer.url}")


async def test_the_web_ui_shows_a_turn_at_the_address_that_is_printed(stack: RunningStack, paused: str) -> None:
    await until_listed(stack, paused)
    address = stack.read()["temporal_ui"]
    for name in (HOST, "localhost"):
        here = address.replace(HOST, name)
        faults: list[str] = []
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = await browser.new_page()
            page.on("pageerror", partial(note_error, faults))
            page.on("response", partial(note_answer, faults))
            await page.goto(f"{here}/namespaces/default/workflows")
            await page.get_by_text(f"turn:{paused}").first.wait_for(timeout=60_000)
            await page.goto(f"{here}/namespaces/default/workflows/turn:{paused}")
            await page.get_by_text("TurnWait").first.wait_for(timeout=60_000)
            await browser.close()
        assert not faults, faults


async def test_the_web_ui_can_end_a_workflow_by_its_own_pages_and_by_no_others(stack: RunningStack) -> None:
    from temporalio.client import Client, WorkflowExecutionStatus

    client = await Client.connect(stack.read()["temporal"])
    handle = await client.start_workflow("Nobody", id=f"nobody-{time.time_ns()}", task_queue="nobody")
    address = stack.read()["temporal_ui"]
    url = f"{address}{WORKFLOWS}/{handle.id}/terminate"
    body: dict[str, Any] = {"reason": "tried"}
    async with httpx.AsyncClient() as http:
        for headers in (
            {},
            {"Origin": "null"},
            {"Origin": f"http://{FOREIGN}"},
            {"Origin": f"{address}0"},
            {"Origin": f"http://{FOREIGN}", "Authorization": "Bearer x"},
        ):
            assert (await http.post(url, json=body, headers=headers)).status_code == 403, headers
        rebound = {"Host": FOREIGN, "Origin": f"http://{FOREIGN}"}
        assert (await http.post(url, json=body, headers=rebound)).status_code == 421
        described = await handle.describe()
        assert described.status is WorkflowExecutionStatus.RUNNING
        assert (await http.post(url, json=body, headers={"Origin": address})).status_code == 200
    assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED
