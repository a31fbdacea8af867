"""A call whose version is published waits for a worker that has it, and its decision stays."""

from dataclasses import replace
from typing import Any

import pytest

from perdure.contracts.ids import approval_id
from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.decisions import Decider
from perdure.core.approvals.validity import WORKERS_CHANGED
from perdure.store.approvals import views
from perdure.store.approvals.assignments import withdraw
from perdure.store.approvals.decisions import EditNotChecked
from perdure.store.approvals.reissue import reissue_outdated
from perdure.store.turns.views import get_turn
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.served_turns import DONE, PAY, Served


@pytest.mark.parametrize(("end", "status", "state"), [
    ("worker", TurnStatus.COMPLETED, "done"),
    ("withdrawal", TurnStatus.COMPLETED, "denied"),
    ("stop", TurnStatus.STOPPED, "planned"),
])  # fmt: skip
async def test_an_approved_call_waits_for_a_worker(served: Served, end: str, status: TurnStatus, state: str) -> None:
    harness, person = served.harness, served.harness.people["reviewer"]
    address = await served.paused(Line("asking", [PAY]), DONE)
    tools = dict(harness.deps.toolbox._tools)
    del tools["desk", "pay"]

    async def waits_for_worker() -> bool:
        async with harness.db.transaction(person.tenant_id) as tx:
            turn: dict[str, Any] = await get_turn(tx, address.turn_id, None)
        return bool(turn["status"] == "running" and (turn["waiting_for"] or {}).get("kind") == "worker")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", tools)
        await served.decide(address)
        await until(waits_for_worker)
        assert (await harness.approval_row(address))["status"] == "approved"
        if end == "withdrawal":
            async with harness.db.transaction(person.tenant_id) as tx:
                await withdraw(tx, approval_id(address.turn_id, "t1.0"), Decider(person.user_id, person.roles), "no")
        if end == "stop":
            await served.stop(address)
        if end != "worker":
            await served.until(address, status)
    await served.until(address, status)
    assert served.effects(address, "/pay") == (end == "worker")
    assert await served.states(address) == {"t1.0": state}


async def test_a_call_whose_workers_have_unpublished_code_is_outdated_until_it_is_reissued(served: Served) -> None:
    harness, person = served.harness, served.harness.people["reviewer"]
    address = await served.paused(Line("asking", [PAY]), DONE)
    request, tools = approval_id(address.turn_id, "t1.0"), dict(harness.deps.toolbox._tools)
    card = tools["desk", "pay"].card.model_copy(update={"version": "newer", "version_1": ""})
    newer = {**tools, ("desk", "pay"): replace(tools["desk", "pay"], card=card)}

    async def reissue(checked: str = "") -> None:
        async with harness.db.transaction(person.tenant_id) as tx:
            await reissue_outdated(tx, request, Decider(person.user_id, person.roles), checked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", newer)
        await served.decide(address)
        await served.fails_once(address)
        await served.waits_for(address, request)
        async with harness.db.transaction(person.tenant_id) as tx:
            shown: dict[str, Any] = await views.get_approval(tx, request, None)
        assert (shown["status"], shown["outdated"]) == ("outdated", WORKERS_CHANGED)
    with pytest.raises(EditNotChecked) as unchecked:
        await reissue()
    await reissue(unchecked.value.edit.digest)  # a worker with the published version has checked it
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/pay") == 1
