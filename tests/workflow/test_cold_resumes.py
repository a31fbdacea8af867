"""A turn that an operator restarts from its records: the gate is found, nothing is paid or done twice.

The workers here cache no run, so that a run which is terminated under way is not left in one with its graph half done.
"""

from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.common import WorkflowIDReusePolicy

from perdure.contracts.activities import TURN_RUN
from perdure.contracts.ids import approval_id, turn_workflow_id
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store import agents
from perdure.store.approvals import views
from perdure.store.delivery.outbox import workflow_input
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.served_turns import DONE, PAUSED, PAY, POST, Served, refused

pytestmark = pytest.mark.usefixtures("without_cache")

LOOK = ("look", {"what": "a"})
BOOK = ("book", {"what": "a chair"})
CHECKED: dict[str, Any] = {"agent_id": "checked"}


async def start_cold(served: Served, address: TurnAddress, *, goes_on: bool = False) -> None:
    """Terminate the turn's run and start a fresh one, which waits again unless it continues. Only the data in Postgres
    remains."""
    await served.handle(address).terminate("the operator starts it again")
    async with served.harness.db.transaction("local") as tx:
        turn = await workflow_input(tx, address.turn_id)
    assert turn is not None
    reuse, workflow_id = WorkflowIDReusePolicy.ALLOW_DUPLICATE, turn_workflow_id(address.turn_id)
    queue = turn.routing.turns
    await served.client.start_workflow(TURN_RUN, turn, id=workflow_id, task_queue=queue, id_reuse_policy=reuse)
    if not goes_on:
        await served.waits(address)


async def test_a_restarted_turn_finds_its_gate_and_runs_the_approved_call_once(served: Served) -> None:
    address = await served.paused(Line("look first", [LOOK]), Line("asking", [PAY, POST]), DONE)
    requests = len(served.sent_to_model(address))
    await start_cold(served, address)
    assert (await served.row(address))["status"] == PAUSED.value
    assert len(served.sent_to_model(address)) == requests, "the guard paused it before any model call"
    await served.decide(address, "t2.0")
    await served.decide(address, "t2.1", Decision.REJECT, comment="no")
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
    assert await served.states(address) == {"t1.0": "done", "t2.0": "done", "t2.1": "denied"}
    assert served.effects(address, "/pay", "t2.0") == 1
    assert len(served.sent_to_model(address)) == requests + 1
    approvals = await served.harness.value("SELECT count(*) FROM approvals WHERE turn_id = $1", address.turn_id)
    assert approvals == 2, "nothing is asked twice"


async def test_a_run_reset_to_its_beginning_pays_for_nothing_again(served: Served) -> None:
    served.harness.world.go_on.clear()
    waits = Line("wait", [("look", {"mode": "wait"})])
    address = await served.begin(Line("look", [LOOK, ("book", {"what": "x"})]), waits, DONE)
    await until(lambda: served.harness.world.running > 0)
    requests = len(served.sent_to_model(address))
    history = await served.history(address)
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    task = next(event.event_id for event in history.events if event.event_type == done)
    await served.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=served.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=turn_workflow_id(address.turn_id), run_id=history.run_id),
            reason="a test",
            workflow_task_finish_event_id=task,
            request_id="reset-" + address.turn_id,
        )
    )
    served.harness.world.go_on.set()
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "well"
    assert len(served.sent_to_model(address)) == requests + 1
    assert served.effects(address, "/book", "t1.1") == 1
    kinds = await served.harness.kinds(address.turn_id)
    assert [kinds.count(kind) for kind in ("generation.complete", "tool.result", "done")] == [3, 3, 1]
    assert (await served.nodes(address)).count("memory_node") == 2, "the trace shows both runs"


async def at_checkpoint(served: Served, *lines: Line) -> TurnAddress:
    return await served.paused(*(lines or (Line("", [BOOK]), DONE)), **CHECKED)


async def approval_view(served: Served, address: TurnAddress, call_id: str = "c1.0") -> dict[str, Any]:
    async with served.harness.db.transaction("local") as tx:
        return await views.get_approval(tx, approval_id(address.turn_id, call_id), None)


async def fires(served: Served, address: TurnAddress) -> list[tuple[str, str]]:
    rows = await served.harness.rows(
        "SELECT call_id, data->>'rule_id' AS rule FROM events WHERE turn_id = $1 AND kind = 'hitl.rule_fire' "
        "ORDER BY seq",
        address.turn_id,
    )
    return [(row["call_id"], row["rule"]) for row in rows]


@pytest.mark.parametrize("way", ["warm", "cold"])
async def test_a_checkpoint_shows_the_outcome_of_a_call_and_the_call_runs_once(served: Served, way: str) -> None:
    address = await at_checkpoint(served)
    shown = await approval_view(served, address)
    assert (shown["kind"], shown["checkpoint"], shown["tool"]) == ("checkpoint", "before_sending", "book")
    assert shown["result"] == {"done": "/book", "number": 0}
    assert shown["args"] == {"what": "a chair", "mode": ""}
    assert (shown["rule"], shown["call_id"]) == ("desk/parcels:booked", "t1.0")
    messages = shown["snapshot"]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert shown["snapshot"]["tokens_used"] == 10 and "metadata" in shown["snapshot"]
    row = await served.row(address)
    assert (row["waiting"]["kind"], row["waiting"]["ids"]) == ("checkpoint", [shown["id"]])
    requests = len(served.sent_to_model(address))
    if way == "cold":
        await start_cold(served, address)
    await served.decide(address, "c1.0")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert served.effects(address, "/book") == 1
    assert len(served.sent_to_model(address)) == requests + 1
    assert [message["role"] for message in served.sent_to_model(address)[-1][-3:]] == ["user", "assistant", "tool"]
    assert await fires(served, address) == [("t1.0", "desk/parcels:booked")]
    assert (await served.harness.approval_row(address, "c1.0"))["status"] == "approved"
    assert [role for role, _ in await served.transcript(address)] == ["assistant", "tool", "assistant"]


async def test_a_passed_checkpoint_does_not_pause_a_restarted_turn(served: Served) -> None:
    waits = Line("wait", [("look", {"mode": "wait"})])
    address = await at_checkpoint(served, Line("", [BOOK]), waits, DONE)
    served.harness.world.go_on.clear()
    await served.decide(address, "c1.0")
    await until(lambda: served.harness.world.running > 0)
    await start_cold(served, address, goes_on=True)
    served.harness.world.go_on.set()
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/book") == 1
    assert len(served.sent_to_model(address)) == 3, "nothing is paid twice"
    assert await served.harness.value("SELECT count(*) FROM approvals WHERE turn_id = $1", address.turn_id) == 1


async def test_a_result_that_changed_after_the_review_is_not_passed_on(served: Served) -> None:
    address = await at_checkpoint(served)
    run_id = await served.waits(address)
    change = "UPDATE approvals SET result = $2 WHERE turn_id = $1"
    await served.harness.write(change, address.turn_id, {"done": "/elsewhere"})
    await served.decide(address, "c1.0")
    await served.waits_again(address, run_id)
    assert (await served.row(address))["status"] == PAUSED.value
    await served.stop(address)


async def test_a_tenants_override_lets_a_rule_end_the_turn(served: Served) -> None:
    version = await served.harness.version("checked")
    async with served.harness.db.transaction("local") as tx:
        definition = (await served.harness.deps.agent_cache.read_pinned(tx, "checked", version)).definition
    rules = [rule for skill in definition.skills for rule in skill.rules]
    waiting = await at_checkpoint(served)
    for do in ("abort", "require_hitl"):
        async with served.harness.db.transaction("local") as tx:
            await agents.set_action(tx, rules, "desk/parcels:booked", do, served.harness.people["admin"].user_id)
        if do == "abort":
            address, row = await served.run_to_end(Line("", [BOOK]), DONE, **CHECKED)
            assert (row["status"], row["problem"]["code"]) == ("failed", "rule_abort")
            assert await fires(served, address) == [("t1.0", "desk/parcels:booked")]
            await served.decide(waiting, "c1.0")
            await served.until(waiting, TurnStatus.COMPLETED)
    await served.stop(await at_checkpoint(served))


async def test_a_request_can_force_a_checkpoint_on_the_answer(served: Served) -> None:
    address, started = await served.harness.start(Line("my answer"), **CHECKED)
    force = {"hitl_checkpoint_type": "before_answer"}
    await served.harness.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, force)
    assert started.note is not None and await served.harness.deps.notifier.deliver_soon(started.note)
    await served.until(address, PAUSED)
    await served.waits(address)
    shown = await approval_view(served, address, "c1")
    assert (shown["kind"], shown["checkpoint"], shown["tool"]) == ("checkpoint", "before_answer", "")
    assert (shown["result"], shown["call_id"]) == ("my answer", None)
    assert shown["allowed_decisions"] == ["approve", "reject", "respond"]
    with refused("nothing_to_edit"):
        await served.decide(address, "c1", Decision.EDIT, args={})
    await start_cold(served, address)
    await served.decide(address, "c1")
    assert (await served.until(address, TurnStatus.COMPLETED))["answer"] == "my answer"
    assert len(served.sent_to_model(address)) == 1, "no skill, no synthesis"
