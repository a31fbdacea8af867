"""A person is erased who decided in the turns of others, on every path there is: nothing the person said or is called
is left, and what the others and the engine said stays.
"""

import asyncpg
import pytest
from fastapi.encoders import jsonable_encoder

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.tools import ToolActivities
from perdure.contracts.activities import OpenRequest, VerdictsRequest
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.identity import OWN
from perdure.graph.compile import topology
from perdure.graph.nodes.await_verdict import _verdict_message, raised
from perdure.graph.nodes.pause import snapshot
from perdure.store.approvals import assignments, views
from perdure.store.audit import verify_chain
from perdure.store.identity.erasure import erase
from perdure.store.turns.finish import finish
from tests.conftest import KEYRING
from tests.harness import Harness
from tests.integration.policies import Policies, publish_policies
from tests.integration.test_approvals_seats import TOMORROW
from tests.integration.test_erasure import admin, end, marked, neutral, person

__all__ = ["admin"]
MARK = "trillian"
NAME = f"{MARK}.m-2"
SAID = f"{MARK} says, in her words"
OTHERS = "the words of somebody else"
POLICY = {"reviewers": [NAME, "bob"], "fallback_reviewer": NAME}
ANSWERED = (
    "INSERT INTO idempotency (tenant_id, user_id, route, key, body_digest, status, answer) "
    "VALUES ('local', $1, 'r', gen_random_uuid()::text, 'd', 200, $2)"
)
STATE = topology("skill_pipeline").topology.state.initial(execution_id="e")


@pytest.fixture(scope="module")
async def policies(harness: Harness) -> Policies:
    await person(harness, NAME)
    made = await publish_policies(harness)
    await made.republish({"named": POLICY})
    return made


async def said_in(admin: asyncpg.Connection, text: str) -> set[str]:
    return {each for each in await marked(admin, text) if not neutral(each)}


async def ran(policies: Policies, address: TurnAddress, call_id: str, agent_id: str = "desk", version: str = "") -> str:
    """The state of the call after a worker has taken it up."""
    call = await policies.harness.tool_call(address, call_id, agent_id)
    if version:
        call = call.model_copy(update={"agent_version": version})
    outcome = await policies.harness.activity(ToolActivities(policies.harness.deps).run, call)
    return outcome.state.value


async def denied(policies: Policies, decision: Decision) -> TurnAddress:
    """A round of which the person said no to the first call, another to the second, and one was allowed."""
    harness = policies.harness
    address = await harness.plan(*[("pay", {"amount": n}) for n in (1, 2, 3)])
    hers, theirs, allowed = await harness.open(address, "t1.0", "t1.1", "t1.2")
    await harness.decide(hers.request_id, decision, by=NAME, comment=f'{SAID},"reason":"no"\n{decision}')
    await harness.decide(theirs.request_id, decision, comment=OTHERS)
    await harness.decide(allowed.request_id)
    assert [await ran(policies, address, f"t1.{n}") for n in range(3)] == ["denied", "denied", "done"]
    return address


async def withdrawn(policies: Policies) -> TurnAddress:
    """A round of which the person took the first approval back that somebody else had given, another the second."""
    harness = policies.harness
    address = await harness.approved(*[("pay", {"amount": n}) for n in (1, 2)])
    for call_id, by, comment in (("t1.0", NAME, SAID), ("t1.1", "admin", OTHERS)):
        row = await harness.approval_row(address, call_id)
        async with harness.db.transaction("local") as tx:
            await assignments.withdraw(tx, str(row["id"]), policies.who(by), comment)
        assert await ran(policies, address, call_id) == "denied"
    return address


async def voided(policies: Policies) -> None:
    """An approval that the person gave, and that a change of the policy has made void."""
    harness = policies.harness
    address, request = await policies.asked("plain")
    await harness.decide(request.request_id, by=NAME, comment=SAID)
    old = await harness.version("plain")
    await policies.republish({"named": POLICY, "plain": {"quorum": 2}})
    assert await ran(policies, address, "t1.0", "plain", old) == "denied"
    await policies.republish({"named": POLICY})
    await end(harness, address)


async def opened(policies: Policies, address: TurnAddress, gated: GatedCall, **kept: object) -> RequestRef:
    harness = policies.harness
    ask = OpenRequest(address=address, agent_id="desk", agent_version=await harness.version(), gated=(gated,), **kept)
    return (await harness.activity(ApprovalActivities(harness.deps).open, ask)).requests[0]


async def paused_again(policies: Policies) -> TurnAddress:
    """A turn that went on after a refusal, told of it by a note, and paused once more with all its state."""
    harness = policies.harness
    address = await harness.plan(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    (refused,) = await harness.open(address, "t1.0")
    await harness.decide(refused.request_id, Decision.REJECT, by=NAME, comment=SAID)
    note = MessageRef(role=Role.SYSTEM, text=_verdict_message(await policies.verdict(address, refused)))
    skill = MessageRef(role=Role.SYSTEM, text="a skill's text", skill_id="s")
    asked = MessageRef(id=refused.request_id, role=Role.USER, text="not kept")
    kept = snapshot(STATE, [asked, skill, note], whole=True)
    await opened(policies, address, GatedCall(call_id="t1.1", tool="pay", rule="t"), snapshot=kept)
    await end(harness, address)
    return address


async def not_raised(policies: Policies) -> TurnAddress:
    """A turn that asked for a higher limit, and ended as the person did not raise it."""
    harness = policies.harness
    address = await harness.plan(("pay", {}))
    gated = GatedCall(call_id="t1.limit", tool="", rule="limit", kind=RequestKind.LIMIT, message="spent")
    request = await opened(policies, address, gated)
    await harness.decide(request.request_id, Decision.REJECT, by=NAME, comment=SAID)
    asked = VerdictsRequest(address=address, requests=(request,))
    ending = raised(STATE, await harness.activity(ApprovalActivities(harness.deps).read, asked))
    async with harness.db.transaction("local") as tx:
        over = FinishRequest.model_validate(
            {"address": address, "status": TurnStatus.LIMITED, "problem": ending["error"]}
        )
        await finish(tx, over)
    return address


async def handed_on(policies: Policies) -> None:
    """Requests whose policy names the person: given on by others, claimed, decided in the person's seat."""
    harness, her_id = policies.harness, policies.harness.people[NAME].user_id
    for handing in ("reassigned", "released", "seated"):
        address, request = await policies.asked("named")
        async with harness.db.transaction("local") as tx:
            if handing == "reassigned":
                await assignments.reassign(tx, request.request_id, policies.who("bob"), "carl", "")
            elif handing == "released":
                await assignments.claim(tx, request.request_id, policies.who(NAME), 60)
                await assignments.release(tx, request.request_id, policies.who("admin"))
            else:
                await assignments.add_delegation(tx, her_id, NAME, "carl", TOMORROW, OWN)
        if handing == "seated":
            await harness.decide(request.request_id, Decision.REJECT, by="carl", comment=OTHERS)
        async with harness.db.transaction("local") as tx:
            answer = jsonable_encoder(await views.get_approval(tx, request.request_id, None))
            seen = {key: answer[key] for key in ("id", "reviewers", "fallback")}
            await tx.execute(ANSWERED, harness.people["reviewer"].user_id, seen)
        await end(harness, address)


async def answers(harness: Harness, turn: TurnAddress, call_id: str) -> list[str]:
    """What the model, the ledger and the readers of a turn were told of a denied call."""
    found = await harness.rows(
        "SELECT m.content, k.outcome #>> '{message,text}' AS outcome, e.data->>'result' AS shown FROM tool_calls k "
        "JOIN messages m ON m.turn_id = k.turn_id AND m.call_id = k.call_id AND m.role = 'tool' "
        "JOIN events e ON e.turn_id = k.turn_id AND e.call_id = k.call_id AND e.kind = 'tool.denied' "
        "AND e.data ? 'result' WHERE k.turn_id = $1 AND k.call_id = $2",
        turn.turn_id,
        call_id,
    )
    return [str(text) for row in found for text in row.values()]


async def test_nothing_that_a_reviewer_said_in_the_turns_of_others_is_left(
    policies: Policies, admin: asyncpg.Connection
) -> None:
    harness = policies.harness
    turns = [
        await denied(policies, Decision.REJECT),
        await denied(policies, Decision.RESPOND),
        await withdrawn(policies),
    ]
    await voided(policies)
    paused, limited = await paused_again(policies), await not_raised(policies)
    await handed_on(policies)
    for turn in turns:
        await end(harness, turn)
    await policies.republish({})
    assert await said_in(admin, MARK) >= {
        *("approval_votes.record", "approvals.decision", "approvals.fallback_reviewer", "approvals.reviewers"),
        *("approvals.snapshot", "approvals.withdrawal", "audit_bodies.data", "events.data", "idempotency.answer"),
        *("messages.content", "tool_calls.outcome", "turns.problem"),
    }
    done = await erase(harness.db, "local", NAME, harness.people["admin"].user_id)
    assert await said_in(admin, MARK) == set()
    assert (await verify_chain(harness.db, "local", KEYRING)).faults == ()
    for turn in turns:
        hers, theirs = [await answers(harness, turn, call_id) for call_id in ("t1.0", "t1.1")]
        assert len(hers) == len(theirs) == 3
        assert all(OTHERS in told for told in theirs), "what others said stays"
        assert [told.replace(f'"reason":"{OTHERS}",', "") for told in theirs] == hers, "and what the engine said"
    kept = await harness.value("SELECT snapshot FROM approvals WHERE turn_id = $1 AND call_id = 't1.1'", paused.turn_id)
    assert [sorted(message) for message in kept["messages"]] == [["id", "role"], ["role", "skill_id", "text"], ["role"]]
    problem = await harness.value("SELECT problem FROM turns WHERE id = $1", limited.turn_id)
    assert problem["message"].endswith("; a reviewer did not raise it")
    seats = await harness.rows("SELECT record FROM approval_votes WHERE record ? 'for'")
    assert [(row["record"]["for"], row["record"]["comment"]) for row in seats] == [(done["name"], OTHERS)]


async def test_an_erasure_that_was_cut_off_knows_the_turns_that_name_the_person_when_it_goes_on(
    policies: Policies, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, name = policies.harness, f"{MARK}.c"
    await person(harness, name)
    await policies.republish({"named": {"reviewers": [name, "bob"]}})
    address, request = await policies.asked("named")
    async with harness.db.transaction("local") as tx:
        await assignments.add_delegation(tx, harness.people[name].user_id, name, "ann", TOMORROW, OWN)
    await harness.decide(request.request_id, by="ann")
    named = "UPDATE events SET data = jsonb_build_object('assignee', $2::text) WHERE turn_id = $1 AND seq = 2"
    await harness.write(named, address.turn_id, name)
    await end(harness, address)
    await policies.republish({})
    with monkeypatch.context() as patch:
        patch.setattr("perdure.store.identity.erasure.ELSEWHERE", ())
        patch.setattr("perdure.store.identity.erasure._end", None)
        with pytest.raises(TypeError):
            await erase(harness.db, "local", name, harness.people["admin"].user_id)
    assert await marked(admin, name) >= {"approval_votes.record", "approvals.decision", "events.data", "users.name"}
    assert (await verify_chain(harness.db, "local", KEYRING)).ok, "half-way, too"
    await erase(harness.db, "local", name, harness.people["admin"].user_id)
    assert await said_in(admin, name) == set()
    assert (await verify_chain(harness.db, "local", KEYRING)).ok
