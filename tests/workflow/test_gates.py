"""Gates on the real server: what people decide, and how the turn goes on from there."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.turns import Bell, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from tests.doubles.spoken import Line
from tests.served import DONE, PAUSED, PAY, POST, Served

A, E, R, S = Decision.APPROVE, Decision.EDIT, Decision.REJECT, Decision.RESPOND
Call = tuple[str, Mapping[str, JsonValue]]
TOO_MUCH, IN_MAY = ("too much, " * 300 + "see", "ask again in May, " * 200 + "please")
"""Told whole, however long; in a workflow they ride by their starts."""


ONE = [
    (A, {}, "done", 1, "tool", '"done":"/pay"'),
    (E, {"args": {"amount": 1}}, "done", 1, "tool", '"amount":1'),
    (R, {"comment": TOO_MUCH}, "planned", 0, "system", TOO_MUCH),
    (S, {"comment": IN_MAY}, "planned", 0, "system", IN_MAY),
]


@pytest.mark.parametrize(
    ("decision", "given", "state", "effects", "role", "told"), ONE, ids=[row[0].value for row in ONE]
)
async def test_a_decision_reaches_the_target_and_the_model(
    served: Served, decision: Decision, given: dict[str, Any], state: str, effects: int, role: str, told: str
) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    await served.decide(address, decision=decision, **given)
    row = await served.until(address, TurnStatus.COMPLETED)
    assert (row["answer"], row["waiting"]) == ("well", None)
    assert await served.states(address) == {"t1.0": state}
    assert served.effects(address, "/pay") == effects
    last = served.sent_to_model(address)[-1][-1]
    assert last["role"] == role and told in last["content"]
    roles = [said for said, _ in await served.transcript(address)]
    assert roles == (["assistant", "tool", "assistant"] if effects else ["assistant"])


TWO = [
    ({"t1.0": A, "t1.1": R}, {"t1.0": "done", "t1.1": "denied"}),
    ({"t1.0": R, "t1.1": R}, {"t1.0": "planned", "t1.1": "planned"}),
    ({"t1.1": A, "t1.0": S}, {"t1.0": "denied", "t1.1": "done"}),
]


@pytest.mark.parametrize(("decisions", "states"), TWO, ids=["first", "none", "second-then-answer"])
async def test_a_round_of_two_comes_to_what_was_decided_of_each(
    served: Served, decisions: dict[str, Decision], states: dict[str, str]
) -> None:
    address = await served.paused(Line("asking", [PAY, POST, ("look", {})]), DONE)
    (first, one), (second, other) = decisions.items()
    before = await served.waits(address)
    await served.decide(address, first, one, comment=f"because {first}")
    await served.waits_again(address, before)
    assert (await served.row(address))["status"] == PAUSED.value
    begun = (await served.states(address))[first] == "done"
    assert begun is (one is A), "an approved call does not wait for its sibling"
    assert set((await served.states(address)).values()) == ({"planned", "done"} if begun else {"planned"})
    await served.decide(address, second, other, comment=f"because {second}")
    await served.until(address, TurnStatus.COMPLETED)
    look = "done" if "done" in states.values() else "planned"
    assert await served.states(address) == {**states, "t1.2": look}
    assert served.effects(address, "/pay", "t1.0") == (states["t1.0"] == "done")
    assert served.effects(address, "/post", "t1.1") == (states["t1.1"] == "done")
    if look == "done":
        sent = served.sent_to_model(address)[-1]
        assert [message["role"] for message in sent[-4:]] == ["assistant", "tool", "tool", "tool"]
        assert [call["id"] for call in sent[-4]["tool_calls"]] == [message["tool_call_id"] for message in sent[-3:]]
        for call_id, state in states.items():
            index = int(call_id[-1])
            assert (f"because {call_id}" in sent[-3 + index]["content"]) is (state == "denied")


async def test_an_unreadable_verdict_keeps_the_turn_paused_until_it_can_be_read(served: Served) -> None:
    address = await served.paused(Line("asking", [PAY]), DONE)
    spoil = "UPDATE approvals SET nonce = $2 WHERE turn_id = $1"
    nonce = await served.desk.value("SELECT nonce FROM approvals WHERE turn_id = $1", address.turn_id)
    run_id = await served.waits(address)
    await served.desk.write(spoil, address.turn_id, "spoiled")
    await served.decide(address)
    await served.waits_again(address, run_id)
    assert (await served.row(address))["status"] == PAUSED.value
    assert await served.states(address) == {"t1.0": "planned"}
    await served.desk.write(spoil, address.turn_id, nonce)
    await served.ring(address, Bell(kind="request"))
    await served.until(address, TurnStatus.COMPLETED)
    assert served.effects(address, "/pay") == 1
    assert (await served.nodes(address)).count("resume_guard") == 3, "fresh, unreadable, readable"


async def test_an_approved_local_call_creates_its_entity_once_with_its_name_in_one_transaction(served: Served) -> None:
    create: Call = ("create_entity", {"kind": "well", "name": "Blue  Hill 7", "attributes": {"aliases": ["BH-7"]}})
    address = await served.paused(Line("asking", [create]), DONE)
    assert not await served.desk.rows("SELECT id FROM entities WHERE created_by_turn = $1", address.turn_id)
    await served.decide(address)
    await served.until(address, TurnStatus.COMPLETED)
    rows = await served.desk.rows(
        "SELECT e.id, e.xmin::text AS entity, n.xmin::text AS name, c.xmin::text AS call, n.name_key FROM entities e "
        "JOIN entity_names n ON n.entity_id = e.id "
        "JOIN tool_calls c ON c.turn_id = e.created_by_turn AND c.call_id = e.created_by_call "
        "WHERE e.created_by_turn = $1 ORDER BY n.name_key",
        address.turn_id,
    )
    assert [row["name_key"] for row in rows] == ["bh-7", "blue hill 7"]
    assert len({row["id"] for row in rows}) == 1
    assert all(row["entity"] == row["name"] == row["call"] for row in rows), "one transaction wrote all of it"
    found = ("entity_resolve", {"name": "blue hill 7"})
    again = await served.begin(Line("", [found]), DONE, conversation_id=address.conversation_id)
    await served.until(again, TurnStatus.COMPLETED)
    assert '"status":"resolved"' in served.sent_to_model(again)[-1][-1]["content"]
    memory = served.sent_to_model(again)[0][0]
    assert memory["role"] == "system" and str(rows[0]["id"]) in memory["content"], "working memory is injected"


async def test_an_effect_with_an_unknown_outcome_waits_for_a_person_and_the_turn_goes_on_with_the_truth(
    served: Served,
) -> None:
    breaks = ("post", {"mode": "break"})
    address = await served.paused(Line("asking", [breaks, PAY, ("look", {})]), DONE)
    await served.decide(address, "t1.0")
    await served.waits_for(address, effect_key(address.turn_id, "t1.0"))
    waiting = (await served.row(address))["waiting"]["ids"]
    assert waiting == [approval_id(address.turn_id, "t1.1"), effect_key(address.turn_id, "t1.0")]
    await served.decide(address, "t1.1")
    await until_waiting(served, address, [effect_key(address.turn_id, "t1.0")])
    before = await served.waits(address)
    assert await served.states(address) == {"t1.0": "outcome_unknown", "t1.1": "done", "t1.2": "done"}
    await served.ring(address, Bell(kind="request"))
    await served.waits_again(address, before)
    await served.settle(address, "t1.0")
    await served.until(address, TurnStatus.COMPLETED)
    assert await served.states(address) == {"t1.0": "done", "t1.1": "done", "t1.2": "done"}
    assert [served.effects(address, path, call) for path, call in (("/post", "t1.0"), ("/pay", "t1.1"))] == [1, 1]
    sent = served.sent_to_model(address)[-1]
    assert '"settled_by":"reviewer"' in sent[-3]["content"] and '"status":"happened"' in sent[-3]["content"]
    approvals = await served.desk.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert {row["status"] for row in approvals} == {"done"}


async def until_waiting(served: Served, address: TurnAddress, ids: list[str]) -> None:
    """Until the turn waits for exactly these requests."""
    for _ in range(1_500):
        row = await served.row(address)
        if row["waiting"] and row["waiting"]["ids"] == ids:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the turn waits for {row['waiting']}")


async def test_two_gates_in_one_turn_are_two_pauses(served: Served) -> None:
    address = await served.paused(Line("one", [PAY]), Line("two", [POST]), DONE)
    await served.decide(address, "t1.0")
    await served.waits_for(address, approval_id(address.turn_id, "t2.0"))
    await served.decide(address, "t2.0")
    await served.until(address, TurnStatus.COMPLETED)
    assert [served.effects(address, "/pay"), served.effects(address, "/post", "t2.0")] == [1, 1]
    assert [role for role, _ in await served.transcript(address)] == [
        *("assistant", "tool", "assistant", "tool", "assistant")
    ]
