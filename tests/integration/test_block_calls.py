"""A code block as a tool on real parts: resolved in the pinned version, run in its jail, settled as any other call."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.tools import ToolActivities
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decision
from perdure.store.agents import SHARED
from tests.code_blocks import CODE_BLOCK_APP, MAKER, WALL_SECONDS, NotedSandbox, code_block_app
from tests.conftest import Urls, as_owner
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

AREA = {"width": 2, "height": 3, "unit": "cm"}
RESULT = {"status": "ok", "message": "one cm is 10 mm", "result": {"square_millimetres": 600}}


async def run(harness: Harness, address: TurnAddress, call_id: str = "t1.0", attempt: int = 1) -> ToolOutcome:
    call = await harness.tool_call(address, call_id, MAKER)
    return await harness.activity(ToolActivities(harness.deps).run, call, attempt=attempt)


async def plan_and_run(
    harness: Harness, tool: str, args: dict[str, Any], **given: Any
) -> tuple[TurnAddress, ToolOutcome]:
    address = await harness.plan((tool, args), agent_id=MAKER, **given)
    return address, await run(harness, address)


async def answer(harness: Harness, address: TurnAddress, call_id: str = "t1.0") -> Any:
    said = "SELECT content FROM messages WHERE turn_id = $1 AND call_id = $2"
    (row,) = await harness.rows(said, address.turn_id, call_id, tenant=address.tenant_id)
    return json.loads(row["content"])


async def test_a_block_is_given_its_tables_and_answers_in_a_wrapper(blocks: Harness, noted: NotedSandbox) -> None:
    address, outcome = await plan_and_run(blocks, "area", AREA)
    assert outcome.state is CallState.DONE
    assert await answer(blocks, address) == RESULT
    row = await blocks.call_row(address)
    assert (row["state"], row["effect"], row["epoch"]) == ("done", "read", 1)
    assert noted.tenants[-1] == "local" and set(noted.given[-1]) == {"width", "height", "unit", "data"}
    assert (await blocks.kinds(address.turn_id))[-2:] == ["tool.executing", "tool.result"]


@pytest.mark.timed
@pytest.mark.parametrize(
    ("tool", "args", "told"),
    [
        ("area", AREA | {"unit": "ell"}, "mm, cm, inch, abc"),  # the table's names in its author's order, not jsonb's
        ("area", {"width": 0, "height": 3}, "square_millimetres"),
        ("turn_wheel", {"rounds": 10**9}, str(WALL_SECONDS)),
    ],
)
async def test_the_model_reads_a_fault_or_refusal(blocks: Harness, tool: str, args: dict[str, Any], told: str) -> None:
    started = time.monotonic()
    address, outcome = await plan_and_run(blocks, tool, args)
    assert time.monotonic() - started < WALL_SECONDS + 1.5
    assert outcome.state is CallState.FAILED and outcome.problem is None
    said = await answer(blocks, address)
    assert (said["status"], said["result"]) == ("error", None) and told in said["message"], said
    assert (await blocks.call_row(address))["state"] == "failed"
    after, _ = await plan_and_run(blocks, "area", AREA)
    assert await answer(blocks, after) == RESULT


async def test_a_block_runs_for_its_tenant_on_a_shared_table(blocks: Harness, noted: NotedSandbox, urls: Urls) -> None:
    requester = blocks.people["requester"]
    other = replace(requester, tenant_id="elsewhere", user_id="00000000-0000-4000-8000-0000000000aa")
    async with as_owner(urls.owner, "elsewhere") as owner:
        await owner.execute("INSERT INTO tenants (tenant_id) VALUES ('elsewhere')")
        await owner.execute("INSERT INTO users (id, tenant_id, name) VALUES ($1, 'elsewhere', 'x')", other.user_id)
    there = replace(blocks, people={**blocks.people, "other": other})
    address, outcome = await plan_and_run(there, "area", AREA, by="other")
    assert outcome.state is CallState.DONE and await answer(there, address) == RESULT
    assert (address.tenant_id, noted.tenants[-1]) == ("elsewhere", "elsewhere")
    async with there.db.transaction("elsewhere") as tx:
        owners = await tx.fetch("SELECT tenant_id FROM app_tables WHERE name = 'units'")
        assert {row["tenant_id"] for row in owners} == {SHARED}, "which no tenant writes (test_tenancy.py)"


async def test_a_block_that_can_change_data_waits_for_approval(blocks: Harness) -> None:
    address = await blocks.plan(("stamp", {"number": 7}), agent_id=MAKER)
    assert (await run(blocks, address)).state is CallState.DENIED
    address = await blocks.plan(("stamp", {"number": 7}), agent_id=MAKER)
    (request,) = await blocks.open(address, "t1.0", agent_id=MAKER)
    assert (await blocks.approval_row(address))["risk"] == "high"
    await blocks.decide(request.request_id, Decision.EDIT, args={"number": 8}, comment="eight")
    assert (await run(blocks, address)).state is CallState.DONE
    said = await answer(blocks, address)
    assert said["result"]["result"] == {"text": "No. 8"} and said["arguments"] == {"number": 8}


async def test_a_turn_runs_the_block_version_that_it_was_pinned_to(blocks: Harness, tmp_path: Path) -> None:
    address = await blocks.plan(("area", AREA), agent_id=MAKER)
    call = await blocks.tool_call(address, "t1.0", MAKER)
    folder = tmp_path / "code_blocks"
    shutil.copytree(CODE_BLOCK_APP, folder)
    block, table = folder / "skills/measures/blocks/area.py", folder / "data/units.json"
    block.write_text(block.read_text().replace("width * height", "width + height"))
    table.write_text(table.read_text().replace("10,", "11,"))
    agents, tables = code_block_app(folder)
    try:
        await publish_app(blocks.owner_url, [*app_agents()[0], *agents], tables)
        _, changed = await plan_and_run(blocks, "area", AREA)
        outcome = await blocks.activity(ToolActivities(blocks.deps).run, call)
    finally:
        agents, tables = code_block_app()
        await publish_app(blocks.owner_url, [*app_agents()[0], *agents], tables)
    assert (outcome.state, changed.state) == (CallState.DONE, CallState.DONE)
    assert await answer(blocks, address) == RESULT
    assert changed.message is not None and "365" in changed.message.text


async def test_details_that_a_tool_audits_are_stored_with_its_call(blocks: Harness) -> None:
    address = await blocks.approved(("create_entity", {"kind": "k", "name": "Noted One"}))
    assert (await blocks.run_tool(address)).state is CallState.DONE
    noted = "SELECT kind, subject, data, actor FROM audit_trail WHERE turn_id = $1 AND kind LIKE 'tool.%'"
    (row,) = await blocks.rows(noted, address.turn_id)
    assert (row["kind"], row["data"]) == ("tool.create_entity", {"kind": "k", "name": "Noted One", "call_id": "t1.0"})
    assert str(row["actor"]) == blocks.people["requester"].user_id
    assert await blocks.value("SELECT count(*) FROM entities WHERE id = $1", row["subject"]) == 1
