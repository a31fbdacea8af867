"""One data folder, started with the examples, with nothing and with another app: only another app withdraws agents."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.command import Command
from tests.acceptance.running import ROOT, RunningStack, running
from tests.acceptance.turns import Turns, json_of

pytestmark = pytest.mark.soak

AGENTS = {
    *("care_navigator", "chart_builder", "compliance_monitor", "flaring_monitor", "general", "ops", "refunds"),
    *("rule_32", "rule_37", "skeleton"),
}
DESK = ROOT / "perdure" / "apps" / "template"


async def agents(turns: Turns) -> set[str]:
    """Whom a requester can talk to."""
    return {agent["id"] for agent in (await json_of(turns.requester.get("/v1/agents")))["items"]}


async def paused(stack: RunningStack) -> tuple[str, str]:
    """Two turns that wait for an approval, among the examples."""
    async with Turns(stack, "refunds") as turns:
        assert await agents(turns) == AGENTS
        begun = await turns.begin_all(["Refund order 901", "Refund order 902"])
        assert await turns.until(begun, "awaiting_approval") == []
    assert {"payments", "bookings"} <= stack.read()["pids"].keys()
    return begun[0], begun[1]


async def waiting(turns: Turns, turn_id: str) -> dict[str, Any]:
    """What the reviewer is asked for this turn."""
    found = (await json_of(turns.reviewer.get("/v1/approvals", params={"status": "pending"})))["items"]
    (mine,) = [each for each in found if each["turn_id"] == turn_id]
    return dict(mine)


@pytest.mark.timeout(400)
async def test_a_restart_without_an_app_keeps_all_and_another_app_replaces_the_rest(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--examples") as first:
        approved, rejected = await paused(first)
    with running(tmp_path / "home") as stack:
        run = stack.read()
        assert run["companions"] == {} and not {"payments", "bookings"} & run["pids"].keys()
        assert "refunds" in Command(stack.home).start("status").wait_ended().out
        async with Turns(stack, "refunds") as turns:
            assert await agents(turns) == AGENTS
            assert await turns.until([approved, rejected], "awaiting_approval") == []
    with running(tmp_path / "home", "--app", str(DESK)) as stack:
        assert "refunds" in Command(stack.home).start("status").wait_ended().out
        async with Turns(stack, "refunds") as turns:
            assert await agents(turns) == {"desk"}
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await turns.decide(await waiting(turns, approved), "approve")
            answer = refused.value.response
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "approval_outdated")
            await turns.decide(await waiting(turns, rejected), "reject", comment="not this one")
            await turns.completed(rejected)
            (await turns.requester.post(f"/v1/turns/{approved}/stop")).raise_for_status()
            assert await turns.until([approved], "stopped") == []
