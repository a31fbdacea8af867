"""`tools.assemble` on real rows: retries by class, what counts as an output, and what is never done twice."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from perdure import ToolContext, tool
from perdure.activities.context_assembly import AssemblyActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts import context_assembly as assembly_of
from perdure.contracts.context_assembly import AssembleAsk, AssembleCall, Assembled, PipelineToolConfig, Source
from perdure.contracts.turns import TurnAddress
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from perdure.sdk.tools import Tool
from perdure.store.calls import context_assembly as bundles
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app


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
    assert made.bundle is not None and made.bundle.completeness == 0.5
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
    "fault", [TimeoutError(), httpx.ConnectError("c"), httpx.ReadTimeout("r"), status(503), ToolUnavailable("away")]
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
    [status(404), ToolRefused("no such thing"), RuntimeError("secret of the target"), {"completeness": 1.1}, "text"],
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
