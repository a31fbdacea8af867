"""What several people decide and answer: votes, delegations, claims, withdrawals, questions, and their races."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import OpenRequest, VerdictsRequest
from perdure.contracts.approvals import Question, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.identity import OWN_CREDENTIAL, UNKNOWN_CREATOR, Credential, SignInMethod
from perdure.core.turns import Caps
from perdure.store.approvals import assignments, requests, views
from perdure.store.approvals.assignments import withdraw
from perdure.store.approvals.decisions import LimitRaise, SubmittedDecision, decide, raise_limits
from perdure.store.approvals.reissue import outdated_tools
from perdure.store.approvals.review import escalate_all_overdue, fall_back
from perdure.store.approvals.views import Filters
from perdure.store.database import Database
from perdure.store.turns import views as turn_views
from perdure.store.turns.finish import finish
from perdure.store.turns.start import request_stop
from perdure.worker.reconcile import Reconciler
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.integration.conftest import in_transaction
from tests.integration.policies import Policies
from tests.integration.test_ledger_model_calls import BLOCKED
from tests.scale import sized

V = VerdictState
TOMORROW = datetime.now(UTC) + timedelta(days=1)
BELLS = "SELECT count(*) FROM outbox WHERE turn_id = $1"


async def does(policies: Policies, verb: Any, request: RequestRef, by: str, *given: object) -> str:
    try:
        await in_transaction(policies.harness.db, verb, request.request_id, policies.who(by), *given)
    except CallerError as refused:
        return refused.code
    return "done"


async def approval_view(policies: Policies, request: RequestRef, who: Decider | None = None) -> Any:
    return await in_transaction(policies.harness.db, views.get_approval, request.request_id, None, who)


async def decides(policies: Policies, request: RequestRef, by: str, decision: str = "approve", **given: Any) -> str:
    """The status after that person's decision on what the record shows now, or the refusal's code."""
    who = replace(policies.who(by), credential=given.pop("credential", OWN_CREDENTIAL))
    most = given.pop("per_minute", None)
    shown_digest = (await approval_view(policies, request))["digest"]
    try:
        async with policies.harness.db.transaction("local") as tx:
            ask = SubmittedDecision.model_validate({"decision": decision, "digest": shown_digest, **given})
            decided, note = await decide(tx, request.request_id, who, who.name, ask, most)
    except CallerError as refused:
        return refused.code
    assert (note is None) is (decided.status == "pending")
    return decided.status


@asynccontextmanager
async def stands_in(policies: Policies, to: str, *owners: str) -> AsyncIterator[None]:
    made = []
    for owner in owners:
        user_id = policies.harness.people[owner].user_id
        lent = await in_transaction(
            policies.harness.db, assignments.add_delegation, user_id, owner, to, TOMORROW, OWN_CREDENTIAL
        )
        made.append((user_id, str(lent["id"])))
    try:
        yield
    finally:
        for user_id, delegation_id in made:
            await in_transaction(policies.harness.db, assignments.remove_delegation, user_id, delegation_id)


async def run(policies: Policies, address: TurnAddress, agent_id: str = "plain") -> ToolOutcome:
    """The call, of the agent as it is published now."""
    call = await policies.harness.tool_call(address, "t1.0", agent_id=agent_id)
    return await policies.harness.activity(ToolActivities(policies.harness.deps).run, call)


def paid(policies: Policies, address: TurnAddress) -> int:
    return policies.harness.world.effects.count(("/pay", effect_key(address.turn_id, "t1.0")))


async def raises(policies: Policies, address: TurnAddress, credential: Credential) -> None:
    who = replace(policies.who("carl"), credential=credential)
    await in_transaction(policies.harness.db, raise_limits, address.turn_id, who, "carl", LimitRaise(max_tokens=2**50))


async def test_a_delegate_raises_a_limit_but_not_with_a_credential_of_the_requester(policies: Policies) -> None:
    address, request = await policies.request_approval("named")
    await policies.set(request, "kind = 'limit', quorum = 1")
    async with stands_in(policies, "carl", "ann"):
        with pytest.raises(CallerError) as refused:
            made_by = (policies.harness.people["requester"].user_id,)
            await raises(policies, address, Credential(SignInMethod.TOKEN, made_by))
        assert refused.value.code == "own_request"
        await raises(policies, address, OWN_CREDENTIAL)
    vote = await policies.harness.value("SELECT record FROM approval_votes WHERE approval_id = $1", request.request_id)
    assert (vote["by"], vote["for"], vote["limits"]["max_tokens"]) == ("carl", "ann", 2**50)


async def test_a_delegation_that_the_requester_made_under_another_name_does_not_count(policies: Policies) -> None:
    _, request = await policies.request_approval("named")
    ann, requester = policies.harness.people["ann"].user_id, policies.harness.people["requester"].user_id
    lent = Credential(SignInMethod.TOKEN, (policies.harness.people["admin"].user_id, requester))
    made = await in_transaction(policies.harness.db, assignments.add_delegation, ann, "ann", "carl", TOMORROW, lent)
    assert await decides(policies, request, "carl") == "own_request"
    async with stands_in(policies, "carl", "ann"):
        assert await decides(policies, request, "carl") == "pending", "she lent it herself, too"
    await in_transaction(policies.harness.db, assignments.remove_delegation, ann, str(made["id"]))


async def test_two_credentials_that_one_person_created_are_one_vote(policies: Policies) -> None:
    _, request = await policies.request_approval("pair")
    admin = policies.harness.people["admin"].user_id
    minted = Credential(SignInMethod.TOKEN, (admin,))
    through = Credential(SignInMethod.TOKEN, (policies.who("dora").user_id, admin))
    assert await decides(policies, request, "ann", credential=minted) == "pending"
    assert await decides(policies, request, "bob", credential=minted) == "already_voted"
    assert await decides(policies, request, "bob", credential=through) == "already_voted"
    assert await decides(policies, request, "admin") == "already_voted", "the creator's own"
    unknown = Credential(SignInMethod.TOKEN, (UNKNOWN_CREATOR,))
    assert await decides(policies, request, "bob", credential=unknown) == "already_voted"
    told = await approval_view(policies, request, replace(policies.who("bob"), credential=minted))
    assert told["allowed_decisions"] == []
    assert [vote["signed_in"] for vote in told["votes"]] == [{"how": "token", "created_by": "admin"}]
    assert await decides(policies, request, "bob") == "approved", "a person of its own"
    _, other = await policies.request_approval("pair")
    assert await decides(policies, other, "admin") == "pending"
    assert await decides(policies, other, "ann", credential=minted) == "already_voted", "of a creator who has voted"


async def test_an_edit_voids_earlier_votes_even_back_to_the_original_and_signals_once(policies: Policies) -> None:
    address, request = await policies.request_approval("pair", amount=100)
    await policies.harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    before = (await policies.row(request))["digest"]
    assert await decides(policies, request, "ann", comment="fine") == "pending"
    assert await decides(policies, request, "bob", "edit", args={"amount": 5}) == "pending"
    assert await decides(policies, request, "carl", digest=before) == "digest_differs"
    assert await decides(policies, request, "carl", "edit", args={"amount": 100}) == "pending"
    assert [vote["by"] for vote in (await approval_view(policies, request))["votes"]] == ["carl"]
    assert await decides(policies, request, "bob", "edit", args={"amount": 5}) == "pending"
    told = await approval_view(policies, request)
    assert (told["args"]["amount"], told["digest"] != before) == (5, True)
    assert [(vote["by"], vote["for"], vote["comment"]) for vote in told["votes"]] == [("bob", None, "")]
    assert (await policies.verdict(address, request)).state is V.PENDING
    assert await policies.harness.value(BELLS, address.turn_id) == 0
    assert await decides(policies, request, "ann") == "edited", "her first vote was for another call"
    assert await policies.harness.value(BELLS, address.turn_id) == 1
    row = await policies.row(request)
    decision = row["decision"]
    versions = [each["amount"] for each in (row["args"], decision["args"], decision["args_before"])]
    assert versions == [100, 5, 100]
    assert (decision["edited_by"], decision["by"]) == ("bob", "ann")
    outcome = await run(policies, address, "pair")
    assert outcome.state is CallState.DONE and outcome.message is not None
    assert '"amount":5' in outcome.message.text.replace(" ", "")


@pytest.mark.sized
@pytest.mark.parametrize(("policy", "needed"), [("plain", 1), ("pair", 2)])
async def test_of_many_votes_a_quorum_counts_not_the_requesters(policies: Policies, policy: str, needed: int) -> None:
    asked = [(await policies.request_approval(policy))[1] for _ in range(sized(12, 3))]
    await policies.roles("requester", "requester", "reviewer")
    people = ["ann", "bob", "carl", "reviewer", "requester"]
    work = [(request, name) for request in asked for name in people for _ in range(2)]
    answers = await gathered(*(decides(policies, request, name) for request, name in work))
    await policies.roles("requester", "requester")
    for request in asked:
        mine = Counter(str(answer) for (each, _), answer in zip(work, answers, strict=True) if each is request)
        assert (mine["pending"], mine["approved"], mine["own_request"]) == (needed - 1, 1, 2), mine
        assert set(mine) <= {"pending", "approved", "already_voted", "already_decided", "own_request"}
        voters = await policies.harness.rows(
            "SELECT user_id, seat_id FROM approval_votes WHERE approval_id = $1 AND voided_at IS NULL",
            request.request_id,
        )
        assert len({row["user_id"] for row in voters}) == len({row["seat_id"] for row in voters}) == needed
        audited = await policies.audited(request)
        assert (audited.count("decided"), audited[-1]) == (1, "decided")
        bells = "SELECT count(*) FROM outbox WHERE request_id = $1"
        assert await policies.harness.value(bells, request.request_id) == 1


async def test_the_limit_of_decisions_a_minute_holds_for_each_user_under_concurrency(policies: Policies) -> None:
    asked = [(await policies.request_approval("plain"))[1] for _ in range(8)]
    await policies.harness.write("UPDATE approval_votes SET at = at - interval '2 minutes'")
    answers = await gathered(*(decides(policies, request, "ann", per_minute=5) for request in asked))
    assert Counter(map(str, answers)) == {"approved": 5, "too_many_decisions": 3}
    left = next(request for request, answer in zip(asked, answers, strict=True) if answer != "approved")
    assert await decides(policies, left, "ann", "reject", per_minute=5) == "reason_required", "the form comes first"
    assert await decides(policies, left, "bob", per_minute=5) == "approved", "others have a limit of their own"


async def waited(policies: Policies, request: RequestRef) -> None:
    await policies.set(request, "fallback_at = clock_timestamp()")


async def passed(policies: Policies, request: RequestRef) -> None:
    await policies.set(request, "expires_at = clock_timestamp() - interval '1 second'")


async def test_a_request_is_escalated_at_one_deadline_then_denied(policies: Policies, reconciler: Reconciler) -> None:
    address, request = await policies.request_approval("climbing")
    await passed(policies, request)
    await policies.harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    row = await policies.row(request)
    assert (row["status"], row["reviewer_role"], row["escalated_at"] is not None) == ("pending", "admin", True)
    assert await policies.harness.value(BELLS, address.turn_id) == 0, "a paused turn is not woken for it"
    async with policies.harness.db.transaction("local") as tx:
        waiting: Any = (await turn_views.get_turn(tx, address.turn_id, None))["waiting_for"]
    assert datetime.fromisoformat(waiting["expires_at"]) == row["expires_at"], "the new one"
    read = await policies.verdict(address, request)
    assert (read.state, read.look_at) == (V.PENDING, row["expires_at"])
    await passed(policies, request)
    await reconciler.run_pass()
    assert await policies.harness.value(BELLS, address.turn_id) == 1
    assert (await policies.verdict(address, request)).state is V.EXPIRED
    assert await policies.audited(request) == ["opened", "escalated", "expired"]


async def test_an_undecided_request_falls_back_or_is_escalated(policies: Policies, reconciler: Reconciler) -> None:
    fallen, without_role = [(await policies.request_approval(policy))[1] for policy in ("watched", "orphaned")]
    _, own = await policies.request_approval("watched", by="carl")
    for request in (fallen, without_role, own):
        await waited(policies, request)
    for _ in range(2):
        await reconciler.run_pass()
    row = await policies.row(fallen)
    assert str(row["assignee"]) == policies.harness.people["carl"].user_id and row["fell_back_at"] is not None
    assert await policies.audited(fallen) == ["opened", "fell_back"]
    for request in (without_role, own):
        row = await policies.row(request)
        assert (row["assignee"], row["reviewer_role"]) == (None, "admin")
        assert await policies.audited(request) == ["opened", "escalated"]


@pytest.mark.sized
async def test_racing_reconcilers_and_reviewers_reassign_at_most_once(policies: Policies, relay: Database) -> None:
    asked = [(await policies.request_approval("watched"))[1] for _ in range(sized(20, 6))]
    climbing = [(await policies.request_approval("climbing"))[1] for _ in range(sized(10, 4))]
    for request in asked:
        await waited(policies, request)
    for request in climbing:
        await passed(policies, request)

    async def passes(step: Any) -> int:
        async with relay.transaction("local") as tx:
            done: int = await step(tx)
            return done

    answers = await gathered(
        *(passes(step) for step in (fall_back, escalate_all_overdue) for _ in range(4)),
        *(decides(policies, request, "ann") for request in asked[::2]),
        *(decides(policies, request, "admin") for request in climbing[::2]),
    )
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    await passes(fall_back)
    await passes(escalate_all_overdue)
    for request in (*asked, *climbing):
        kinds = await policies.audited(request)
        assert kinds.count("fell_back") + kinds.count("escalated") <= 1
        assert (await policies.row(request))["status"] == "approved" or len(kinds) == 2, "handed on exactly once"


async def test_a_role_that_is_lost_while_a_decision_waits_for_the_lock_does_not_count(policies: Policies) -> None:
    address, request = await policies.request_approval("plain")
    try:
        async with policies.harness.db.transaction("local", address.turn_id):
            waiting = asyncio.create_task(does(policies, assignments.claim, request, "ann", 900))
            await until(lambda: policies.harness.value(BLOCKED))
            await policies.roles("ann", "requester")
        assert await waiting == "role_required"
    finally:
        await policies.roles("ann", "reviewer")


async def test_an_approval_is_taken_back_as_long_as_its_call_is_not_reserved(policies: Policies) -> None:
    address, request = await policies.request_approval("plain")
    await policies.harness.decide(request.request_id, comment="fine")
    await policies.harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    assert await does(policies, withdraw, request, "ann", "wrong account") == "done"
    read = await policies.verdict(address, request)
    assert (read.state, read.comment, read.decided_by) == (V.WITHDRAWN, "wrong account", "ann")
    assert await policies.harness.value(BELLS, address.turn_id) == 1
    assert (await policies.harness.kinds(address.turn_id))[-1] == "tool.denied"
    outcome = await run(policies, address)
    assert outcome.state is CallState.DENIED and outcome.message is not None
    assert "wrong account" in outcome.message.text and "fine" not in outcome.message.text
    assert paid(policies, address) == 0
    stopped, other = await policies.request_approval("plain")
    await policies.harness.stop(stopped.turn_id)
    assert await does(policies, withdraw, other, "requester", "not now") == "turn_stopped"


@pytest.mark.sized
async def test_of_a_racing_withdrawal_and_execution_exactly_one_happens(policies: Policies) -> None:
    asked = [await policies.request_approval("plain") for _ in range(sized(40, 10))]
    for _, request in asked:
        await policies.harness.decide(request.request_id)
    chance = random.Random(3)

    async def later(work: Any, head_start: bool) -> Any:
        await asyncio.sleep(chance.uniform(0, 0.02) + (3 if head_start else 0))
        return await work

    # One in ten has a head start on either side: a busy machine may let all the others fall one way.
    answers = await gathered(
        *(later(does(policies, withdraw, request, "ann", "no"), n % 10 == 0) for n, (_, request) in enumerate(asked)),
        *(later(run(policies, address), n % 10 == 5) for n, (address, _) in enumerate(asked)),
    )
    fell = set()
    for (address, request), said, outcome in zip(asked, answers[: len(asked)], answers[len(asked) :], strict=True):
        assert isinstance(outcome, ToolOutcome)
        status = (await policies.row(request))["status"]
        assert (said, outcome.state, status, paid(policies, address)) in {
            ("done", CallState.DENIED, "withdrawn", 0),
            ("already_running", CallState.DONE, "done", 1),
        }
        fell.add(status)
    assert fell == {"withdrawn", "done"}, "the race fell both ways"


async def test_an_approved_call_waits_for_its_hold_and_then_signals(policies: Policies, reconciler: Reconciler) -> None:
    address, request = await policies.request_approval("held")
    await policies.harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    _, note = await policies.harness.decide(request.request_id)
    assert note is None, "nothing to ring for now"
    row = await policies.row(request)
    read = await policies.verdict(address, request)
    assert (read.state, read.look_at) == (V.PENDING, row["ready_at"])
    assert timedelta(minutes=59) < row["ready_at"] - datetime.now(UTC) < timedelta(minutes=61)
    due = await policies.harness.rows("SELECT due_at FROM outbox WHERE turn_id = $1 AND kind = 'ring'", address.turn_id)
    assert [bell["due_at"] for bell in due] == [row["ready_at"]]
    stopping = "UPDATE turns SET stop_requested_at = now() - interval '20 seconds' WHERE id = $1"
    await policies.harness.write(stopping, address.turn_id)
    await reconciler.run_pass()
    kinds = await policies.harness.rows("SELECT kind FROM outbox WHERE turn_id = $1 ORDER BY kind", address.turn_id)
    assert [bell["kind"] for bell in kinds] == ["ring", "stop"], "a bell for later keeps no stop from being rung"
    unstopped = "UPDATE turns SET stop_requested_at = NULL, rung_at = NULL WHERE id = $1"
    await policies.harness.write(unstopped, address.turn_id)
    with pytest.raises(ApplicationError) as early:
        await run(policies, address, "held")
    assert early.value.type == "on_hold" and not early.value.non_retryable
    assert (await policies.harness.call_row(address))["state"] == "planned" and paid(policies, address) == 0
    await policies.harness.write("DELETE FROM outbox WHERE turn_id = $1", address.turn_id)
    await reconciler.run_pass()
    assert await policies.harness.value(BELLS, address.turn_id) == 0, "it is not time yet"
    await policies.set(request, "ready_at = clock_timestamp(), decided_at = decided_at - interval '1 hour'")
    assert (await policies.verdict(address, request)).state is V.APPROVED
    await reconciler.run_pass()
    assert await policies.harness.value(BELLS, address.turn_id) == 1
    assert (await run(policies, address, "held")).state is CallState.DONE


@asynccontextmanager
async def changed(policies: Policies, what: str) -> AsyncIterator[None]:
    harness = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    newer = next(card for card in harness.cards if card.name == "pay").model_copy(
        update={"version": digest_of("new"), "risk": "high"}
    )
    await (policies.republish({"plain": {"quorum": 2}}) if what == "policy" else policies.republish({}, newer))
    try:
        yield
    finally:
        await policies.republish({})


async def reviewer_choices(policies: Policies, request: RequestRef) -> tuple[Any, Any]:
    """The API's answer to bob: why it is outdated and his possible decisions; alike alone and in the list."""
    one = await approval_view(policies, request, policies.who("bob"))
    async with policies.harness.db.transaction("local") as tx:
        lists: list[dict[str, Any]] = [{}, {"status": "outdated"}]
        lists += [{"status": "outdated", "expiring_within_seconds": 10**9}]
        many, outdated, expiring = [
            (await views.list_approvals(tx, Filters(**each, agent="plain"), 200, None, policies.who("bob")))[0]
            for each in lists
        ]
    assert outdated == expiring, "with a decision, too"
    assert [each["id"] for each in many if each["outdated"]] == [each["id"] for each in outdated]
    same = next(each for each in many if each["id"] == request.request_id)
    assert [same[name] for name in ("outdated", "allowed_decisions")] == [one["outdated"], one["allowed_decisions"]]
    return one["outdated"], one["allowed_decisions"]


@pytest.mark.parametrize("what", ["policy", "tool"])
async def test_an_outdated_request_says_so_and_can_only_be_rejected(policies: Policies, what: str) -> None:
    address, request = await policies.request_approval("plain")
    ran_before, done = await policies.request_approval("plain")
    await policies.harness.decide(done.request_id, by="bob")
    _, late = await policies.request_approval("plain")
    await policies.harness.write("UPDATE approvals SET expires_at = now() WHERE id = $1", late.request_id)
    assert await reviewer_choices(policies, request) == (None, ["approve", "edit", "reject", "respond"])
    async with changed(policies, what):
        assert (await reviewer_choices(policies, done))[0], "it has not run"
    assert (await run(policies, ran_before)).state is CallState.DONE, "published again as it was"
    async with changed(policies, what):
        assert (await reviewer_choices(policies, done))[0] is None
        assert late.request_id not in await in_transaction(policies.harness.db, outdated_tools), "as in the list"
        why, allowed = await reviewer_choices(policies, request)
        assert why and allowed == ["reject", "respond"]
        changes = (await approval_view(policies, request, policies.who("bob")))["changes"]
        assert changes == ({"quorum": {"before": 1, "after": 2}} if what == "policy" else {})
        for decision, given in ((Decision.APPROVE, {}), (Decision.EDIT, {"args": {"amount": 3}})):
            with pytest.raises(CallerError) as refused:
                await policies.harness.decide(request.request_id, decision, by="bob", **given)
            assert (refused.value.http, refused.value.code) == (409, "approval_outdated")
            assert refused.value.details == {"outdated": why}
        assert (await policies.row(request))["status"] == "pending"
        await policies.harness.decide(request.request_id, Decision.REJECT, by="bob", comment="asked by another policy")
        assert await reviewer_choices(policies, request) == (None, [])
        assert (await policies.verdict(address, request)).state is V.REJECTED
    assert (await run(policies, address)).state is CallState.DENIED
    assert paid(policies, address) == 0


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ASKED = Question(call_id="q1", kind=RequestKind.CLARIFICATION, asked={"question": "Which one?"}, answer_schema=SCHEMA)


async def open_question(harness: Harness, address: TurnAddress | None = None) -> tuple[TurnAddress, RequestRef]:
    """A turn that asks, and what it waits for."""
    if address is None:
        address, _ = await harness.start(Line("hi"), caps=Caps(turns_a_user=1_000))
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
    waits: Any = (await in_transaction(harness.db, turn_views.get_turn, address.turn_id, None))["waiting_for"]
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
