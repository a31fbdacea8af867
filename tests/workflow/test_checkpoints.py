"""Checkpoints and rules on the real server: what a reviewer sees, what a decision does, warm, cold and past a kill.

The workers here cache no run, as those of test_cold_resumes.py.
"""

from typing import Any

import pytest

from perdure.contracts.agents import PublishedAgent
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store import agents
from perdure.store.approvals import views
from tests.desk import until
from tests.doubles.spoken import Line
from tests.served import DONE, PAUSED, Served, refused
from tests.workflow.test_cold_resumes import start_cold

pytestmark = pytest.mark.usefixtures("without_cache")

BOOK = ("book", {"what": "a chair"})
SELECT = Line("SKILL_SELECT:parcels")
CHECKED: dict[str, Any] = {"agent_id": "checked"}


async def at_checkpoint(served: Served, *lines: Line) -> TurnAddress:
    """A turn of the checked desk that waits at a checkpoint."""
    return await served.paused(*(lines or (Line("", [BOOK]), DONE)), **CHECKED)


async def seen(served: Served, address: TurnAddress, call_id: str = "c1.0") -> dict[str, Any]:
    async with served.desk.db.transaction("local") as tx:
        return await views.get_approval(tx, approval_id(address.turn_id, call_id), None)


async def fires(served: Served, address: TurnAddress) -> list[tuple[str, str]]:
    rows = await served.desk.rows(
        "SELECT call_id, data->>'rule_id' AS rule FROM events WHERE turn_id = $1 AND kind = 'hitl.rule_fire' "
        "ORDER BY seq",
        address.turn_id,
    )
    return [(row["call_id"], row["rule"]) for row in rows]


async def test_a_reviewer_sees_what_came_of_the_call_and_why_a_person_is_asked(served: Served) -> None:
    address = await at_checkpoint(served)
    shown = await seen(served, address)
    assert (shown["kind"], shown["checkpoint"], shown["tool"]) == ("checkpoint", "before_sending", "book")
    assert shown["result"] == {"done": "/book", "number": 0}
    assert shown["args"] == {"what": "a chair"}
    assert (shown["rule"], shown["call_id"]) == ("desk/parcels:booked", "t1.0")
    messages = shown["snapshot"]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert shown["snapshot"]["tokens_used"] == 10 and "metadata" in shown["snapshot"]
    row = await served.row(address)
    assert (row["waiting"]["kind"], row["waiting"]["ids"]) == ("checkpoint", [shown["id"]])
    assert await fires(served, address) == [("t1.0", "desk/parcels:booked")]
    await served.stop(address)


WAYS = ["warm", "cold"]


async def restarted(served: Served, address: TurnAddress, way: str = "cold") -> None:
    """Nothing, or the turn started again over its records, once before and once after the decision."""
    if way == "cold":
        await start_cold(served, address)
        await served.waits(address)


@pytest.mark.parametrize("way", WAYS)
async def test_an_approved_checkpoint_goes_on_and_the_call_has_run_once(served: Served, way: str) -> None:
    address = await at_checkpoint(served)
    requests = len(served.sent_to_model(address))
    await restarted(served, address, way)
    await served.decide(address, "c1.0")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "well"
    assert served.effects(address, "/book") == 1
    assert len(served.sent_to_model(address)) == requests + 1
    assert [message["role"] for message in served.sent_to_model(address)[-1][-3:]] == ["user", "assistant", "tool"]
    assert await fires(served, address) == [("t1.0", "desk/parcels:booked")]
    assert (await served.desk.approval_row(address, "c1.0"))["status"] == "approved"
    assert [role for role, _ in await served.transcript(address)] == ["assistant", "tool", "assistant"]


async def test_a_rejected_checkpoint_is_acknowledged_with_the_reason(served: Served) -> None:
    address = await at_checkpoint(served)
    await restarted(served, address)
    why = "the wrong chair, " * 100 + "you see"
    await served.decide(address, "c1.0", Decision.REJECT, comment=why)
    await served.until(address, TurnStatus.COMPLETED)
    note = served.sent_to_model(address)[-1][-1]
    assert note["role"] == "system" and why in note["content"]
    assert served.effects(address, "/book") == 1


async def test_an_edited_checkpoint_runs_the_edited_call_once_beside_the_first(served: Served) -> None:
    address = await at_checkpoint(served)
    await restarted(served, address)
    await served.decide(address, "c1.0", Decision.EDIT, args={"what": "a table"})
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"c1.0": "done", "t1.0": "done"}
    assert [served.effects(address, "/book", call_id) for call_id in ("t1.0", "c1.0")] == [1, 1]
    sent = served.sent_to_model(address)[-1]
    assert [message["role"] for message in sent[-4:]] == ["assistant", "tool", "assistant", "tool"]
    assert sent[-2]["tool_calls"][0]["id"] == sent[-1]["tool_call_id"] != sent[-3]["tool_call_id"]
    assert '"arguments":{"what":"a table"}' in sent[-1]["content"]
    row = await served.desk.approval_row(address, "c1.0")
    assert (row["status"], row["args"], row["decision"]["args"]) == ("done", {"what": "a chair"}, {"what": "a table"})
    assert len(await fires(served, address)) == 1


async def test_an_edit_is_made_once_though_the_turn_is_started_again_while_it_runs(served: Served) -> None:
    address = await at_checkpoint(served)
    served.desk.world.go_on.clear()
    await served.decide(address, "c1.0", Decision.EDIT, args={"what": "a table", "mode": "wait"})
    await until(lambda: served.effects(address, "/book", "c1.0") == 1)
    assert (await served.states(address))["c1.0"] == "reserved"
    await start_cold(served, address)
    served.desk.world.go_on.set()
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/book", "c1.0") == 1
    assert await served.states(address) == {"c1.0": "done", "t1.0": "done"}
    assert (
        await served.desk.value(
            "SELECT count(*) FROM messages WHERE turn_id = $1 AND role = 'assistant' AND in_transcript", address.turn_id
        )
        == 3
    )


async def test_a_checkpoint_that_was_passed_holds_up_no_turn_that_is_started_again_later(served: Served) -> None:
    waits = Line("wait", [("look", {"mode": "wait"})])
    address = await at_checkpoint(served, Line("", [BOOK]), waits, DONE)
    served.desk.world.go_on.clear()
    await served.decide(address, "c1.0")
    await until(lambda: served.desk.world.running > 0)
    await start_cold(served, address)
    served.desk.world.go_on.set()
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/book") == 1
    assert len(served.sent_to_model(address)) == 3, "nothing is paid twice"
    assert await served.desk.value("SELECT count(*) FROM approvals WHERE turn_id = $1", address.turn_id) == 1


async def test_arguments_that_do_not_fit_the_tool_are_refused_and_the_checkpoint_stays_open(served: Served) -> None:
    address = await at_checkpoint(served)
    with refused("args_invalid"):
        await served.decide(address, "c1.0", Decision.EDIT, args={"what": 7})
    assert (await served.row(address))["status"] == PAUSED.value
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    assert (await served.desk.approval_row(address, "c1.0"))["status"] == "cancelled"
    assert await served.states(address) == {"t1.0": "done"}


async def test_a_result_that_was_changed_behind_the_reviewers_back_does_not_pass(served: Served) -> None:
    address = await at_checkpoint(served)
    run_id = await served.waits(address)
    change = "UPDATE approvals SET result = $2 WHERE turn_id = $1"
    await served.desk.write(change, address.turn_id, {"done": "/elsewhere"})
    await served.decide(address, "c1.0")
    await served.waits_again(address, run_id)
    assert (await served.row(address))["status"] == PAUSED.value
    await served.stop(address)


async def test_a_checkpoint_in_the_synthesis_goes_on_there_with_the_skill_marked(served: Served) -> None:
    address = await at_checkpoint(served, SELECT, Line("", [BOOK]), DONE)
    await restarted(served, address)
    await served.decide(address, "c2.0")
    await served.until(address, TurnStatus.COMPLETED)
    nodes = await served.nodes(address)
    assert nodes[-3:] == ["resume_guard", "synthesis_llm_call", "output_format"]
    sent = served.sent_to_model(address)[-1]
    texts = [message["content"] for message in sent if message["role"] == "system"]
    assert any(text.startswith("=== Skill Activated: Parcels") for text in texts)
    marks = await served.desk.rows(
        "SELECT skill_id, tier FROM injection_ledger WHERE turn_id = $1 ORDER BY skill_id", address.turn_id
    )
    assert [tuple(mark) for mark in marks] == [("parcels", 3), ("weights", 2)]


async def test_a_rule_gates_a_call_that_its_effect_class_would_let_run(served: Served) -> None:
    address = await served.paused(Line("", [("jot", {"text": "a"})]), DONE, **CHECKED)
    row = await served.desk.approval_row(address)
    assert row["rule"] == "desk/parcels:jotted"
    await served.decide(address, decision=Decision.REJECT, comment="no notes")
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "planned"}


async def test_a_rule_that_aborts_ends_the_turn_before_the_call_is_sent(served: Served) -> None:
    address, row = await served.ended(Line("", [("shout", {"text": "a"})]), **CHECKED)
    assert row["status"] == "failed"
    assert row["problem"]["code"] == "rule_abort"
    assert served.effects(address, "/shout") == 0
    assert await fires(served, address) == [("t1.0", "desk/parcels:shouted")]


async def test_a_condition_on_a_result_is_read_where_the_result_was_made(served: Served) -> None:
    address, row = await served.ended(Line("", [("look", {"what": "a"})]), DONE, **CHECKED)
    assert (row["status"], await fires(served, address)) == ("completed", [])
    twice = await served.paused(Line("", [("look", {"what": "a", "mode": "busy"})]), DONE, **CHECKED)
    assert (await seen(served, twice))["result"] == {"done": "/look", "number": 1}
    await served.stop(twice)


async def test_an_approved_checkpoint_of_a_stopped_turn_is_no_longer_asked_about(served: Served) -> None:
    address = await at_checkpoint(served)
    await served.stop(address)
    await served.until(address, TurnStatus.STOPPED)
    with refused("already_decided"):
        await served.decide(address, "c1.0")


async def test_a_tenant_may_have_a_rule_end_the_turn_instead_of_asking(served: Served) -> None:
    rules = [rule for skill in (await checked(served)).definition.skills for rule in skill.rules]
    person = served.desk.people["admin"]
    waiting = await at_checkpoint(served)
    for do in ("abort", "require_hitl"):
        async with served.desk.db.transaction("local") as tx:
            await agents.set_action(tx, rules, "desk/parcels:booked", do, person.user_id)
        if do == "abort":
            _, row = await served.ended(Line("", [BOOK]), DONE, **CHECKED)
            assert row["problem"]["code"] == "rule_abort"
            await served.decide(waiting, "c1.0")
            await served.until(waiting, TurnStatus.COMPLETED)
    await served.stop(await at_checkpoint(served))


async def checked(served: Served) -> PublishedAgent:
    version = await served.desk.version("checked")
    async with served.desk.db.transaction("local") as tx:
        return await served.desk.deps.shelf.at(tx, "checked", version)


async def forced(served: Served, *lines: Line) -> TurnAddress:
    """A turn whose request forces a checkpoint, at its pause."""
    address, started = await served.desk.start(*lines, **CHECKED)
    force = {"hitl_checkpoint_type": "before_answer"}
    await served.desk.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, force)
    assert started.note is not None and await served.desk.deps.doorbell.deliver_soon(started.note)
    await served.until(address, PAUSED)
    await served.waits(address)
    return address


async def test_a_request_may_force_a_checkpoint_on_the_answer(served: Served) -> None:
    address = await forced(served, Line("my answer"))
    shown = await seen(served, address, "c1")
    assert (shown["kind"], shown["checkpoint"], shown["tool"]) == ("checkpoint", "before_answer", "")
    assert (shown["result"], shown["call_id"]) == ("my answer", None)
    assert shown["allowed_decisions"] == ["approve", "reject", "respond"]
    with refused("nothing_to_edit"):
        await served.decide(address, "c1", Decision.EDIT, args={})
    await restarted(served, address)
    await served.decide(address, "c1")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "my answer"
    assert len(served.sent_to_model(address)) == 1, "no skill, no synthesis"


async def test_a_forced_checkpoint_that_is_rejected_is_acknowledged(served: Served) -> None:
    address = await forced(served, SELECT, Line("I was told no"))
    await restarted(served, address)
    await served.decide(address, "c1", Decision.REJECT, comment="not yet")
    row = await served.until(address, TurnStatus.COMPLETED)
    assert row["answer"] == "I was told no"
    assert "not yet" in served.sent_to_model(address)[-1][-1]["content"]
