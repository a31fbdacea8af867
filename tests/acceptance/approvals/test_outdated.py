"""Open approvals over deploys of their tool: other words make none outdated, other code all of them."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.running import RunningStack, running
from tests.eventually import wait_until

pytestmark = pytest.mark.soak

TURNS = 30
AGENT = """
id: payer
title: Payer
topology: tool_loop
model: scripted
persona: You pay.
core_tools: false
tools: [pay]
script: ../scripts/payer.yaml
"""
SCRIPT = """
rules:
  - {name: pay, when: '^pay (?P<amount>[0-9]+)', call: {tool: pay, args: {amount: '{amount}'}}}
  - {name: paid, after: {tool: pay}, say: Paid.}
fallback: I can pay.
"""
TOOL = '''
from pathlib import Path

from perdure import tool

FACTOR = 1


@tool(effect="opaque", risk="low")
async def pay(amount: str) -> str:
    """Pay an amount."""
    with Path("LEDGER").open("a") as ledger:
        ledger.write(f"{int(amount) * FACTOR}\\n")
    return "paid"
'''


def write_tool(app: Path, text: str) -> None:
    (app / "tools" / "pay.py").write_text(text.replace("LEDGER", str(app.parent / "ledger")))


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name, text in (("agents/payer.yaml", AGENT), ("scripts/payer.yaml", SCRIPT), ("tools/pay.py", "")):
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(text)
    write_tool(tmp_path / "app", TOOL)
    return tmp_path / "app"


@contextmanager
def deployed(app: Path) -> Iterator[tuple[RunningStack, httpx.Client, httpx.Client]]:
    """The stack with the app as it is now, a requester and a reviewer."""
    with running(app.parent / "home", "--app", str(app)) as stack:
        clients = [
            httpx.Client(base_url=stack.api, headers={"Authorization": f"Bearer {stack.token(name)}"}, timeout=60)
            for name in ("requester", "reviewer")
        ]
        yield stack, clients[0], clients[1]


def approvals(reviewer: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reviewer.get("/v1/approvals?limit=200").raise_for_status().json()["items"]
    return found


def post_all(client: httpx.Client, asked: list[tuple[str, dict[str, Any]]]) -> Counter[tuple[int, str]]:
    """The statuses and codes of these requests, sent in parallel."""

    def post(path: str, body: dict[str, Any]) -> tuple[int, str]:
        answer = client.post(path, json=body)
        return answer.status_code, str((answer.json().get("error") or {}).get("code", ""))

    with ThreadPoolExecutor(8) as threads:
        return Counter(threads.map(lambda each: post(*each), asked))


@pytest.mark.timeout(300)
def test_only_other_code_makes_open_approvals_outdated_and_each_is_reissued(app: Path) -> None:
    with deployed(app) as (_, requester, reviewer):
        asked = [("/v1/execute", {"agent": "payer", "message": f"pay {n}"}) for n in range(1, TURNS + 1)]
        assert {status for status, _ in post_all(requester, asked)} <= {200, 202}
        wait_until(lambda: len(approvals(reviewer)) == TURNS, 60, "not every turn waits")
    write_tool(
        app, TOOL.replace("Pay an amount.", "Pays an amount of money.").replace("FACTOR = 1", "FACTOR = 1  # one")
    )
    with deployed(app) as (_, _, reviewer):
        reworded = Counter(each["status"] for each in approvals(reviewer))
    write_tool(app, TOOL.replace("FACTOR = 1", "FACTOR = 100"))
    with deployed(app) as (stack, _, reviewer):
        terminal = (stack.home.parent / "home.log").read_text()
        changed = Counter(each["status"] for each in approvals(reviewer))
        old = [
            (f"/v1/approvals/{each['id']}", {"decision": "approve", "digest": each["digest"]})
            for each in approvals(reviewer)
        ]
        refused = post_all(reviewer, [(f"{path}/decision", body) for path, body in old])
        reissued = post_all(reviewer, [(f"{path}/reissue", {}) for path, _ in old])
        stale = post_all(reviewer, [(f"{path}/decision", body) for path, body in old])
        places = {each["place"] for each in reviewer.get(old[0][0]).json()["changes"]["code"]}
        new = [
            (f"/v1/approvals/{each['id']}/decision", {"decision": "approve", "digest": each["digest"]})
            for each in approvals(reviewer)
        ]
        approved = post_all(reviewer, new)
        wait_until(
            lambda: Counter(each["status"] for each in approvals(reviewer)) == {"done": TURNS}, 60, "not all ran"
        )
    paid = sorted(map(int, (app.parent / "ledger").read_text().split()))
    print(f"reworded: {dict(reworded)}; changed: {dict(changed)}; reissued: {dict(reissued)}; effects: {len(paid)}")
    assert reworded == {"pending": TURNS} and changed == {"outdated": TURNS}
    assert f"pay ({TURNS})" in terminal
    assert refused == {(409, "approval_outdated"): TURNS} and reissued == {(201, ""): TURNS}
    assert stale == {(409, "digest_differs"): TURNS} and approved == {(200, ""): TURNS}
    assert places == {"tools.pay:FACTOR"}
    assert paid == [100 * n for n in range(1, TURNS + 1)]
