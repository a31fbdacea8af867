"""Code blocks as tools on real parts, and `tools.assemble` on real rows: what runs, is retried, is an output."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from perdure import ToolContext, tool
from perdure.activities.context_assembly import AssemblyActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.contracts import context_assembly as assembly_of
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.context_assembly import AssembleAsk, AssembleCall, Assembled, PipelineToolConfig, Source
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decision
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from perdure.sdk.tools import Tool
from perdure.store.agents import SHARED
from perdure.store.calls import context_assembly as bundles
from tests.code_blocks import CODE_BLOCK_APP, MAKER, WALL_SECONDS, NotedSandbox, code_block_app
from tests.conftest import Urls, as_owner
from tests.doubles.message_script import Line
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
@pytest.mark.parametrize(("tool", "args", "told"), [
    ("area", AREA | {"unit": "ell"}, "mm, cm, inch, abc"),  # the table's names in its author's order, not jsonb's
    ("area", {"width": 0, "height": 3}, "square_millimetres"),
    ("turn_wheel", {"rounds": 10**9}, str(WALL_SECONDS)),
])  # fmt: skip
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


@dataclass(slots=True)
class Says:
    """What the tool does next, call after call; the last of it for ever."""

    script: list[Any] = field(default_factory=lambda: [{"completeness": 1.0}])
    given: list[dict[str, Any]] = field(default_factory=list)


SAYS = Says()


@tool(effect="read")
async def probe(said: list[str] | None = None, size: int = 0, word: str = "") -> Any:
    """Say what the test says."""
    SAYS.given.append({"said": said, "size": size, "word": word})
    now = SAYS.script.pop(0) if len(SAYS.script) > 1 else SAYS.script[0]
    if isinstance(now, BaseException):
        raise now
    return now


@tool(effect="read")
async def other(context: ToolContext) -> Any:
    """Another one, without arguments."""
    return {"word": "from the other", "completeness": 0.5}


REGISTRY = (
    PipelineToolConfig(
        name="probe", inject_inputs=("word",), defaults={"size": 2}, max_retries=2, retry_backoff=0.5, hears=True
    ),
    PipelineToolConfig(name="other"),
)


@dataclass(slots=True)
class Assembler:
    harness: Harness
    activities: AssemblyActivities
    version: str

    async def turn(self) -> TurnAddress:
        address, _ = await self.harness.start(Line("hello"))
        return address

    async def run(self, address: TurnAddress, name: str = "probe", *sources: Source) -> Assembled:
        ask = AssembleAsk(tool=name, timeout_seconds=1, slice_hash="s", upstream="u", sources=sources)
        call = AssembleCall(address=address, agent_id="desk", agent_version=self.version, ask=ask)
        return await self.harness.activity(self.activities.assemble, call)


@pytest.fixture
async def assembler(harness: Harness) -> AsyncIterator[Assembler]:
    """The desk's agent with the two tools in a registry."""
    SAYS.script, SAYS.given = [{"completeness": 1.0}], []
    agents, tools = app_agents()
    app, agent = next(each for each in agents if each[1].definition.id == "desk")
    own: list[Tool] = [probe, other]
    assembly = assembly_of.ContextAssembly(
        pipeline="p", registry=REGISTRY, intents=("a",), default_intent="a", intervention="Talk to somebody."
    )
    definition = agent.definition.model_copy(update={"assembly": assembly})
    cards = (*agent.cards, *(each.card for each in own))
    published = agent.model_copy(update={"definition": definition, "cards": cards, "version": "with an assembly"})
    await publish_app(harness.owner_url, [(app, published)])
    async with httpx.AsyncClient() as http:
        toolbox = Toolbox([*tools, *(("desk", each) for each in own)], lambda name: None, http)
        yield Assembler(harness, AssemblyActivities(replace(harness.deps, toolbox=toolbox)), published.version)
    await publish_app(harness.owner_url)


async def test_arguments_come_from_defaults_the_other_output_and_the_conversation(assembler: Assembler) -> None:
    address = await assembler.turn()
    made = await assembler.run(address, "other")
    assert made.bundle is not None and (made.bundle.completeness, made.bundle.gives) == (0.5, ("word",))
    done = await assembler.run(address, "probe", Source(tool="other", turn_id=address.turn_id))
    assert done.problem is None
    (given,) = SAYS.given
    assert (given["size"], given["word"]) == (2, "from the other")
    assert len(given["said"]) == 1, "the user's own message"
    assert await assembler.run(address, "probe") == done and len(SAYS.given) == 1, "settled: it answers without running"


def status(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://target")
    return httpx.HTTPStatusError("s", request=request, response=httpx.Response(code, request=request))


@pytest.mark.parametrize(
    "fault",
    [
        *(TimeoutError(), httpx.ConnectError("c"), httpx.ReadTimeout("r"), status(503), ToolUnavailable("away")),
        ExceptionGroup("parts", [ToolUnavailable("away")]),
    ],
)
async def test_a_temporary_fault_is_retried_with_growing_waits(assembler: Assembler, fault: Exception) -> None:
    SAYS.script = [fault]
    address, waits = await assembler.turn(), []
    for _ in range(2):
        with pytest.raises(ApplicationError) as failed:
            await assembler.run(address)
        assert failed.value.next_retry_delay is not None and not failed.value.non_retryable
        waits.append(failed.value.next_retry_delay.total_seconds())
    assert waits == [0.5, 1.0]
    given_up = await assembler.run(address)
    assert given_up.problem is not None and (given_up.problem.code, given_up.attempts) == ("bundle_failed", 3)
    assert len(SAYS.given) == 3, "attempts are one more than retries"


@pytest.mark.parametrize(
    "said",
    [
        *(status(404), ToolRefused("no such thing"), RuntimeError("secret of the target"), asyncio.CancelledError()),
        *({"completeness": 1.1}, "text"),
    ],
)
async def test_a_permanent_fault_fails_without_a_retry(assembler: Assembler, said: Any) -> None:
    SAYS.script = [said]
    address = await assembler.turn()
    failed = await assembler.run(address)
    assert failed.problem is not None and failed.problem.code == "bundle_failed"
    assert "secret" not in failed.problem.message
    assert len(SAYS.given) == 1
    async with assembler.harness.db.transaction("local") as tx:
        assert await bundles.newest_bundles(tx, address) == ()


async def test_a_tool_that_recovers_counts_its_attempts_and_a_stopped_turn_runs_none(assembler: Assembler) -> None:
    SAYS.script = [TimeoutError(), {"completeness": 0.3}]
    address = await assembler.turn()
    with pytest.raises(ApplicationError):
        await assembler.run(address)
    done = await assembler.run(address)
    assert (done.attempts, done.problem) == (2, None)
    SAYS.given.clear()
    address = await assembler.turn()
    await assembler.harness.write("UPDATE turns SET stop_requested_at = now() WHERE id = $1", address.turn_id)
    stopped = await assembler.run(address)
    assert stopped.problem is not None and stopped.problem.code == "stopped"
    assert SAYS.given == []


async def test_a_later_turn_of_the_conversation_finds_the_outputs_of_another_worker(assembler: Assembler) -> None:
    address = await assembler.turn()
    done = await assembler.run(address)
    async with assembler.harness.db.transaction("local") as tx:
        assert await bundles.newest_bundles(tx, address) == (done.bundle,)
        found = await bundles.read_outputs(tx, address.conversation_id, [Source(tool="probe", turn_id=address.turn_id)])
        assert found == {"probe": {"completeness": 1.0}}
        elsewhere = "00000000-0000-7000-8000-000000000000"
        assert await bundles.read_outputs(tx, elsewhere, [Source(tool="probe", turn_id=address.turn_id)]) == {}
