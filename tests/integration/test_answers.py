"""Questions to a turn's own user: opened once, answered once, read fresh, closed with the turn."""

import asyncio
from datetime import datetime
from typing import Any

from perdure.activities.approvals import ApprovalActivities
from perdure.contracts.activities import OpenRequest, VerdictsRequest
from perdure.contracts.approvals import Question, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.store.approvals import requests
from perdure.store.turns import views
from perdure.store.turns.finish import finish
from perdure.store.turns.start import request_stop
from perdure.worker.reconcile import Reconciler
from tests.doubles.message_script import Line
from tests.harness import Harness, gathered
from tests.integration.conftest import in_transaction

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ASKED = Question(call_id="q1", kind=RequestKind.CLARIFICATION, asked={"question": "Which one?"}, answer_schema=SCHEMA)


async def open_question(harness: Harness, address: TurnAddress | None = None) -> tuple[TurnAddress, RequestRef]:
    """A turn that asks, and what it waits for."""
    if address is None:
        address, _ = await harness.start(Line("hi"))
    ask = OpenRequest(address=address, agent_id="desk", agent_version=await harness.version(), questions=(ASKED,))
    (request,) = (await harness.activity(ApprovalActivities(harness.deps).open, ask)).requests
    return address, request


async def say(
    harness: Harness, address: TurnAddress, request: RequestRef, text: object = "the red one", **given: str
) -> str:
    person = harness.people[given.get("by", "requester")]
    try:
        async with harness.db.transaction(person.tenant_id) as tx:
            kind = given.get("kind", "clarification")
            payload: dict[str, Any] = {"text": text}
            await requests.answer_question(tx, address.turn_id, request.request_id, person.user_id, kind, payload)
    except CallerError as refused:
        return refused.code
    return ""


async def read_verdict(harness: Harness, address: TurnAddress, request: RequestRef) -> Verdict:
    ask = VerdictsRequest(address=address, requests=(request,))
    (verdict,) = (await harness.activity(ApprovalActivities(harness.deps).read, ask)).verdicts
    return verdict


async def test_of_ten_simultaneous_answers_the_first_valid_one_wakes_the_turn(harness: Harness) -> None:
    address, request = await open_question(harness)
    asked = "SELECT data FROM events WHERE turn_id = $1 AND kind = 'clarification.requested'"
    told = await harness.value(asked, address.turn_id)
    assert (told["question"], told["request_id"]) == ("Which one?", request.request_id)
    assert await say(harness, address, request, 7) == "answer_invalid"
    for by in ("reviewer", "admin"):
        assert await say(harness, address, request, by=by) == "question_not_found"
    said = await gathered(*(say(harness, address, request, f"number {n}") for n in range(10)))
    assert sorted(map(str, said)) == ["", *["already_answered"] * 9]
    verdict = await read_verdict(harness, address, request)
    assert verdict.state is VerdictState.ANSWERED and verdict.answer == {"text": f"number {said.index('')}"}
    assert await harness.value("SELECT count(*) FROM outbox WHERE turn_id = $1 AND kind = 'ring'", address.turn_id) == 1
    assert (await open_question(harness, address))[1] == request, "opening again changes nothing"
    assert (await harness.kinds(address.turn_id)).count("clarification.requested") == 1


async def test_an_overdue_question_expires_and_takes_no_answer(harness: Harness) -> None:
    address, request = await open_question(harness)
    await harness.write("UPDATE turns SET waiting = '{}' WHERE id = $1", address.turn_id)
    waits: Any = (await in_transaction(harness.db, views.get_turn, address.turn_id, None))["waiting_for"]
    assert datetime.fromisoformat(waits["expires_at"]) == request.expires_at, "the turn tells its end"
    await harness.write("UPDATE questions SET expires_at = now() WHERE turn_id = $1", address.turn_id)
    assert await say(harness, address, request) == "question_expired"
    assert (await read_verdict(harness, address, request)).state is VerdictState.EXPIRED


async def test_a_stop_or_the_end_of_the_turn_closes_the_question(harness: Harness) -> None:
    address, request = await open_question(harness)
    await in_transaction(harness.db, request_stop, address.turn_id, harness.people["requester"].user_id)
    assert await say(harness, address, request) == "turn_stopped"
    await in_transaction(harness.db, finish, FinishRequest(address=address, status=TurnStatus.STOPPED))
    assert await harness.value("SELECT status FROM questions WHERE turn_id = $1", address.turn_id) == "cancelled"


async def test_a_simultaneous_answer_and_stop_never_deadlock(harness: Harness) -> None:
    async def stop(address: TurnAddress) -> None:
        await in_transaction(harness.db, request_stop, address.turn_id, harness.people["requester"].user_id)

    for _ in range(5):
        address, request = await open_question(harness)
        said, _ = await asyncio.gather(say(harness, address, request), stop(address))
        assert said in ("", "turn_stopped")


async def test_an_answer_whose_signal_was_lost_is_signaled_again_once(harness: Harness, reconciler: Reconciler) -> None:
    address, request = await open_question(harness)
    await harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    rings = "SELECT count(*) FROM outbox WHERE turn_id = $1 AND kind = 'ring'"
    assert await harness.value(rings, address.turn_id) == 0, "no user has answered"
    assert await say(harness, address, request) == ""
    await harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    await reconciler.run_pass()
    assert await harness.value(rings, address.turn_id) == 1
