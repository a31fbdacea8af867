"""What the trail answers (S0-82, S2-76): of one refund, from the export alone."""

import json

from contracts.digests import digest_of
from policy.decision import Decision
from store import audit_trail
from tests.desk import Desk

REFUND = {"amount": 70}
EDITED = {"amount": 60}


async def exported(desk: Desk, turn_id: str) -> list[dict[str, object]]:
    """The turn's rows, as whoever has nothing but the export reads them."""
    rows = [row async for row in audit_trail.exported(desk.db, "local", 0, turn_id, None)]
    loaded: list[dict[str, object]] = json.loads(json.dumps(rows, default=str))
    return loaded


async def test_the_export_answers_who_asked_what_was_planned_which_rule_who_decided_when_and_what_ran(
    desk: Desk,
) -> None:
    address = await desk.plan(("pay", REFUND))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id, Decision.EDIT, args=EDITED, comment="seventy was too much")
    await desk.run_tool(address)
    rows = await exported(desk, address.turn_id)
    by_kind = {str(row["kind"]): row for row in rows}
    opened, decided, ran = (
        by_kind[f"{kind}"]["data"] for kind in ("approval.opened", "approval.decided", "call.settled")
    )
    assert isinstance(opened, dict) and isinstance(decided, dict) and isinstance(ran, dict)
    people = desk.people
    assert by_kind["approval.opened"]["actor"] == "requester", "who asked"
    assert by_kind["approval.opened"]["actor_id"] == people["requester"].user_id
    assert (opened["tool"], opened["args"]) == ("pay", REFUND), "what was planned"
    assert opened["args_digest"] == digest_of(REFUND)
    assert opened["rule"] == "test", "which rule fired"
    assert (by_kind["approval.decided"]["actor"], decided["type"]) == ("reviewer", "edit"), "who decided"
    assert decided["comment"] == "seventy was too much" and decided["args"] == EDITED
    assert str(by_kind["approval.opened"]["at"]) < str(by_kind["approval.decided"]["at"]), "when"
    assert (ran["tool"], ran["args"], ran["state"]) == ("pay", EDITED, "done"), "what ran with which arguments"
    assert ran["args_digest"] == digest_of(EDITED)
    assert "/pay" in str(ran["result"]), "and its result"
    assert {row["subject"] for row in rows} == {request.request_id}
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)  # type: ignore[type-var]


async def test_a_call_that_failed_and_one_that_nobody_was_asked_about(desk: Desk) -> None:
    address = await desk.plan(("pay", {"mode": "refuse"}), ("book", {"what": "a table"}))
    (request,) = await desk.open(address, "t1.0")
    await desk.decide(request.request_id)
    await desk.run_tool(address, "t1.0")
    await desk.run_tool(address, "t1.1")
    settled = [row["data"] for row in await exported(desk, address.turn_id) if row["kind"] == "call.settled"]
    assert [(row["call_id"], row["state"]) for row in settled] == [("t1.0", "failed")]  # type: ignore[index]


async def test_an_approvals_rows_are_its_own_and_those_of_the_call_that_it_covers(desk: Desk) -> None:
    address = await desk.plan(("pay", {}), ("post", {}))
    first, second = await desk.open(address, "t1.0", "t1.1")
    await desk.decide(first.request_id)
    await desk.decide(second.request_id, Decision.REJECT, comment="no")
    await desk.run_tool(address)
    async with desk.db.transaction("local") as tx:
        told = await audit_trail.of_approval(tx, first.request_id, None)
    assert [row["kind"] for row in told] == ["approval.opened", "approval.decided", "call.settled"]
    assert [row["actor"] for row in told][:2] == ["requester", "reviewer"]


async def test_an_export_goes_on_behind_a_place_and_ends_after_as_many_rows_as_asked_for(desk: Desk) -> None:
    whole = [row["seq"] async for row in audit_trail.exported(desk.db, "local", 0, None, None)]
    assert whole == list(range(1, len(whole) + 1)) and len(whole) > 5
    behind = [row["seq"] async for row in audit_trail.exported(desk.db, "local", 2, None, 3)]
    assert behind == [3, 4, 5]
    assert [row async for row in audit_trail.exported(desk.db, "local", len(whole), None, None)] == []
