"""What the trail answers (S0-82, S2-76): of one refund, from the export alone; and what ran undecided."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.approvals import RequestRef
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.audit import FaultKind
from perdure.store import audit
from perdure.store.approvals import views
from perdure.store.approvals.assignments import withdraw
from perdure.store.audit import verify_chain
from perdure.store.turns.finish import finish
from tests.conftest import KEYRING
from tests.harness import Harness

REFUND = {"amount": 70}
EDITED = {"amount": 60}
GIVE = "UPDATE approvals SET status = 'approved' WHERE id = $1"


async def exported(harness: Harness, turn_id: str) -> list[dict[str, Any]]:
    """The turn's rows, as whoever has nothing but the export reads them."""
    rows = [row async for row in audit.exported_rows(harness.db, "local", 0, turn_id, None)]
    return list(json.loads(json.dumps(rows, default=str)))


async def test_the_export_answers_who_asked_what_which_rule_who_decided_when_and_what_ran(harness: Harness) -> None:
    address = await harness.plan(("pay", REFUND))
    (request,) = await harness.open(address, "t1.0")
    await harness.decide(request.request_id, Decision.EDIT, args=EDITED, comment="seventy was too much")
    await harness.run_tool(address)
    rows = await exported(harness, address.turn_id)
    by_kind = {row["kind"]: row for row in rows}
    opened, decided, ran = (by_kind[kind]["data"] for kind in ("approval.opened", "approval.decided", "call.settled"))
    assert by_kind["approval.opened"]["actor"] == "requester", "who asked"
    assert by_kind["approval.opened"]["actor_id"] == harness.people["requester"].user_id
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
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)


async def test_a_call_that_failed_and_one_that_nobody_was_asked_about(harness: Harness) -> None:
    address = await harness.plan(("pay", {"mode": "refuse"}), ("book", {"what": "a table"}))
    (request,) = await harness.open(address, "t1.0")
    await harness.decide(request.request_id)
    await harness.run_tool(address, "t1.0")
    await harness.run_tool(address, "t1.1")
    rows = [row for row in await exported(harness, address.turn_id) if str(row["kind"]).startswith("call.")]
    assert [(row["kind"], row["subject"], row["actor"]) for row in rows] == [
        ("call.settled", request.request_id, None),
        ("call.ran", effect_key(address.turn_id, "t1.1"), "requester"),
    ]
    failed, free = (row["data"] for row in rows)
    assert (failed["call_id"], failed["state"]) == ("t1.0", "failed")
    assert (free["tool"], free["args"], free["state"]) == ("book", {"what": "a table"}, "done")
    assert "/book" in free["result"]
    assert (await verify_chain(harness.db, "local", KEYRING)).ok, "nobody had to allow it"


async def stopped(harness: Harness, address: TurnAddress, kind: str) -> str:
    """What is on record of a call that was under way as its turn was stopped."""
    await harness.write("UPDATE tool_calls SET state = 'reserved', epoch = 1 WHERE turn_id = $1", address.turn_id)
    async with harness.db.transaction("local") as tx:
        await finish(tx, FinishRequest(address=address, status=TurnStatus.STOPPED))
    (row,) = [row for row in await exported(harness, address.turn_id) if row["kind"] == kind]
    return str(row["data"]["state"])


async def test_a_call_that_is_under_way_as_its_turn_ends_is_on_record(harness: Harness) -> None:
    free = await harness.plan(("book", {"mode": "break"}))
    assert await stopped(harness, free, "call.ran") == "outcome_unknown"
    of_our_own_rows = await harness.approved(("jot", {"text": "never"}))
    await harness.write("UPDATE approvals SET status = 'reserved' WHERE turn_id = $1", of_our_own_rows.turn_id)
    assert await stopped(harness, of_our_own_rows, "call.settled") == "failed"
    assert (await harness.approval_row(of_our_own_rows))["status"] == "failed"


async def test_an_approvals_rows_are_its_own_and_those_of_the_call_that_it_covers(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    await harness.decide(second.request_id, Decision.REJECT, comment="no")
    await harness.run_tool(address)
    async with harness.db.transaction("local") as tx:
        told, following = await audit.rows_of_approval(tx, first.request_id, None, 2, None)
        rest, end = await audit.rows_of_approval(tx, first.request_id, None, 2, following)
    told += rest
    assert (len(rest), end) == (1, None)
    assert [row["kind"] for row in told] == ["approval.opened", "approval.decided", "call.settled"]
    assert [row["actor"] for row in told][:2] == ["requester", "reviewer"]


async def test_a_history_that_goes_on_and_on_is_shown_by_its_latest(harness: Harness) -> None:
    address = await harness.plan(("pay", {}))
    (asked,) = await harness.open(address, "t1.0")
    async with harness.db.transaction("local") as tx:
        for number in range(views.MOST_OF_HISTORY):
            told: dict[str, JsonValue] = {"number": number}
            await audit.record(tx, "approval.claimed", asked.request_id, told, actor=None, turn_id=address.turn_id)
        history = (await views.get_approval(tx, asked.request_id, None))["history"]
    assert isinstance(history, list)
    assert [entry["data"]["number"] for entry in history] == [*range(views.MOST_OF_HISTORY)]


async def asked(harness: Harness) -> tuple[TurnAddress, RequestRef]:
    address = await harness.plan(("pay", {"amount": 7}))
    (request,) = await harness.open(address, "t1.0")
    return address, request


async def doubted(harness: Harness) -> set[str | None]:
    """The approvals without which a call has run, each told once and at its first row."""
    faults = (await verify_chain(harness.db, "local", KEYRING)).faults
    assert {fault.kind for fault in faults} <= {FaultKind.RAN_UNDECIDED}
    for fault in faults:
        rows = "SELECT a.id, c.seq FROM audit a JOIN audit_chain c ON c.audit_id = a.id WHERE a.subject = $1 ORDER BY 1"
        first = await harness.rows(rows, fault.subject)
        assert (fault.audit_id, fault.seq) == tuple(first[0])
    subjects = [fault.subject for fault in faults]
    assert len(subjects) == len(set(subjects))
    return set(subjects)


async def test_calls_that_were_given_rejected_or_are_still_asked_for_are_no_fault(harness: Harness) -> None:
    for decision in (Decision.APPROVE, Decision.EDIT, Decision.REJECT):
        address, request = await asked(harness)
        given: dict[str, Any] = {"args": {"amount": 3}} if decision is Decision.EDIT else {}
        await harness.decide(request.request_id, decision, comment="because", **given)
        await harness.run_tool(address)
    await asked(harness)
    assert await doubted(harness) == set()


@pytest.mark.parametrize("before", ["nothing", "rejected", "withdrawn"])
async def test_a_call_that_ran_by_a_status_written_behind_the_programs_back_is_found(
    harness: Harness, before: str
) -> None:
    known = await doubted(harness)
    address, request = await asked(harness)
    if before == "rejected":
        await harness.decide(request.request_id, Decision.REJECT, comment="no")
    if before == "withdrawn":
        await harness.decide(request.request_id)
        person = harness.people["reviewer"]
        async with harness.db.transaction("local") as tx:
            decider = Decider(person.user_id, person.roles, person.name)
            await withdraw(tx, request.request_id, decider, "not now")
    await harness.write(GIVE, request.request_id)
    await harness.write("UPDATE approvals SET withdrawal = NULL WHERE id = $1", request.request_id)
    assert await doubted(harness) == known, "it has not run"
    await harness.run_tool(address)
    assert await doubted(harness) == known | {request.request_id}
    # What ran is on record twice: removing the one leaves the other.
    await harness.write("UPDATE tool_calls SET first_sent_at = NULL WHERE turn_id = $1", address.turn_id)
    assert await doubted(harness) == known | {request.request_id}


async def test_a_call_that_has_begun_and_not_ended_is_found_too(harness: Harness) -> None:
    known = await doubted(harness)
    address, request = await asked(harness)
    await harness.write(GIVE, request.request_id)
    begun = "UPDATE tool_calls SET state = 'reserved', first_sent_at = now() WHERE turn_id = $1"
    await harness.write(begun, address.turn_id)
    assert await doubted(harness) == known | {request.request_id}
