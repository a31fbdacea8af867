"""An approval lets exactly one call run, exactly as it was seen, and nothing else does."""

from dataclasses import replace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.calls import CallState, ToolCall
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.store.calls.effects import settle_by_person
from tests.harness import Harness, effect_ref, gathered, publish_app, withdraw_agent

V = VerdictState


def paid(harness: Harness, address: TurnAddress) -> int:
    return harness.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))


async def read(harness: Harness, address: TurnAddress, *requests: RequestRef) -> list[VerdictState]:
    """The verdicts as a resumed run reads them."""
    answer = await harness.activity(
        ApprovalActivities(harness.deps).read, VerdictsRequest(address=address, requests=tuple(requests))
    )
    assert answer.problem is None
    return [verdict.state for verdict in answer.verdicts]


async def gated(harness: Harness, **args: Any) -> tuple[TurnAddress, RequestRef]:
    address = await harness.plan(("pay", args))
    (request,) = await harness.open(address, "t1.0")
    return address, request


async def test_an_approved_call_runs_once_and_its_approval_is_done(harness: Harness) -> None:
    address, request = await gated(harness, amount=7)
    await harness.decide(request.request_id)
    assert await read(harness, address, request) == [V.APPROVED]
    assert (await harness.run_tool(address)).state is CallState.DONE
    assert (await harness.run_tool(address, attempt=2)).state is CallState.DONE
    assert paid(harness, address) == 1
    assert (await harness.approval_row(address))["status"] == "done"
    assert await read(harness, address, request) == [V.APPROVED], "executed: it was allowed, the ledger answers"


@pytest.mark.parametrize(
    ("decision", "state"), [(Decision.REJECT, V.REJECTED), (Decision.RESPOND, V.RESPONDED), (None, V.PENDING)]
)
async def test_without_an_approval_nothing_runs(
    harness: Harness, decision: Decision | None, state: VerdictState
) -> None:
    address, request = await gated(harness)
    if decision is not None:
        await harness.decide(request.request_id, decision, comment="because")
    assert await read(harness, address, request) == [state]
    unasked = await harness.plan(("pay", {}))
    assert (await harness.run_tool(unasked)).state is CallState.DENIED
    outcome = await harness.run_tool(address)
    assert outcome.state is CallState.DENIED and outcome.message is not None
    assert ("because" in outcome.message.text) is (decision is not None)
    assert paid(harness, address) == paid(harness, unasked) == 0


@pytest.mark.parametrize(
    "statement",
    [
        *(f"UPDATE approvals SET {name} = 'other'" for name in ("nonce", "tool_version", "digest")),
        "UPDATE approvals SET args = '{\"amount\": 1000}'",
        "UPDATE approvals SET tool = 'post'",
        "DELETE FROM approvals",
    ],
)
async def test_a_record_changed_behind_the_reviewer_is_unreadable_and_runs_nothing(
    harness: Harness, statement: str
) -> None:
    address, request = await gated(harness, amount=1)
    await harness.decide(request.request_id)
    await harness.write(f"{statement} WHERE id = $1", request.request_id)
    assert await read(harness, address, request) == [V.UNREADABLE]
    if "'post'" not in statement:
        assert (await harness.run_tool(address)).state is CallState.DENIED
    assert paid(harness, address) == 0


async def test_an_approval_of_one_call_does_not_cover_another(harness: Harness) -> None:
    address = await harness.plan(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    assert await read(harness, address, first, second) == [V.APPROVED, V.PENDING]
    swapped = first.model_copy(update={"call_id": "t1.1"})
    assert await read(harness, address, swapped) == [V.UNREADABLE]
    other, _ = await gated(harness)
    assert await read(harness, other, first) == [V.UNREADABLE], "nor one of another turn"
    assert (await harness.run_tool(address, "t1.1")).state is CallState.DENIED


async def test_an_edit_to_no_arguments_at_all_is_an_edit(harness: Harness) -> None:
    address, request = await gated(harness, amount=100)
    await harness.decide(request.request_id, Decision.EDIT, args={})
    outcome = await harness.run_tool(address)
    assert outcome.state is CallState.DONE, outcome.message
    assert outcome.message is not None and '"arguments":{}' in outcome.message.text


async def test_an_approval_is_for_one_version_of_the_tool(harness: Harness) -> None:
    address, request = await gated(harness)
    await harness.decide(request.request_id)
    call = await harness.tool_call(address, "t1.0")
    tools = dict(harness.deps.toolbox._tools)
    tool = tools["desk", "pay"]
    newer = replace(tool, card=tool.card.model_copy(update={"version": digest_of("newer")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", {**tools, ("desk", "pay"): newer})
        await is_elsewhere(harness, call)  # a deploy is under way: another worker has the right one
        await harness.republished(("desk", "pay"), newer)
        try:
            outcome = await harness.activity(ToolActivities(harness.deps).run, call, attempt=2)
        finally:
            await harness.republished(("desk", "pay"), tool)
    assert (outcome.state, paid(harness, address)) == (CallState.DENIED, 0)


async def is_elsewhere(harness: Harness, call: ToolCall) -> None:
    with pytest.raises(ApplicationError) as elsewhere:
        await harness.activity(ToolActivities(harness.deps).run, call)
    assert elsewhere.value.type == "tool_not_here" and not elsewhere.value.non_retryable


async def test_a_call_of_an_agent_that_is_not_published_any_more_is_denied_and_its_approval_void(
    harness: Harness,
) -> None:
    """As after a start without its app: its tools are in no worker, and no other attempt would find them."""
    address, request = await gated(harness)
    await harness.decide(request.request_id)
    call = await harness.tool_call(address, "t1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", {})
        await is_elsewhere(harness, call)  # published: another worker may have it
        await withdraw_agent(harness.owner_url, "desk")
        try:
            outcome = await harness.activity(ToolActivities(harness.deps).run, call, attempt=2)
        finally:
            await publish_app(harness.owner_url)
    assert (outcome.state, paid(harness, address)) == (CallState.DENIED, 0)
    assert (await harness.approval_row(address))["status"] == "cancelled"


async def test_opening_again_gives_the_same_requests_and_no_second_record(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    opened = await gathered(*(harness.open(address, "t1.0", "t1.1") for _ in range(8)))
    assert all(each == opened[0] for each in opened)
    for table in ("approvals", "audit"):
        assert await harness.value(f"SELECT count(*) FROM {table} WHERE turn_id = $1", address.turn_id) == 2
    assert (await harness.kinds(address.turn_id)).count("tool.awaiting_approval") == 2
    turn = (await harness.rows("SELECT status, waiting FROM turns WHERE id = $1", address.turn_id))[0]
    assert turn["status"] == "awaiting_approval"
    assert isinstance(opened[0], list)
    assert turn["waiting"]["ids"] == [request.request_id for request in opened[0]]


async def test_a_round_stays_paused_until_all_of_it_is_decided(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    assert await read(harness, address, first, second) == [V.APPROVED, V.PENDING]
    await harness.decide(second.request_id, Decision.REJECT, comment="no")
    assert await read(harness, address, first, second) == [V.APPROVED, V.REJECTED]
    assert await harness.value("SELECT status FROM turns WHERE id = $1", address.turn_id) == "awaiting_approval"
    await harness.run_tool(address)
    assert await harness.value("SELECT status FROM turns WHERE id = $1", address.turn_id) == "running", (
        "it claims again"
    )


async def test_an_unsettled_effect_is_pending_until_a_person_says_what_happened(harness: Harness) -> None:
    address = await harness.approved(("post", {"mode": "break"}))
    assert (await harness.run_tool(address)).state is CallState.OUTCOME_UNKNOWN
    ref = effect_ref(address)
    assert await read(harness, address, ref) == [V.PENDING]
    await settle(harness, address, "happened")
    assert await read(harness, address, ref) == [V.SETTLED]
    outcome = await harness.run_tool(address, attempt=2)
    assert outcome.state is CallState.DONE
    assert (await harness.approval_row(address))["status"] == "done"


async def settle(harness: Harness, address: TurnAddress, outcome: str, comment: str = "I looked") -> None:
    """A person states what became of the first call."""
    person = harness.people["reviewer"]
    settler = Decider(person.user_id, person.roles, person.name)
    async with harness.db.transaction("local") as tx:
        await settle_by_person(tx, effect_key(address.turn_id, "t1.0"), settler, outcome, comment)


async def test_an_effect_is_settled_by_saying_how_one_knows_and_not_too_early(harness: Harness) -> None:
    address = await harness.approved(("post", {"mode": "break"}))
    await harness.run_tool(address)
    for outcome, comment, code in (
        ("perhaps", "I looked", "outcome_invalid"),
        ("happened", " ", "outcome_invalid"),
        ("did_not_happen", "I looked", "too_early"),
    ):
        with pytest.raises(CallerError) as refused:
            await settle(harness, address, outcome, comment)
        assert refused.value.code == code
    assert (await harness.call_row(address))["state"] == "outcome_unknown"


async def test_what_did_not_happen_can_be_said_after_the_deadline(harness: Harness) -> None:
    address = await harness.approved(("post", {"mode": "lose"}))
    await harness.run_tool(address)
    await harness.write("UPDATE tool_calls SET quiet_at = now() WHERE turn_id = $1", address.turn_id)
    await settle(harness, address, "did_not_happen")
    assert (await harness.call_row(address))["state"] == "failed"
    assert (await harness.approval_row(address))["status"] == "failed"


async def test_of_many_who_settle_at_once_one_does(harness: Harness) -> None:
    address = await harness.approved(("post", {"mode": "break"}))
    await harness.run_tool(address)
    answers = await gathered(*(settle(harness, address, "happened", comment=f"looked {n}") for n in range(12)))
    refused = [answer for answer in answers if isinstance(answer, CallerError)]
    assert (len(refused), {each.code for each in refused}) == (11, {"already_settled"})
    for once in ("messages WHERE role = 'tool'", "audit WHERE kind = 'effect.settled'"):
        assert await harness.value(f"SELECT count(*) FROM {once} AND turn_id = $1", address.turn_id) == 1
