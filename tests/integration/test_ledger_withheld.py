"""A target's answer that is too large, through the real ledger: what was done is recorded as done."""

from dataclasses import replace

import httpx
import psutil
import pytest

from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.turns import TurnAddress
from perdure.core.egress import Outbound
from perdure.egress import Transport
from tests.doubles.hostile_target import MEBI, Talk, Target, bomb, floods, says, threaded
from tests.doubles.target import app_agents
from tests.harness import Harness
from tests.near import NEAR

S = CallState
FLOODS = {"announced": floods(announced=True), "endless": floods(), "bomb": says(200, bomb(), "content-encoding: gzip")}


class At(httpx.AsyncBaseTransport):
    """The desk's target, at a server of this machine."""

    def __init__(self, made: Target, outbound: Outbound) -> None:
        self._made, self._inner = made, Transport(outbound)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=self._made.port)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def run(
    harness: Harness, address: TurnAddress, talk: Talk, outbound: Outbound = NEAR
) -> tuple[ToolOutcome, Target]:
    """The call's only attempt, against a target that talks so."""
    with threaded(talk) as made:
        async with httpx.AsyncClient(transport=At(made, outbound)) as http:
            toolbox = Toolbox(app_agents()[1], lambda name: None, http)
            outcome = await replace(harness, deps=replace(harness.deps, toolbox=toolbox)).run_tool(address)
    return outcome, made


UNDONE = [("look", "announced"), ("look", "bomb"), ("jot", "endless")]
WRITTEN = [("book", "announced"), ("shout", "endless"), ("post", "bomb")]


@pytest.mark.parametrize(("tool", "kind"), [*UNDONE, *WRITTEN])
async def test_an_answer_that_is_too_large_fails_what_is_not_written_and_leaves_a_write_done(
    harness: Harness, tool: str, kind: str
) -> None:
    state = S.DONE if (tool, kind) in WRITTEN else S.FAILED
    address = await (harness.approved if tool == "post" else harness.plan)((tool, {}))
    before = psutil.Process().memory_info().rss
    outcome, made = await run(harness, address, FLOODS[kind])
    assert (psutil.Process().memory_info().rss - before) // MEBI < 150
    assert outcome.state is state and len(made.heads) == 1 and outcome.message is not None
    told = await harness.value("SELECT content FROM messages WHERE id = $1", outcome.message.id)
    assert "answer_too_large" in told
    assert (await harness.call_row(address))["state"] == state.value
    assert await harness.value("SELECT count(*) FROM entities WHERE created_by_turn = $1", address.turn_id) == 0
    again, other = await run(harness, address, says())
    assert again == outcome and other.heads == [], "it is not sent again"


async def test_an_error_of_the_target_means_what_its_status_says(harness: Harness) -> None:
    for tool, status, state in (("look", 404, S.FAILED), ("shout", 422, S.FAILED), ("shout", 500, S.OUTCOME_UNKNOWN)):
        address = await harness.plan((tool, {}))
        outcome, _ = await run(harness, address, floods(status))
        assert outcome.state is state


@pytest.mark.parametrize("tool", ["look", "jot", "book", "shout"])
async def test_a_call_to_a_host_that_nobody_named_fails_and_nothing_is_sent(harness: Harness, tool: str) -> None:
    address = await harness.plan((tool, {}))
    outcome, made = await run(harness, address, says(), Outbound())
    assert outcome.state is S.FAILED and made.heads == []
