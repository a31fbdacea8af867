"""An approval lets one call run, as it was seen; previews; who settles an effect; of many who decide one wins."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from pydantic import Field
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.approvals import MAX_PREVIEW_CHARACTERS, ApprovalActivities, PreviewActivities
from perdure.activities.tool_checks import ToolCheckActivities
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import Checked, CheckRequest, PreviewRequest, VerdictsRequest
from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.calls import CallState, ToolCall
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.identity import OWN_CREDENTIAL, Credential, SignInMethod
from perdure.core.turns import Caps
from perdure.sdk.tools import Preview, Tool, ToolContext, ToolPreview, ToolRefused
from perdure.store.approvals import assignments, views
from perdure.store.approvals.decisions import Decided
from perdure.store.approvals.reissue import reissue_outdated, reopen_outdated
from perdure.store.calls import tool_calls
from perdure.store.calls.effects import settle_by_person
from perdure.store.database import new_id
from tests.doubles.target import app_agents
from tests.harness import Harness, gathered, publish_app, withdraw_agent
from tests.integration.conftest import in_transaction
from tests.integration.policies import Policies
from tests.integration.test_approvals_votes import TOMORROW
from tests.scale import sized
from tests.served_turns import refused

V = VerdictState


def paid(harness: Harness, address: TurnAddress) -> int:
    return harness.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))


async def read_verdicts(harness: Harness, address: TurnAddress, *requests: RequestRef) -> list[VerdictState]:
    given = VerdictsRequest(address=address, requests=tuple(requests))
    answer = await harness.activity(ApprovalActivities(harness.deps).read, given)
    assert answer.problem is None
    return [verdict.state for verdict in answer.verdicts]


@pytest.mark.parametrize("changed", [
    "nonce = 'other'",
    "tool_version = 'other'",
    "digest = 'other'",
    "args = '{\"amount\": 1000}'",
    "tool = 'post'",
    "",
])  # fmt: skip
async def test_a_record_changed_or_deleted_behind_the_reviewer_runs_nothing(harness: Harness, changed: str) -> None:
    address, request = await harness.request_approval(amount=1)
    await harness.decide(request.request_id)
    elsewhere, _ = await harness.request_approval()
    assert await read_verdicts(harness, elsewhere, request) == [V.UNREADABLE], (
        "nor does it cover a call of another turn"
    )
    statement = f"UPDATE approvals SET {changed}" if changed else "DELETE FROM approvals"
    await harness.write(f"{statement} WHERE id = $1", request.request_id)
    assert await read_verdicts(harness, address, request) == [V.UNREADABLE]
    if changed != "tool = 'post'":
        assert (await harness.run_tool(address)).state is CallState.DENIED
    assert paid(harness, address) == 0


async def test_an_edit_to_no_arguments_at_all_runs_with_the_defaults(harness: Harness) -> None:
    address, request = await harness.request_approval(amount=100)
    await harness.decide(request.request_id, Decision.EDIT, args={})
    outcome = await harness.run_tool(address)
    assert outcome.state is CallState.DONE, outcome.message
    assert outcome.message is not None and '"arguments":{"amount":1,"mode":""}' in outcome.message.text


async def test_an_approval_is_for_one_version_of_the_tool(harness: Harness) -> None:
    address, request = await harness.request_approval(amount=7)
    approval, reviewer = request.request_id, decider_of(harness, "reviewer")
    await harness.decide(approval, Decision.EDIT, args={"amount": 9})
    with refused("not_outdated"):
        await in_transaction(harness.db, reissue_outdated, approval, reviewer)
    call = await harness.tool_call(address, "t1.0")
    tools = dict(harness.deps.toolbox._tools)
    tool = tools["desk", "pay"]
    newer = replace(tool, card=changed(tool, risk="low"))
    run, heartbeat = ToolActivities(harness.deps).run, [[98, ""]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", {**tools, ("desk", "pay"): newer})
        await is_elsewhere(harness, call, 99, heartbeat)  # a worker with the published version will come
        assert (await harness.approval_row(address))["status"] == "edited"
        await harness.republished(("desk", "pay"), newer)
        try:
            heartbeat[:] = [[99, ""]]  # a worker with the version of before may still run for a time from now on
            await is_elsewhere(harness, call, 100, heartbeat)
            await asyncio.sleep(harness.deps.version_wait_seconds)
            outcome = await harness.activity(run, call, attempt=101, heartbeat=heartbeat)
            assert (outcome.state, outcome.problem, paid(harness, address)) == (CallState.PLANNED, None, 0)
            shown: dict[str, Any] = await in_transaction(harness.db, views.get_approval, approval, None)
            assert (shown["status"], shown["decision"], shown["args"]["amount"]) == ("outdated", None, 9)
            assert shown["changes"] == {"risk": {"before": "high", "after": "low"}}
            with refused("approval_outdated"):
                await harness.decide(approval, digest=shown["digest"])
            with refused("role_required"):
                await in_transaction(harness.db, reissue_outdated, approval, decider_of(harness, "admin", new_id()))
            await in_transaction(harness.db, reissue_outdated, approval, reviewer)
            again = await in_transaction(harness.db, views.get_approval, approval, None)
            assert (again["status"], again["risk"], again["votes"]) == ("pending", "low", [])
            assert again["digest"] != shown["digest"] and again["changes"] == shown["changes"]
            await harness.decide(approval, digest=again["digest"])
            outcome = await harness.activity(run, call)
        finally:
            await harness.republished(("desk", "pay"), tool)
    assert (outcome.state, paid(harness, address)) == (CallState.DONE, 1)
    assert outcome.message is not None and '"amount":9' in outcome.message.text
    assert (await harness.call_row(address))["tool_version"] == newer.card.version


def decider_of(harness: Harness, name: str, user_id: str = "") -> Decider:
    person = harness.people[name]
    return Decider(user_id or person.user_id, person.roles, name)


def changed(tool: Tool, **update: Any) -> ToolCard:
    return tool.card.model_copy(update={"version": digest_of([tool.card.version, update]), "version_1": "", **update})


@pytest.mark.parametrize(("parameters", "state", "is_published"), [
    ({}, CallState.DONE, True),
    ({}, CallState.DONE, False),
    ({"required": ["year"]}, CallState.DENIED, True),
])  # fmt: skip
async def test_a_read_without_an_approval_runs_in_the_version_of_a_deploy(
    harness: Harness, parameters: dict[str, Any], state: CallState, is_published: bool
) -> None:
    """So it does on a worker that is ahead of the publication, or behind it. It waits for its version only
    while that is published, or if it would be denied."""
    address = await harness.plan(("look", {"mode": ""}))
    call = await harness.tool_call(address, "t1.0")
    tools = dict(harness.deps.toolbox._tools)
    tool = tools["desk", "look"]
    newer = replace(tool, card=changed(tool, parameters={**tool.card.parameters, **parameters}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", {**tools, ("desk", "look"): newer})
        await is_elsewhere(harness, call)
        if is_published:
            await harness.republished(("desk", "look"), newer)
        try:
            deps = harness.deps
            if not is_published or state is CallState.DENIED:
                await is_elsewhere(harness, call, 2)
                deps = replace(deps, version_wait_seconds=0)
            outcome = await harness.activity(ToolActivities(deps).run, call, attempt=3)
        finally:
            await harness.republished(("desk", "look"), tool)
    assert outcome.state is state, outcome.message
    version = (newer if state is CallState.DONE else tool).card.version
    assert (await harness.call_row(address))["tool_version"] == version


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_worker_with_the_approved_version_runs_it_after_a_deploy(harness: Harness, reserved: bool) -> None:
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    call, tool = await harness.tool_call(address, "t1.0"), harness.deps.toolbox._tools["desk", "pay"]
    if reserved:  # by an attempt that died before it sent anything; its key is remembered for a minute only
        version = "UPDATE tool_calls SET state = 'reserved', epoch = 1, run_id = 'run-1', attempt = 1, first_sent_at = "
        await harness.write(f"{version} now() - interval '10 minutes' WHERE turn_id = $1", address.turn_id)
    await harness.republished(("desk", "pay"), replace(tool, card=changed(tool, key_ttl_seconds=86_400.0)))
    short = replace(tool, card=tool.card.model_copy(update={"key_ttl_seconds": 60.0}))
    with pytest.MonkeyPatch.context() as patch:
        tools = {**harness.deps.toolbox._tools, ("desk", "pay"): short}
        patch.setattr(harness.deps.toolbox, "_tools", tools)
        try:
            outcome = await harness.activity(ToolActivities(harness.deps).run, call, attempt=2)
        finally:
            await harness.republished(("desk", "pay"), tool)
    assert outcome.state is (CallState.OUTCOME_UNKNOWN if reserved else CallState.DONE)
    assert paid(harness, address) == (not reserved)


async def test_a_reopened_read_counts_only_the_attempt_that_was_lost(harness: Harness) -> None:
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    reserved = "UPDATE tool_calls SET effect = 'read', state = 'reserved', epoch = 1 WHERE turn_id = $1"
    await harness.write(reserved, address.turn_id)
    call = await harness.tool_call(address, "t1.0")
    await in_transaction(harness.db, reopen_outdated, address, call.ask, request.request_id, "changed")
    locked = await in_transaction(harness.db, tool_calls.lock, call)
    assert locked is not None and (locked.row.state, locked.row.lost) == (CallState.PLANNED, 1)


async def test_an_approval_of_before_rule_2_stays_valid(harness: Harness) -> None:
    address, request = await harness.request_approval()
    first = harness.deps.toolbox._tools["desk", "pay"].card.version_1
    await harness.write("UPDATE tool_calls SET tool_version = $2 WHERE turn_id = $1", address.turn_id, first)
    await harness.write("DELETE FROM approvals WHERE id = $1", request.request_id)
    (request,) = await harness.open(address, "t1.0")
    assert (await harness.approval_row(address))["tool_version"] == first
    await harness.decide(request.request_id)
    assert (await harness.run_tool(address)).state is CallState.DONE


async def is_elsewhere(harness: Harness, call: ToolCall, attempt: int = 1, heartbeat: list[Any] | None = None) -> None:
    with pytest.raises(ApplicationError) as elsewhere:
        await harness.activity(ToolActivities(harness.deps).run, call, attempt=attempt, heartbeat=heartbeat)
    assert elsewhere.value.type == "tool_not_here" and not elsewhere.value.non_retryable
    assert elsewhere.value.category is ApplicationErrorCategory.BENIGN, "no traceback for each of its attempts"


async def test_a_check_waits_for_a_limited_time_if_the_workers_have_another_version(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, tools = await harness.plan(("pay", {})), dict(harness.deps.toolbox._tools)
    request, patient = CheckRequest(address=address, calls=("t1.0",)), replace(harness.deps, version_wait_seconds=1e12)
    other = replace(tools["desk", "pay"], card=changed(tools.pop(("desk", "pay")), risk="low"))
    for of_worker, deps in ((tools, harness.deps), ({**tools, ("desk", "pay"): other}, patient)):
        monkeypatch.setattr(harness.deps.toolbox, "_tools", of_worker)
        with pytest.raises(ApplicationError) as elsewhere:
            await harness.activity(ToolCheckActivities(deps).check, request)
        assert elsewhere.value.type == "tool_not_here"
        assert (await harness.call_row(address))["awaits_worker_since"] is not None
    assert await harness.activity(ToolCheckActivities(harness.deps).check, request, attempt=2) == Checked()
    assert (await harness.call_row(address))["awaits_worker_since"] is None


async def test_the_wait_for_a_version_goes_on_at_a_worker_without_the_tool(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    call, tools = await harness.tool_call(address, "t1.0"), dict(harness.deps.toolbox._tools)
    heartbeat: list[Any] = []
    tool = tools.pop(("desk", "pay"))
    other = {**tools, ("desk", "pay"): replace(tool, card=changed(tool, risk="low"))}
    for attempt, of_worker in ((1, other), (2, tools)):
        monkeypatch.setattr(harness.deps.toolbox, "_tools", of_worker)
        await is_elsewhere(harness, call, attempt, heartbeat)
    await asyncio.sleep(harness.deps.version_wait_seconds)
    await is_elsewhere(harness, call, 3, heartbeat)  # nor does it end the wait
    monkeypatch.setattr(harness.deps.toolbox, "_tools", other)
    outcome = await harness.activity(ToolActivities(harness.deps).run, call, attempt=4, heartbeat=heartbeat)
    assert (outcome.state, outcome.problem) == (CallState.PLANNED, None)
    await harness.open(address, "t1.0")
    await in_transaction(harness.db, tool_calls.await_worker, address.turn_id, ["t1.0"])  # by an attempt that stalled
    (turn,) = await harness.rows("SELECT status, waiting FROM turns WHERE id = $1", address.turn_id)
    assert (turn["status"], turn["waiting"]["ids"]) == ("awaiting_approval", [request.request_id])
    assert (await harness.call_row(address))["awaits_worker_since"] is None


async def test_a_call_of_an_agent_no_longer_published_waits_for_it(harness: Harness) -> None:
    """The state after a start without its app: no worker has its tools, and no other attempt would find them."""
    address, request = await harness.request_approval()
    await harness.decide(request.request_id)
    a_day_ago = "UPDATE approvals SET requested_at = requested_at - interval '1 day', fallback_at = now() + interval"
    await harness.write(f"{a_day_ago} '1 hour' WHERE id = $1", request.request_id)
    call = await harness.tool_call(address, "t1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.deps.toolbox, "_tools", {})
        await is_elsewhere(harness, call)  # published: another worker may have it
        await withdraw_agent(harness.owner_url, "desk")
        try:
            outcome = await harness.activity(ToolActivities(harness.deps).run, call, attempt=2)
            with refused("cannot_reissue"):
                await in_transaction(harness.db, reissue_outdated, request.request_id, decider_of(harness, "reviewer"))
        finally:
            await publish_app(harness.owner_url)
    assert (outcome.state, outcome.problem, paid(harness, address)) == (CallState.PLANNED, None, 0)
    row = await harness.approval_row(address)
    until_fallback = row["fallback_at"] - (row["expires_at"] - timedelta(seconds=row["expires_seconds"]))
    assert timedelta(minutes=59) < until_fallback < timedelta(minutes=61), "from its new beginning"
    await harness.decide(request.request_id)
    assert (await harness.run_tool(address, attempt=3)).state is CallState.DONE


async def test_opening_the_same_requests_again_adds_no_records(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    opened: list[Any] = await gathered(*(harness.open(address, "t1.0", "t1.1") for _ in range(8)))
    assert all(each == opened[0] for each in opened)
    for table in ("approvals", "audit"):
        assert await harness.value(f"SELECT count(*) FROM {table} WHERE turn_id = $1", address.turn_id) == 2
    assert (await harness.kinds(address.turn_id)).count("tool.awaiting_approval") == 2
    (turn,) = await harness.rows("SELECT status, waiting FROM turns WHERE id = $1", address.turn_id)
    waits_for = [request.request_id for request in opened[0]]
    assert (turn["status"], turn["waiting"]["ids"]) == ("awaiting_approval", waits_for)


SETTLED = "SELECT data FROM audit_trail WHERE kind = 'effect.settled' AND turn_id = $1"


async def unknown(policies: Policies, policy: dict[str, object], decider: str) -> TurnAddress:
    await policies.republish({"plain": policy})
    try:
        address = await policies.harness.plan(("post", {"mode": "break"}), agent_id="plain")
        (request,) = await policies.harness.open(address, "t1.0", agent_id="plain")
        await policies.harness.decide(request.request_id, by=decider)
        call = await policies.harness.tool_call(address, "t1.0", agent_id="plain")
        outcome = await policies.harness.activity(ToolActivities(policies.harness.deps).run, call)
        assert outcome.state is CallState.OUTCOME_UNKNOWN
    finally:
        await policies.republish({})
    return address


async def settles(
    policies: Policies,
    address: TurnAddress,
    by: str,
    outcome: str = "happened",
    comment: str = "I looked",
    credential: Credential = OWN_CREDENTIAL,
) -> str:
    """Settles with every role, as a token that was checked before: returns `done`, or the refusal's code."""
    person = policies.harness.people[by]
    settler = Decider(person.user_id, frozenset({"requester", "reviewer", "admin"}), by, credential=credential)
    key = effect_key(address.turn_id, "t1.0")
    try:
        await in_transaction(policies.harness.db, settle_by_person, key, settler, outcome, comment)
    except CallerError as refused:
        return refused.code
    return "done"


async def test_an_effect_is_settled_with_a_reason_and_not_before_its_deadline(policies: Policies) -> None:
    address, harness = await unknown(policies, {}, "ann"), policies.harness
    assert await settles(policies, address, "ann", "perhaps") == "outcome_invalid"
    for unseen in (" ", "\u200b"):
        assert await settles(policies, address, "ann", comment=unseen) == "outcome_invalid"
    assert await settles(policies, address, "ann", "did_not_happen") == "too_early"
    assert (await harness.call_row(address))["state"] == "outcome_unknown"
    await harness.write("UPDATE tool_calls SET quiet_at = now() WHERE turn_id = $1", address.turn_id)
    assert await settles(policies, address, "ann", "did_not_happen") == "done"
    assert (await harness.call_row(address))["state"] == (await harness.approval_row(address))["status"] == "failed"


async def test_only_reviewers_and_delegates_settle_and_the_record_names_the_delegator(policies: Policies) -> None:
    address, ann = await unknown(policies, {"reviewers": ["ann"]}, "ann"), policies.harness.people["ann"].user_id
    for by, code in (("carl", "not_a_reviewer"), ("dora", "role_required"), ("requester", "role_required")):
        assert await settles(policies, address, by) == code
    assert (await policies.harness.call_row(address))["state"] == "outcome_unknown"
    made = await in_transaction(
        policies.harness.db, assignments.add_delegation, ann, "ann", "carl", TOMORROW, OWN_CREDENTIAL
    )
    assert await settles(policies, address, "carl") == "done"
    await in_transaction(policies.harness.db, assignments.remove_delegation, ann, str(made["id"]))
    said = await policies.harness.value(SETTLED, address.turn_id)
    assert (said["settled_by"], said["for"]) == ("carl", "ann")


async def test_the_policys_current_role_is_required_and_an_admin_always_suffices(policies: Policies) -> None:
    await policies.roles("admin", "admin")
    address = await unknown(policies, {"reviewer_role": "admin"}, "admin")
    assert [await settles(policies, address, by) for by in ("ann", "admin")] == ["role_required", "done"]
    assert await settles(policies, await unknown(policies, {"reviewers": ["ann"]}, "ann"), "admin") == "done"
    address = await unknown(policies, {}, "ann")
    await policies.roles("carl")
    try:
        assert await settles(policies, address, "carl") == "role_required", "lost since the request came in"
    finally:
        await policies.roles("carl", "reviewer")
    assert await settles(policies, address, "carl") == "done"


async def test_a_requester_cannot_settle_their_own_request_even_with_another_token(policies: Policies) -> None:
    address = await unknown(policies, {}, "ann")
    for roles in (("requester", "reviewer"), ("requester", "reviewer", "admin")):
        await policies.roles("requester", *roles)
        try:
            assert await settles(policies, address, "requester") == "own_request"
        finally:
            await policies.roles("requester", "requester")
    requester, admin = (policies.harness.people[name].user_id for name in ("requester", "admin"))
    for by in ("carl", "admin"):
        for created_by in ((requester,), (admin, requester)):
            credential = Credential(SignInMethod.TOKEN, created_by)
            assert await settles(policies, address, by, credential=credential) == "own_request", (by, created_by)
    assert await settles(policies, address, "carl", credential=Credential(SignInMethod.TOKEN, (admin,))) == "done"
    said = await policies.harness.value(SETTLED, address.turn_id)
    assert said["signed_in"] == {"how": "token", "created_by": "admin"}


async def looked(context: ToolContext, amount: Annotated[int, Field(gt=0)] = 1, mode: str = "") -> Preview:
    """Behaves as `mode` says."""
    if mode == "send":
        await context.send("POST", "http://desk.test/pay", json={"call": "x"})
    if mode == "wait":
        await context.send("GET", "http://desk.test/look", json={"call": "preview", "mode": "hang"})
    errors = {"break": ValueError, "exit": SystemExit, "cancel": asyncio.CancelledError, "own limit": TimeoutError}
    if mode in errors:
        raise errors[mode]("a secret of the target")
    if mode == "parts":
        raise ExceptionGroup("parts", [ToolRefused("no paper")])
    after = "x" * MAX_PREVIEW_CHARACTERS if mode == "long" else f"{100 - amount} left"
    return Preview({"account": "100 left"}, {"account": after})


@dataclass(frozen=True, slots=True)
class Previews:
    """The agent `desk`, whose `pay` has a preview."""

    harness: Harness

    async def request_approval(self, **args: object) -> tuple[TurnAddress, str]:
        """A call that waits, and its approval's id."""
        address, request = await self.harness.request_approval(**args)
        return address, request.request_id

    async def look(self, address: TurnAddress, approval_id: str, seconds: float = 5.0) -> bool:
        ask = PreviewRequest(address=address, approval_id=approval_id, routing=self.harness.routing)
        return (await self.harness.activity(PreviewActivities(self.harness.deps, seconds).preview, ask)).kept

    async def approval_view(self, approval_id: str) -> dict[str, Any]:
        return await in_transaction(self.harness.db, views.get_approval, approval_id, None)

    async def shown_preview(self, approval_id: str) -> dict[str, object]:
        return dict((await self.approval_view(approval_id))["preview"])


@pytest.fixture(scope="module")
async def previews(harness: Harness) -> AsyncIterator[Previews]:
    tools = app_agents()[1]
    pay = next(tool for agent_id, tool in tools if (agent_id, tool.card.name) == ("desk", "pay"))
    more = {"previews": True, "describe": "Pay {amount}.", "version": digest_of("with a preview")}
    seeing = replace(pay, card=pay.card.model_copy(update=more), preview=ToolPreview.of("pay", looked, pay.parameters))
    await harness.republished(("desk", "pay"), seeing)
    of_desk = [(agent_id, seeing if tool is pay else tool) for agent_id, tool in tools]
    toolbox = Toolbox(of_desk, lambda name: None, harness.deps.toolbox.http)
    yield Previews(replace(harness, deps=replace(harness.deps, toolbox=toolbox)))


async def test_a_preview_is_of_the_call_that_is_decided_on_now_and_stays_once_it_is(previews: Previews) -> None:
    address, approval_id = await previews.request_approval(amount=30)
    assert await previews.shown_preview(approval_id) == {}
    assert await previews.look(address, approval_id)
    found = await previews.shown_preview(approval_id)
    assert (found["before"], found["after"]) == ({"account": "100 left"}, {"account": "70 left"})
    assert found["fault"] is None and found["is_current"] is True and found["at"]
    await previews.harness.decide(approval_id, Decision.REJECT, comment="no")
    assert not await previews.look(address, approval_id)
    assert await previews.shown_preview(approval_id) == found


async def test_after_an_edit_the_record_describes_the_call_that_ran(previews: Previews) -> None:
    address, approval_id = await previews.request_approval(amount=30)
    assert await previews.look(address, approval_id)
    await previews.harness.decide(approval_id, Decision.EDIT, args={"amount": 20})
    shown = await previews.approval_view(approval_id)
    assert shown["says"] == "Pay 20." and shown["args_brief"].startswith("amount: 20") and shown["args"]["amount"] == 30
    assert (await previews.shown_preview(approval_id))["is_current"] is False


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        *(("send", ""), ("wait", "0.2"), ("break", "ValueError"), ("long", ""), ("older tool", "")),
        *(("exit", "SystemExit"), ("cancel", "CancelledError"), ("own limit", "TimeoutError"), ("parts", "no paper")),
    ],
)
async def test_a_preview_that_fails_is_reported_and_has_no_effect(previews: Previews, mode: str, names: str) -> None:
    paid = previews.harness.world.count("/pay")
    address, approval_id = await previews.request_approval(mode=mode)
    if mode == "older tool":
        await previews.harness.write("UPDATE approvals SET tool_version = 'older' WHERE id = $1", approval_id)
    assert await previews.look(address, approval_id, 0.2 if mode == "wait" else 5.0)
    found = await previews.shown_preview(approval_id)
    assert found["fault"] and names in str(found["fault"]) and "secret" not in str(found["fault"])
    assert found["before"] is None and previews.harness.world.count("/pay") == paid


MANY = Caps(turns_a_user=100_000)


async def open_requests(harness: Harness, turns: int, calls: int) -> dict[str, TurnAddress]:
    async def one() -> dict[str, TurnAddress]:
        address = await harness.plan(*(("pay", {"amount": n + 1}) for n in range(calls)), caps=MANY)
        requests = await harness.open(address, *(f"t1.{n}" for n in range(calls)))
        return {request.request_id: address for request in requests}

    made = await asyncio.gather(*(one() for _ in range(turns)))
    return {request: address for each in made for request, address in each.items()}


async def test_a_racing_decision_and_expiry_never_both_count(harness: Harness) -> None:
    approvals = await open_requests(harness, 8, 5)
    moment = await harness.value("SELECT clock_timestamp() + interval '1.5 seconds'")
    await harness.write("UPDATE approvals SET expires_at = $2 WHERE id = ANY($1)", list(approvals), moment)
    chance = random.Random(11)

    async def at(offset_seconds: float) -> None:
        await asyncio.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds() + offset_seconds))

    offsets = [-1.2, 0.3, *(chance.uniform(-0.15, 0.15) for _ in range(len(approvals) - 2))]

    async def decides(approval: str, offset: float) -> str:
        await at(offset)
        try:
            return (await harness.decide(approval))[0].status
        except CallerError as error:
            return error.code

    async def reads(address: TurnAddress) -> None:
        for offset in (-0.1, 0.0, 0.1):
            await at(offset)
            await verdicts(harness, address)

    turns = {address.turn_id: address for address in approvals.values()}
    said, _ = await asyncio.gather(
        asyncio.gather(*map(decides, approvals, offsets)), asyncio.gather(*map(reads, turns.values()))
    )
    for address in turns.values():
        await verdicts(harness, address)
    found = await harness.rows("SELECT id, status FROM approvals WHERE id = ANY($1)", list(approvals))
    rows = {str(row["id"]): row["status"] for row in found}
    for approval, answer in zip(approvals, said, strict=True):
        assert (answer, rows[approval]) in {("approved", "approved"), ("approval_expired", "expired")}
    assert set(rows.values()) == {"approved", "expired"}, "the race fell both ways"
    denied = await harness.rows("SELECT data FROM events WHERE kind = 'tool.denied' AND turn_id = ANY($1)", [*turns])
    assert len(denied) == sum(status == "expired" for status in rows.values()), "each expiry is said once"


async def verdicts(harness: Harness, address: TurnAddress) -> None:
    """A look of the turn at all of its records."""
    rows = await harness.rows("SELECT id, call_id FROM approvals WHERE turn_id = $1 ORDER BY call_id", address.turn_id)
    requests = (RequestRef(request_id=str(row["id"]), call_id=row["call_id"], tool="pay") for row in rows)
    await read_verdicts(harness, address, *requests)


@pytest.mark.sized
async def test_a_racing_decision_and_end_of_the_turn_leave_one_result(harness: Harness) -> None:
    approvals = await open_requests(harness, sized(30, 8), 1)
    ending = [harness.finish(address) for address in approvals.values()]
    answers = await gathered(*(harness.decide(approval) for approval in approvals), *ending)
    for (approval, address), answer in zip(approvals.items(), answers, strict=False):
        status = await harness.value("SELECT status FROM approvals WHERE id = $1", approval)
        assert status == "cancelled", "an approval that was not reserved is void with its turn"
        if isinstance(answer, tuple):
            assert isinstance(answer[0], Decided)
        else:
            assert isinstance(answer, CallerError) and answer.code == "already_decided"
        assert (await harness.run_tool(address)).problem is not None
    assert not [each for each in answers[len(approvals) :] if isinstance(each, BaseException)]
    turns = [address.turn_id for address in approvals.values()]
    assert await harness.value("SELECT count(*) FROM turns WHERE id = ANY($1) AND ended_at IS NULL", turns) == 0
