"""Erasing a reviewer of other users' turns; bodies that were removed under the name of an erasure are a fault."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from fastapi.encoders import jsonable_encoder

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.model import ModelActivities
from perdure.activities.tools import ToolActivities
from perdure.apps.bootstrap import bootstrap
from perdure.contracts.activities import OpenRequest, VerdictsRequest
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.errors import CallerError
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.gates import refusal_text
from perdure.core.audit import FaultKind, Keyring, Report
from perdure.core.identity import OWN_CREDENTIAL
from perdure.graph.compile import topology
from perdure.graph.nodes.await_verdict import raise_limits
from perdure.graph.nodes.pause import snapshot
from perdure.settings import Settings
from perdure.store import audit
from perdure.store.approvals import assignments, views
from perdure.store.audit import verify_chain
from perdure.store.events.live import AppendResult
from perdure.store.identity import erasure, users
from perdure.store.identity.erasure import erase
from tests.conftest import KEYRING, Urls, as_owner
from tests.doubles.message_script import Line
from tests.harness import Harness
from tests.integration.audit_tampering import exported_head
from tests.integration.conftest import in_transaction
from tests.integration.policies import Policies, publish_policies
from tests.integration.test_approvals_votes import TOMORROW
from tests.integration.test_erasure import ANSWERED, admin, marked, neutral, person

__all__ = ["admin"]
MARK = "trillian"
NAME = f"{MARK}.m-2"
SAID = f"{MARK} says, in her words"
OTHERS = "the words of another user"
POLICY = {"reviewers": [NAME, "bob"], "fallback_reviewer": NAME}
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
    return (await policies.harness.activity(ToolActivities(policies.harness.deps).run, call)).state.value


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


async def refused_whole(policies: Policies) -> None:
    """A completed turn whose graph has dropped its only round, which the person refused."""
    harness = policies.harness
    address, request = await harness.request_approval()
    await harness.decide(request.request_id, Decision.REJECT, by=NAME, comment=SAID)
    await harness.finish(address, TurnStatus.COMPLETED)
    content = "SELECT content FROM messages WHERE turn_id = $1 AND role = 'tool' AND in_transcript"
    assert SAID in await harness.value(content, address.turn_id)


async def withdrawn(policies: Policies) -> TurnAddress:
    """A round whose first approval, given by another reviewer, the person withdrew, and another user the second."""
    harness = policies.harness
    address = await harness.approved(*[("pay", {"amount": n}) for n in (1, 2)])
    for call_id, by, comment in (("t1.0", NAME, SAID), ("t1.1", "admin", OTHERS)):
        row = await harness.approval_row(address, call_id)
        await in_transaction(harness.db, assignments.withdraw, str(row["id"]), policies.who(by), comment)
        assert await ran(policies, address, call_id) == "denied"
    return address


async def voided(policies: Policies) -> None:
    """An approval that the person gave, and that a change of the policy has made void."""
    harness = policies.harness
    address, request = await policies.request_approval("plain")
    await harness.decide(request.request_id, by=NAME, comment=SAID)
    old = await harness.version("plain")
    await policies.republish({"named": POLICY, "plain": {"quorum": 2}})
    assert await ran(policies, address, "t1.0", "plain", old) == "planned"
    await policies.republish({"named": POLICY})
    await harness.finish(address)


async def open_request(policies: Policies, address: TurnAddress, gated: GatedCall, **kept: object) -> RequestRef:
    harness = policies.harness
    ask = OpenRequest(address=address, agent_id="desk", agent_version=await harness.version(), gated=(gated,), **kept)
    return (await harness.activity(ApprovalActivities(harness.deps).open, ask)).requests[0]


async def paused_again(policies: Policies) -> TurnAddress:
    """A turn that continued after a rejection with a note about it, and paused again with all its state."""
    harness = policies.harness
    address = await harness.plan(("pay", {"amount": 1}), ("pay", {"amount": 2}))
    (refused,) = await harness.open(address, "t1.0")
    await harness.decide(refused.request_id, Decision.REJECT, by=NAME, comment=SAID)
    note = MessageRef(role=Role.SYSTEM, text=refusal_text(await policies.verdict(address, refused)))
    skill = MessageRef(role=Role.SYSTEM, text="a skill's text", skill_id="s")
    asked = MessageRef(id=refused.request_id, role=Role.USER, text="not kept")
    kept = snapshot(STATE, [asked, skill, note], complete=True)
    await open_request(policies, address, GatedCall(call_id="t1.1", tool="pay", rule="t"), snapshot=kept)
    await harness.finish(address)
    return address


async def repeated(policies: Policies) -> TurnAddress:
    """A turn that made a call again after the user had rejected it."""
    harness = policies.harness
    address, _ = await harness.start(*[Line("asking", [("pay", {"amount": 1})])] * 2)
    for step in (1, 2):
        await harness.activity(ModelActivities(harness.deps).complete, await harness.model_call(address, step))
        if step == 1:
            (refused,) = await harness.open(address, "t1.0")
            await harness.decide(refused.request_id, Decision.REJECT, by=NAME, comment=SAID)
    assert len(told := await answers(harness, address, "t2.0")) == 3 and all(MARK in each for each in told)
    await harness.finish(address)
    return address


async def not_raised(policies: Policies) -> TurnAddress:
    """A turn that requested a higher limit, and ended because the user did not raise it."""
    harness = policies.harness
    address = await harness.plan(("pay", {}))
    gated = GatedCall(call_id="t1.limit", tool="", rule="limit", kind=RequestKind.LIMIT, message="spent")
    request = await open_request(policies, address, gated)
    await harness.decide(request.request_id, Decision.REJECT, by=NAME, comment=SAID)
    asked = VerdictsRequest(address=address, requests=(request,))
    ending = raise_limits(STATE, await harness.activity(ApprovalActivities(harness.deps).read, asked))
    await harness.finish(address, TurnStatus.LIMITED, problem=ending["error"])
    return address


async def handed_on(policies: Policies) -> None:
    """Requests whose policy names the user: reassigned by others, claimed, decided by a delegate."""
    harness, her_id = policies.harness, policies.harness.people[NAME].user_id
    for handing in ("reassigned", "released", "seated"):
        address, request = await policies.request_approval("named")
        async with harness.db.transaction("local") as tx:
            if handing == "reassigned":
                await assignments.reassign(tx, request.request_id, policies.who("bob"), "carl", "")
            elif handing == "released":
                await assignments.claim(tx, request.request_id, policies.who(NAME), 60)
                await assignments.release(tx, request.request_id, policies.who("admin"))
            else:
                await assignments.add_delegation(tx, her_id, NAME, "carl", TOMORROW, OWN_CREDENTIAL)
        if handing == "seated":
            await harness.decide(request.request_id, Decision.REJECT, by="carl", comment=OTHERS)
        async with harness.db.transaction("local") as tx:
            answer = jsonable_encoder(await views.get_approval(tx, request.request_id, None))
            seen = {key: answer[key] for key in ("id", "reviewers", "fallback")}
            await tx.execute(ANSWERED, harness.people["reviewer"].user_id, seen)
        await harness.finish(address)


async def answers(harness: Harness, turn: TurnAddress, call_id: str) -> list[str]:
    """The texts about a denied call for the model, the ledger and the readers of a turn."""
    found = await harness.rows(
        "SELECT m.content, k.outcome #>> '{message,text}' AS outcome, e.data->>'result' AS shown FROM tool_calls k "
        "JOIN messages m ON m.turn_id = k.turn_id AND m.call_id = k.call_id AND m.role = 'tool' "
        "JOIN events e ON e.turn_id = k.turn_id AND e.call_id = k.call_id AND e.kind = 'tool.denied' "
        "AND e.data ? 'result' WHERE k.turn_id = $1 AND k.call_id = $2",
        turn.turn_id,
        call_id,
    )
    return [str(text) for row in found for text in row.values()]


async def test_no_message_in_the_turns_of_others_is_left(policies: Policies, admin: asyncpg.Connection) -> None:
    harness = policies.harness
    turns = [await denied(policies, how) for how in (Decision.REJECT, Decision.RESPOND)]
    turns.append(await withdrawn(policies))
    await voided(policies)
    paused, limited, again = await paused_again(policies), await not_raised(policies), await repeated(policies)
    await handed_on(policies)
    await refused_whole(policies)
    for turn in turns:
        await harness.finish(turn)
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
    assert len(await answers(harness, again, "t2.0")) == 3
    kept = await harness.value("SELECT snapshot FROM approvals WHERE turn_id = $1 AND call_id = 't1.1'", paused.turn_id)
    assert [sorted(message) for message in kept["messages"]] == [["id", "role"], ["role", "skill_id", "text"], ["role"]]
    problem = await harness.value("SELECT problem FROM turns WHERE id = $1", limited.turn_id)
    assert "reviewer" in problem["message"], "the role replaces the name"
    seats = await harness.rows("SELECT record FROM approval_votes WHERE record ? 'for'")
    assert [(row["record"]["for"], row["record"]["comment"]) for row in seats] == [(done["name"], OTHERS)]


async def test_an_interrupted_erasure_still_covers_the_turns_that_name_its_user(
    policies: Policies, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, name = policies.harness, f"{MARK}.c"
    await person(harness, name)
    await policies.republish({"named": {"reviewers": [name, "bob"]}})
    address, request = await policies.request_approval("named")
    async with harness.db.transaction("local") as tx:
        await assignments.add_delegation(tx, harness.people[name].user_id, name, "ann", TOMORROW, OWN_CREDENTIAL)
    await harness.decide(request.request_id, by="ann")
    named = "UPDATE events SET data = jsonb_build_object('assignee', $2::text) WHERE turn_id = $1 AND seq = 2"
    await harness.write(named, address.turn_id, name)
    await harness.finish(address)
    await policies.republish({})
    with monkeypatch.context() as patch:
        patch.setattr("perdure.store.identity.erasure.OTHER_USERS_STEPS", ())
        patch.setattr("perdure.store.identity.erasure._end_erasure", None)
        with pytest.raises(TypeError):
            await erase(harness.db, "local", name, harness.people["admin"].user_id)
    assert await marked(admin, name) >= {"approval_votes.record", "approvals.decision", "events.data", "users.name"}
    assert (await verify_chain(harness.db, "local", KEYRING)).ok, "half-way, too"
    await erase(harness.db, "local", name, harness.people["admin"].user_id)
    assert await said_in(admin, name) == set()
    assert (await verify_chain(harness.db, "local", KEYRING)).ok


TAKEN = "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $1 WHERE data IS NOT NULL AND audit_id IN "


async def erased(harness: Harness, name: str) -> tuple[str, int]:
    """A person with a turn, erased: the id, and the row that accounts for it."""
    made = await person(harness, name)
    own = await harness.plan(("pay", {"amount": 5}), by=name)
    await harness.open(own, "t1.0")
    await harness.finish(own)
    await erase(harness.db, "local", name, harness.people["admin"].user_id)
    begun = "SELECT id FROM audit WHERE kind = 'user.erasure_begun' AND subject = $1"
    return made.user_id, await harness.value(begun, made.user_id)


async def verified(harness: Harness) -> Report:
    return await verify_chain(harness.db, "local", KEYRING, [await exported_head(harness.db, "local")])


async def test_missing_bodies_of_a_turn_that_was_moved_to_an_erased_user_are_a_fault(harness: Harness) -> None:
    user_id, begun = await erased(harness, "victor")
    victim, request = await harness.request_approval(amount=1_000_000)
    await harness.decide(request.request_id, comment="I allow a million")
    await harness.run_tool(victim)
    await harness.finish(victim)
    before = await verified(harness)
    assert before.ok and before.erased
    await harness.write("UPDATE turns SET user_id = $2 WHERE id = $1", victim.turn_id, user_id)
    taken = await harness.write(TAKEN + "(SELECT id FROM audit WHERE turn_id = $2)", begun, victim.turn_id)
    after = await verified(harness)
    assert {fault.kind for fault in after.faults} == {FaultKind.BODY_MISSING}
    assert f"UPDATE {after.faults_found}" == taken and after.erased == before.erased


async def test_audit_rows_of_an_erasure_keep_their_bodies_and_explain_no_other_user(harness: Harness) -> None:
    user_id, begun = await erased(harness, "walter")
    other = await person(harness, "yvonne")
    before = await verified(harness)
    await harness.write(TAKEN + "(SELECT id FROM audit WHERE subject = $2)", begun, other.user_id)
    assert (await verified(harness)).faults_found == before.faults_found + 2
    taken = await harness.write(TAKEN + "(SELECT id FROM audit WHERE subject = $2)", begun, user_id)
    after = await verified(harness)
    assert taken == "UPDATE 2", "that it began and that it was done"
    assert after.faults_found > before.faults_found + 4, "and all that went with the person"
    assert {fault.kind for fault in after.faults} == {fault.kind for fault in before.faults} | {FaultKind.BODY_MISSING}


async def test_a_verification_during_erasures_finds_no_fault(harness: Harness) -> None:
    before = (await verified(harness)).faults_found
    names = [f"zoe{number}" for number in range(4)]
    done = asyncio.gather(*(erased(harness, name) for name in names))
    looked = 0
    while not done.done():
        assert (await verify_chain(harness.db, "local", KEYRING)).faults_found == before
        looked += 1
    await done
    assert looked > 1


async def test_a_turn_during_its_users_erasure_is_counted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (await verified(harness)).faults_found
    name = "ursula"
    made = await person(harness, name)
    last, late = erasure._end_erasure, list[TurnAddress]()

    async def ends(*given: Any) -> None:
        address, _ = await harness.start(Line("late"), by=name)
        await harness.write("UPDATE turns SET answer = 'late' WHERE id = $1", address.turn_id)
        async with harness.db.transaction("local") as tx:
            await audit.record(tx, "thing.done", address.turn_id, {"of": "it"}, actor=None, turn_id=address.turn_id)
        await harness.finish(address)
        late.append(address)
        await last(*given)

    with monkeypatch.context() as patch:
        patch.setattr(erasure, "_end_erasure", ends)
        await erase(harness.db, "local", name, harness.people["admin"].user_id)
    (address,) = late
    told = await harness.rows("SELECT content FROM messages WHERE turn_id = $1", address.turn_id)
    assert {row["content"] for row in told} == {""}
    assert await harness.value("SELECT data FROM audit_trail WHERE subject = $1", address.turn_id) is None
    assert (await verified(harness)).faults_found == before
    begun = "SELECT count(*) FROM audit WHERE kind = 'user.erasure_begun' AND subject = $1"
    assert await harness.value(begun, made.user_id) == 2, "what came in between was announced, too"


async def test_the_live_texts_of_an_erased_users_conversations_are_gone(harness: Harness) -> None:
    said, live = {}, harness.deps.live
    await person(harness, "quentin")
    for name in ("quentin", "requester"):
        address, _ = await harness.start(Line("hello"), by=name)
        assert await live.append(address, "m1", epoch=1, sequence=0, text=f"hello {name}") is AppendResult.ACCEPTED
        await harness.finish(address)
        said[name] = address.conversation_id
    await erase(harness.db, "local", "quentin", harness.people["admin"].user_id, live)
    left = {name: (await live.tokens("local", said[name], "", "0-0")).entries for name in said}
    assert {name: [entry.text for entry in entries] for name, entries in left.items()} == {
        "quentin": [], "requester": ["hello requester"],
    }  # fmt: skip


@contextmanager
def name_erased() -> Iterator[None]:
    with pytest.raises(CallerError) as refused:
        yield
    assert (refused.value.code, refused.value.http) == ("name_erased", 409)


async def test_no_user_gets_the_name_of_an_erased_one_not_even_at_the_next_start(
    harness: Harness, urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await erased(harness, "peter")
    actor = harness.people["admin"].user_id
    await erase(harness.db, "local", "reviewer", actor)
    given = {"DATABASE_OWNER_URL": urls.owner, "PERDURE_HOME": str(tmp_path), "PERDURE_LOCAL": "true"}
    settings = Settings(_env_file=None, **given)  # type: ignore[arg-type]
    rotated = Keyring(Keyring.of("a newer key that is before the old one").keys + KEYRING.keys)
    for keyring in (KEYRING, rotated):
        with name_erased():
            async with as_owner(urls.owner, "local") as owner, owner.transaction():
                await users.ensure_user(owner, "local", "peter", ["reviewer"], "t", keyring)
    with name_erased():
        await in_transaction(harness.db, users.add_user, "peter", "", ("reviewer",), actor)
    with name_erased():
        await bootstrap(settings, admin="peter")
    assert set((await bootstrap(settings)).tokens) == {"requester", "reviewer", "admin"}
    assert "reviewer" in capsys.readouterr().err
    assert (await in_transaction(harness.db, users.add_user, "petra", "", ("reviewer",), actor)).name == "petra"
    names = {row["name"] for row in await harness.rows("SELECT name FROM users WHERE disabled_at IS NULL")}
    assert {"requester", "admin", "petra"} <= names and not {"reviewer", "peter"} & names
