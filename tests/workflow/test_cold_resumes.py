"""A turn that an operator starts again over its own records: the gate is found, nothing is paid or done twice.

The workers here cache no run, so that a run which is terminated under way is not left in one with its graph half done.
"""

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.common import WorkflowIDReusePolicy

from perdure.contracts.activities import TURN_RUN
from perdure.contracts.ids import approval_id, turn_workflow_id
from perdure.contracts.turns import Limits, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store.delivery.outbox import workflow_input
from tests.desk import until
from tests.doubles.spoken import Line
from tests.served import DONE, PAUSED, PAY, POST, Served

pytestmark = pytest.mark.usefixtures("without_cache")

LOOK = ("look", {"what": "a"})


async def start_cold(served: Served, address: TurnAddress) -> None:
    """Terminate the turn's run and start a fresh one: nothing is left but what Postgres has."""
    await served.handle(address).terminate("the operator starts it again")
    async with served.desk.db.transaction("local") as tx:
        turn = await workflow_input(tx, address.turn_id)
    assert turn is not None
    await served.client.start_workflow(
        TURN_RUN,
        turn,
        id=turn_workflow_id(address.turn_id),
        task_queue=turn.routing.turns,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )


async def told(served: Served, address: TurnAddress) -> list[str]:
    """The roles of what the model was told last."""
    return [message["role"] for message in served.sent_to_model(address)[-1]]


async def test_a_gate_is_found_in_the_store_and_its_approved_call_runs_once(served: Served) -> None:
    address = await served.paused(Line("look first", [LOOK]), Line("asking", [PAY, POST]), DONE)
    requests = len(served.sent_to_model(address))
    await start_cold(served, address)
    await served.waits(address)
    assert (await served.row(address))["status"] == PAUSED.value
    assert len(served.sent_to_model(address)) == requests, "the guard paused it before any model call"
    await served.decide(address, "t2.0")
    await served.decide(address, "t2.1", Decision.REJECT, comment="no")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert await served.states(address) == {"t1.0": "done", "t2.0": "done", "t2.1": "denied"}
    assert served.effects(address, "/pay", "t2.0") == 1
    assert len(served.sent_to_model(address)) == requests + 1
    approvals = await served.desk.value("SELECT count(*) FROM approvals WHERE turn_id = $1", address.turn_id)
    assert approvals == 2, "nothing is asked twice"


async def test_a_gate_that_was_acknowledged_is_not_taken_for_the_one_that_is_open(served: Served) -> None:
    address = await served.paused(Line("first", [PAY]), Line("then", [POST]), DONE)
    await served.decide(address, "t1.0", Decision.REJECT, comment="not this")
    second = approval_id(address.turn_id, "t2.0")
    await served.waits_for(address, second)
    await start_cold(served, address)
    await served.waits(address)
    assert (await served.row(address))["waiting"]["ids"] == [second]
    await served.decide(address, "t2.0")
    await served.until(address, TurnStatus.COMPLETED)
    assert [served.effects(address, "/pay"), served.effects(address, "/post", "t2.0")] == [0, 1]
    assert await served.states(address) == {"t1.0": "planned", "t2.0": "done"}
    assert [role for role, _ in await served.transcript(address)] == ["assistant", "tool", "assistant"]


async def test_a_refusal_that_was_acknowledged_is_not_asked_about_again(served: Served) -> None:
    served.desk.world.go_on.clear()
    waits = Line("wait", [("look", {"mode": "wait"})])
    address = await served.paused(Line("first", [PAY]), waits, DONE)
    await served.decide(address, "t1.0", Decision.REJECT, comment="not this")
    await until(lambda: served.desk.world.running > 0)
    await start_cold(served, address)
    served.desk.world.go_on.set()
    await served.until(address, TurnStatus.COMPLETED)
    assert len(served.sent_to_model(address)) == 3
    assert served.effects(address, "/pay") == 0


async def test_what_was_done_before_the_gate_is_still_told_to_the_model_and_kept(served: Served) -> None:
    address = await served.paused(Line("pay first", [PAY]), Line("then", [POST]), DONE)
    await served.decide(address, "t1.0")
    await served.waits_for(address, approval_id(address.turn_id, "t2.0"))
    await start_cold(served, address)
    await served.waits(address)
    await served.decide(address, "t2.0")
    await served.until(address, TurnStatus.COMPLETED)
    assert await told(served, address) == ["user", "assistant", "tool", "assistant", "tool"]
    assert [text for role, text in await served.transcript(address) if role == "assistant"] == [
        *("pay first", "then", "well")
    ]
    assert [served.effects(address, "/pay"), served.effects(address, "/post", "t2.0")] == [1, 1]


async def test_a_call_that_was_approved_and_done_does_not_hold_up_a_cold_start(served: Served) -> None:
    address = await served.paused(Line("first", [PAY]), Line("thinking", seconds=3.0))
    await served.decide(address, "t1.0")
    await until(lambda: served.desk.model.requests[f"{address.turn_id}.m2"] == 1)
    await start_cold(served, address)
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "thinking"
    assert served.effects(address, "/pay") == 1
    assert await told(served, address) == ["user", "assistant", "tool"]


async def test_a_cold_start_does_not_forget_what_was_used(served: Served) -> None:
    limits = Limits(max_tokens=30)
    address = await served.paused(Line("look", [LOOK]), Line("asking", [PAY]), Line("on", [LOOK]), DONE, limits=limits)
    await start_cold(served, address)
    await served.waits(address)
    await served.decide(address, "t2.0")
    row = await served.until(address, TurnStatus.LIMITED, TurnStatus.COMPLETED)
    assert (row["status"], row["problem"]["code"]) == ("limited", "token_budget_spent")
    assert len(served.sent_to_model(address)) == 3


async def test_a_run_that_is_reset_to_its_beginning_pays_for_nothing_again(served: Served) -> None:
    served.desk.world.go_on.clear()
    waits = Line("wait", [("look", {"mode": "wait"})])
    address = await served.begin(Line("look", [LOOK, ("book", {"what": "x"})]), waits, DONE)
    await until(lambda: served.desk.world.running > 0)
    requests = len(served.sent_to_model(address))
    history = await served.history(address)
    task = next(
        event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    )
    await served.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=served.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=turn_workflow_id(address.turn_id), run_id=history.run_id),
            reason="a test",
            workflow_task_finish_event_id=task,
            request_id="reset-" + address.turn_id,
        )
    )
    served.desk.world.go_on.set()
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert len(served.sent_to_model(address)) == requests + 1
    assert served.effects(address, "/book", "t1.1") == 1
    kinds = await served.desk.kinds(address.turn_id)
    assert [kinds.count(kind) for kind in ("generation.complete", "tool.result", "done")] == [3, 3, 1]
    assert (await served.nodes(address)).count("memory_node") == 2, "the trace shows both runs"


async def test_a_cold_start_after_a_bell_and_a_decision_goes_straight_on(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    await served.desk.decide(approval_id(address.turn_id, "t1.0"))
    await start_cold(served, address)
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/pay") == 1
    assert len(served.sent_to_model(address)) == 2
    assert [role for role, _ in await served.transcript(address)] == ["assistant", "tool", "assistant"]


async def test_a_round_with_one_call_done_one_under_way_and_one_open_goes_on_as_it_would_have(served: Served) -> None:
    served.desk.world.go_on.clear()
    address = await served.paused(Line("asking", [PAY, ("pay", {"mode": "wait"}), POST]), DONE)
    requests = len(served.sent_to_model(address))
    await served.decide(address, "t1.0")
    await until(lambda: served.effects(address, "/pay", "t1.0") == 1)
    await served.decide(address, "t1.1")
    await until(lambda: served.effects(address, "/pay", "t1.1") == 1)
    await start_cold(served, address)
    await served.waits_for(address, approval_id(address.turn_id, "t1.2"))
    assert (await served.row(address))["waiting"]["ids"] == [approval_id(address.turn_id, "t1.2")]
    assert await served.states(address) == {"t1.0": "done", "t1.1": "done", "t1.2": "planned"}
    await served.decide(address, "t1.2")
    await served.until(address, TurnStatus.COMPLETED)
    served.desk.world.go_on.set()
    assert await told(served, address) == ["user", "assistant", "tool", "tool", "tool"]
    effects = [("/pay", "t1.0"), ("/pay", "t1.1"), ("/post", "t1.2")]
    assert [served.effects(address, path, call_id) for path, call_id in effects] == [1, 1, 1]
    assert len(served.sent_to_model(address)) == requests + 1
