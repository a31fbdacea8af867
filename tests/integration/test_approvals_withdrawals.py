"""An approval that has not been used may be taken back: by a person, by its hold, by a change of what it rests on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.tools import ToolActivities
from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.calls import CallState, ToolCall, ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals import views
from perdure.store.approvals.assignments import withdraw
from perdure.store.approvals.views import Filters
from perdure.store.turns.start import request_stop
from perdure.worker.reconcile import Reconciler
from tests.desk import Desk, gathered
from tests.doubles.desk import desk_agents
from tests.integration.council import Council, convened
from tests.scale import sized

V = VerdictState


@pytest.fixture(scope="module")
async def council(desk: Desk) -> Council:
    return await convened(desk)


async def withdraws(council: Council, request: RequestRef, by: str, comment: str = "not now") -> str:
    """`done`, or the refusal's code."""
    try:
        async with council.desk.db.transaction("local") as tx:
            await withdraw(tx, request.request_id, council.who(by), comment)
    except CallerError as refused:
        return refused.code
    return "done"


async def planned(council: Council, address: TurnAddress, agent_id: str = "plain") -> ToolCall:
    """The call, of the agent as it is published now."""
    return await council.desk.tool_call(address, "t1.0", agent_id=agent_id)


async def ran(council: Council, call: ToolCall, attempt: int = 1) -> ToolOutcome:
    return await council.desk.activity(ToolActivities(council.desk.deps).run, call, attempt=attempt)


async def run(council: Council, address: TurnAddress, agent_id: str = "plain") -> ToolOutcome:
    return await ran(council, await planned(council, address, agent_id))


def paid(council: Council, address: TurnAddress) -> int:
    return council.desk.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))


def newer_pay() -> ToolCard:
    """The tool `pay` of a later version."""
    desk = next(agent for _, agent in desk_agents()[0] if agent.definition.id == "desk")
    card = desk.card("pay")
    assert card is not None
    return card.model_copy(update={"version": digest_of("newer")})


@asynccontextmanager
async def changed(council: Council, what: str) -> AsyncIterator[None]:
    """The policy or the tool is published otherwise for a while."""
    await (council.republish({"plain": {"quorum": 2}}) if what == "policy" else council.republish({}, newer_pay()))
    try:
        yield
    finally:
        await council.republish({})


async def shown(council: Council, request: RequestRef) -> tuple[Any, Any]:
    """What the API tells bob of it: why it is outdated, what he may decide; the same alone and in the list."""
    async with council.desk.db.transaction("local") as tx:
        one = await views.get_approval(tx, request.request_id, None, council.who("bob"))
        many, _ = await views.list_approvals(tx, Filters(agent="plain"), 200, None, council.who("bob"))
    same = next(each for each in many if each["id"] == request.request_id)
    assert [same[name] for name in ("outdated", "allowed_decisions")] == [one["outdated"], one["allowed_decisions"]]
    return one["outdated"], one["allowed_decisions"]


async def test_who_asked_takes_the_request_back_and_the_turn_goes_on_without_it(council: Council) -> None:
    address, request = await council.asked("plain")
    await council.desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    assert await withdraws(council, request, "ann") == "role_required"
    assert await withdraws(council, request, "requester", "changed my mind") == "done"
    read = await council.verdict(address, request)
    assert (read.state, read.comment, read.decided_by) == (V.WITHDRAWN, "changed my mind", "requester")
    assert await council.desk.value("SELECT count(*) FROM outbox WHERE turn_id = $1", address.turn_id) == 1
    assert (await council.desk.kinds(address.turn_id))[-1] == "tool.denied"
    assert await withdraws(council, request, "requester") == "already_decided"
    assert (await council.audited(request)) == ["opened", "withdrawn"]
    with pytest.raises(CallerError) as late:
        await council.desk.decide(request.request_id)
    assert late.value.code == "already_decided"


async def test_an_approval_is_taken_back_as_long_as_its_call_is_not_reserved(council: Council) -> None:
    address, request = await council.asked("plain")
    await council.desk.decide(request.request_id, comment="fine")
    assert await withdraws(council, request, "requester") == "role_required"
    assert await withdraws(council, request, "ann", "wrong account") == "done"
    outcome = await run(council, address)
    assert outcome.state is CallState.DENIED and outcome.message is not None
    assert "wrong account" in outcome.message.text and "fine" not in outcome.message.text
    assert paid(council, address) == 0


async def test_nothing_of_a_stopped_turn_is_taken_back(council: Council) -> None:
    address, request = await council.asked("plain")
    async with council.desk.db.transaction("local") as tx:
        await request_stop(tx, address.turn_id, council.desk.people["requester"].user_id)
    assert await withdraws(council, request, "requester") == "turn_stopped"


@pytest.mark.sized
async def test_of_taking_back_and_running_at_once_exactly_one_happens(council: Council) -> None:
    asked = [await council.asked("plain") for _ in range(sized(40, 10))]
    for _, request in asked:
        await council.desk.decide(request.request_id)
    chance = random.Random(3)

    async def later(work: Any, head_start: bool) -> Any:
        await asyncio.sleep(chance.uniform(0, 0.02) + (3 if head_start else 0))
        return await work

    # One in ten has a head start on either side: a busy machine may let all the others fall one way.
    answers = await gathered(
        *(later(withdraws(council, request, "ann"), n % 10 == 0) for n, (_, request) in enumerate(asked)),
        *(later(run(council, address), n % 10 == 5) for n, (address, _) in enumerate(asked)),
    )
    fell = set()
    for (address, request), said, outcome in zip(asked, answers[: len(asked)], answers[len(asked) :], strict=True):
        assert isinstance(outcome, ToolOutcome)
        status = (await council.row(request))["status"]
        assert (said, outcome.state, status, paid(council, address)) in {
            ("done", CallState.DENIED, "withdrawn", 0),
            ("already_running", CallState.DONE, "done", 1),
        }
        fell.add(status)
    assert fell == {"withdrawn", "done"}, "the race fell both ways"


async def test_an_approved_call_waits_for_the_end_of_its_hold_and_rings_then(
    council: Council, reconciler: Reconciler
) -> None:
    address, request = await council.asked("held")
    _, note = await council.desk.decide(request.request_id)
    assert note is None, "nothing to ring for now"
    row = await council.row(request)
    read = await council.verdict(address, request)
    assert (read.state, read.look_at) == (V.PENDING, row["ready_at"])
    assert timedelta(minutes=59) < row["ready_at"] - datetime.now(UTC) < timedelta(minutes=61)
    due = await council.desk.rows("SELECT due_at FROM outbox WHERE turn_id = $1 AND kind = 'ring'", address.turn_id)
    assert [bell["due_at"] for bell in due] == [row["ready_at"]]
    with pytest.raises(ApplicationError) as early:
        await run(council, address, "held")
    assert early.value.type == "on_hold" and not early.value.non_retryable
    assert (await council.desk.call_row(address))["state"] == "planned" and paid(council, address) == 0
    await council.desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.once()
    bells = "SELECT count(*) FROM outbox WHERE turn_id = $1"
    assert await council.desk.value(bells, address.turn_id) == 0, "it is not time yet"
    await council.set(request, "ready_at = clock_timestamp(), decided_at = decided_at - interval '1 hour'")
    assert (await council.verdict(address, request)).state is V.APPROVED
    await reconciler.once()
    assert await council.desk.value(bells, address.turn_id) == 1
    assert (await run(council, address, "held")).state is CallState.DONE


async def test_a_bell_for_the_end_of_a_hold_does_not_keep_a_stop_from_being_rung_again(
    council: Council, reconciler: Reconciler
) -> None:
    address, request = await council.asked("held")
    await council.desk.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await council.desk.decide(request.request_id)
    await council.desk.write(
        "UPDATE turns SET stop_requested_at = now() - interval '20 seconds' WHERE id = $1", address.turn_id
    )
    await reconciler.once()
    kinds = await council.desk.rows("SELECT kind FROM outbox WHERE turn_id = $1 ORDER BY kind", address.turn_id)
    assert [row["kind"] for row in kinds] == ["ring", "stop"]


@pytest.mark.parametrize("what", ["policy", "tool"])
async def test_an_approval_is_void_once_the_policy_or_the_tool_has_changed(council: Council, what: str) -> None:
    address, request = await council.asked("plain")
    await council.desk.decide(request.request_id, Decision.EDIT, args={"amount": 3}, comment="fine by me, go ahead")
    call = await planned(council, address)
    async with changed(council, what):
        outcome = await ran(council, call)
    assert outcome.state is CallState.DENIED and outcome.message is not None
    assert "go ahead" not in outcome.message.text, "whoever approved it has not said why it does not run"
    row = await council.row(request)
    assert (row["status"], row["closed_at"] is not None, paid(council, address)) == ("cancelled", True, 0)
    assert "voided" in await council.audited(request)


async def test_what_a_policy_says_about_deadlines_voids_nothing(council: Council) -> None:
    address, request = await council.asked("plain")
    await council.desk.decide(request.request_id)
    call = await planned(council, address)
    await council.republish({"plain": {"expires_seconds": 5, "fallback_reviewer": "ann"}})
    try:
        assert (await ran(council, call)).state is CallState.DONE
    finally:
        await council.republish({})


async def test_what_has_been_reserved_under_the_old_policy_is_finished_under_it(council: Council) -> None:
    address, request = await council.asked("plain", amount=7, mode="lose")
    await council.desk.decide(request.request_id)
    call = await planned(council, address)
    with pytest.raises(ApplicationError):
        await ran(council, call)
    await council.republish({"plain": {"quorum": 2}})
    try:
        outcome = await ran(council, call, attempt=2)
    finally:
        await council.republish({})
    assert (outcome.state, paid(council, address)) == (CallState.DONE, 1)


@pytest.mark.parametrize("what", ["policy", "tool"])
async def test_an_outdated_request_says_so_is_not_approved_or_edited_and_can_be_rejected(
    council: Council, what: str
) -> None:
    address, request = await council.asked("plain")
    assert await shown(council, request) == (None, ["approve", "edit", "reject", "respond"])
    async with changed(council, what):
        why, allowed = await shown(council, request)
        assert why and allowed == ["reject", "respond"]
        for decision, given in ((Decision.APPROVE, {}), (Decision.EDIT, {"args": {"amount": 3}})):
            with pytest.raises(CallerError) as refused:
                await council.desk.decide(request.request_id, decision, by="bob", **given)
            assert (refused.value.http, refused.value.code) == (409, "approval_outdated")
            assert refused.value.details == {"outdated": why}
        assert (await council.row(request))["status"] == "pending"
        await council.desk.decide(request.request_id, Decision.REJECT, by="bob", comment="asked by another policy")
        assert await shown(council, request) == (None, [])
        assert (await council.verdict(address, request)).state is V.REJECTED
    assert (await run(council, address)).state is CallState.DENIED
    assert paid(council, address) == 0


async def test_what_is_outdated_says_so_until_it_has_run_or_is_published_again_as_it_was(council: Council) -> None:
    _, held = await council.asked("plain")
    await council.desk.decide(held.request_id, by="bob")
    address, done = await council.asked("plain")
    async with changed(council, "policy"):
        assert (await shown(council, done))[0]
    await council.desk.decide(done.request_id, by="bob")
    assert (await run(council, address)).state is CallState.DONE
    async with changed(council, "tool"):
        assert (await shown(council, held))[0]
        assert (await shown(council, done))[0] is None


async def test_a_new_request_is_opened_under_the_policy_of_now(council: Council) -> None:
    address = await council.desk.plan(("pay", {"amount": 7}), agent_id="plain")
    async with changed(council, "policy"):
        (request,) = await council.desk.open(address, "t1.0", agent_id="plain")
        assert (await council.row(request))["quorum"] == 2
