"""A call that ran because somebody wrote into its approval is told by the audit, whose rows nobody else can sign."""

from typing import Any

import pytest

from perdure.contracts.approvals import RequestRef
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.audit import FaultKind, Report
from perdure.store.approvals.assignments import withdraw
from perdure.store.audit import verify_chain
from tests.conftest import KEYRING
from tests.desk import Desk

GIVE = "UPDATE approvals SET status = 'approved' WHERE id = $1"


async def asked(desk: Desk) -> tuple[TurnAddress, RequestRef]:
    """A turn that waits for an approval."""
    address = await desk.plan(("pay", {"amount": 7}))
    (request,) = await desk.open(address, "t1.0")
    return address, request


async def verified(desk: Desk) -> Report:
    return await verify_chain(desk.db, "local", KEYRING)


async def doubted(desk: Desk) -> set[str | None]:
    """The approvals without which a call has run, each told once and at its first row."""
    faults = (await verified(desk)).faults
    assert {fault.kind for fault in faults} <= {FaultKind.RAN_UNDECIDED}
    for fault in faults:
        first = await desk.rows(
            "SELECT a.id, c.seq FROM audit a JOIN audit_chain c ON c.audit_id = a.id WHERE a.subject = $1 "
            "ORDER BY a.id LIMIT 1",
            fault.subject,
        )
        assert (fault.audit_id, fault.seq) == tuple(first[0])
    subjects = [fault.subject for fault in faults]
    assert len(subjects) == len(set(subjects))
    return set(subjects)


async def test_calls_that_were_given_rejected_or_are_still_asked_for_are_no_fault(desk: Desk) -> None:
    for decision in (Decision.APPROVE, Decision.EDIT, Decision.REJECT):
        address, request = await asked(desk)
        given: dict[str, Any] = {"args": {"amount": 3}} if decision is Decision.EDIT else {}
        await desk.decide(request.request_id, decision, comment="because", **given)
        await desk.run_tool(address)
    await asked(desk)
    assert await doubted(desk) == set()


@pytest.mark.parametrize("before", ["nothing", "rejected", "withdrawn"])
async def test_a_call_that_ran_by_a_status_that_was_written_behind_the_programs_back_is_found(
    desk: Desk, before: str
) -> None:
    known = await doubted(desk)
    address, request = await asked(desk)
    if before == "rejected":
        await desk.decide(request.request_id, Decision.REJECT, comment="no")
    if before == "withdrawn":
        await desk.decide(request.request_id)
        person = desk.people["reviewer"]
        async with desk.db.transaction("local") as tx:
            decider = Decider(person.user_id, person.roles, person.name)
            await withdraw(tx, request.request_id, decider, "not now")
    await desk.write(GIVE, request.request_id)
    await desk.write("UPDATE approvals SET withdrawal = NULL WHERE id = $1", request.request_id)
    assert await doubted(desk) == known, "it has not run"
    await desk.run_tool(address)
    assert await doubted(desk) == known | {request.request_id}
    # What ran is on record twice: removing the one leaves the other.
    await desk.write("UPDATE tool_calls SET first_sent_at = NULL WHERE turn_id = $1", address.turn_id)
    assert await doubted(desk) == known | {request.request_id}


async def test_a_call_that_has_begun_and_not_ended_is_found_too(desk: Desk) -> None:
    known = await doubted(desk)
    address, request = await asked(desk)
    await desk.write(GIVE, request.request_id)
    await desk.write(
        "UPDATE tool_calls SET state = 'reserved', first_sent_at = now() WHERE turn_id = $1", address.turn_id
    )
    assert await doubted(desk) == known | {request.request_id}
