"""`tools.preview` on the desk: what a look comes to, whatever its author's code does, and what is kept of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Annotated

import pytest
from pydantic import Field

from perdure.activities.approvals import MOST_CHARACTERS, PreviewActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.contracts.activities import PreviewRequest
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decision
from perdure.sdk.tools import Preview, PreviewOf, ToolContext
from perdure.store.approvals import views
from tests.doubles.target import app_agents
from tests.harness import Harness


async def looked(context: ToolContext, amount: Annotated[int, Field(gt=0)] = 1, mode: str = "") -> Preview:
    """As `mode` says."""
    if mode == "send":
        await context.send("POST", "http://desk.test/pay", json={"call": "x"})
    if mode == "wait":
        await context.send("GET", "http://desk.test/look", json={"call": "preview", "mode": "hang"})
    if mode == "break":
        raise ValueError("a secret of the target")
    after = "x" * MOST_CHARACTERS if mode == "long" else f"{100 - amount} left"
    return Preview({"account": "100 left"}, {"account": after})


@dataclass(frozen=True, slots=True)
class Looking:
    """The desk, whose `pay` has a preview."""

    harness: Harness

    async def asked(self, **args: object) -> tuple[TurnAddress, str]:
        """A call that waits, and its approval's id."""
        address = await self.harness.plan(("pay", args))
        (request,) = await self.harness.open(address, "t1.0")
        return address, request.request_id

    async def look(self, address: TurnAddress, approval_id: str, seconds: float = 5.0) -> bool:
        """Have it made."""
        ask = PreviewRequest(address=address, approval_id=approval_id, routing=self.harness.routing)
        made = await self.harness.activity(PreviewActivities(self.harness.deps, seconds).preview, ask)
        return made.kept

    async def shown(self, approval_id: str) -> dict[str, object]:
        """The approval as a reviewer sees it."""
        async with self.harness.db.transaction("local") as tx:
            return await views.get_approval(tx, approval_id, None)

    async def seen(self, approval_id: str) -> dict[str, object]:
        """Its preview."""
        found = (await self.shown(approval_id))["preview"]
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
async def looking(harness: Harness) -> AsyncIterator[Looking]:
    tools = app_agents()[1]
    pay = next(tool for agent_id, tool in tools if (agent_id, tool.card.name) == ("desk", "pay"))
    more = {"previews": True, "describe": "Pay {amount}.", "version": digest_of("with a preview")}
    card = pay.card.model_copy(update=more)
    seeing = replace(pay, card=card, preview=PreviewOf.of("pay", looked, pay.parameters))
    await harness.republished(("desk", "pay"), seeing)
    of_desk = [
        (agent_id, seeing if (agent_id, tool.card.name) == ("desk", "pay") else tool) for agent_id, tool in tools
    ]
    toolbox = Toolbox(of_desk, lambda name: None, harness.deps.toolbox.http)
    yield Looking(replace(harness, deps=replace(harness.deps, toolbox=toolbox)))


async def test_a_preview_is_of_the_call_that_is_decided_on_now_and_stays_once_it_is(looking: Looking) -> None:
    address, approval_id = await looking.asked(amount=30)
    assert await looking.seen(approval_id) == {}
    assert await looking.look(address, approval_id)
    found = await looking.seen(approval_id)
    assert (found["before"], found["after"]) == ({"account": "100 left"}, {"account": "70 left"})
    assert found["fault"] is None and found["is_current"] is True and found["at"]
    await looking.harness.decide(approval_id, Decision.REJECT, comment="no")
    assert not await looking.look(address, approval_id)
    assert await looking.seen(approval_id) == found


async def test_once_an_edit_has_decided_the_record_tells_of_the_call_that_ran(looking: Looking) -> None:
    address, approval_id = await looking.asked(amount=30)
    assert await looking.look(address, approval_id)
    await looking.harness.decide(approval_id, Decision.EDIT, args={"amount": 20})
    shown = await looking.shown(approval_id)
    assert shown["says"] == "Pay 20." and shown["args_brief"] == "amount: 20" and shown["args"] == {"amount": 30}
    assert (await looking.seen(approval_id))["is_current"] is False


@pytest.mark.parametrize(("mode", "names"), [("send", ""), ("wait", "0.2"), ("break", "ValueError"), ("long", "")])
async def test_whatever_goes_wrong_is_a_sentence_and_nothing_is_done(looking: Looking, mode: str, names: str) -> None:
    paid = looking.harness.world.count("/pay")
    address, approval_id = await looking.asked(mode=mode)
    assert await looking.look(address, approval_id, 0.2 if mode == "wait" else 5.0)
    found = await looking.seen(approval_id)
    assert found["fault"] and names in str(found["fault"]) and "secret" not in str(found["fault"])
    assert found["before"] is None and looking.harness.world.count("/pay") == paid


async def test_a_tool_that_has_changed_since_is_not_looked_with(looking: Looking) -> None:
    address, approval_id = await looking.asked(amount=5)
    await looking.harness.write("UPDATE approvals SET tool_version = 'older' WHERE id = $1", approval_id)
    assert await looking.look(address, approval_id)
    assert (await looking.seen(approval_id))["fault"]
