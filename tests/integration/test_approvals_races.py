"""Many who decide at once, against each other, against the clock, against the end of the turn: one of them wins."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from perdure.activities.approvals import ApprovalActivities
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.approvals import RequestRef, VerdictState
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import FinishRequest, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals.decisions import Decided
from perdure.store.database import new_id
from perdure.store.turns.finish import finish
from tests.conftest import Person
from tests.harness import Harness, gathered
from tests.scale import sized

RACERS = 16
TURNS = sized(10, 2)
APPROVALS = TURNS * 10


async def opened(harness: Harness, turns: int, calls: int) -> dict[str, TurnAddress]:

    async def one() -> dict[str, TurnAddress]:
        address = await harness.plan(*(("pay", {"amount": n + 1}) for n in range(calls)), by="requester")
        requests = await harness.open(address, *(f"t1.{n}" for n in range(calls)))
        return {request.request_id: address for request in requests}

    made = await asyncio.gather(*(one() for _ in range(turns)))
    return {request: address for each in made for request, address in each.items()}


@pytest.fixture(scope="module")
async def crowd(harness: Harness) -> list[str]:
    """Reviewers, one of them the requester, who has the role here too."""
    names = ["requester"]
    async with harness.db.transaction("local") as tx:
        await tx.execute("UPDATE users SET roles = '{requester,reviewer}' WHERE name = 'requester'")
        for number in range(RACERS - 1):
            user_id, name = new_id(), f"reviewer-{number}"
            await tx.execute(
                "INSERT INTO users (id, tenant_id, name, roles) VALUES ($1, 'local', $2, '{reviewer}')", user_id, name
            )
            harness.people[name] = Person("local", user_id, name, frozenset({"reviewer"}), "")
            names.append(name)
    harness.people["requester"] = replace(harness.people["requester"], roles=frozenset({"requester", "reviewer"}))
    return names


@pytest.mark.sized
async def test_of_sixteen_racing_deciders_one_decides_each_of_many_approvals(
    harness: Harness, crowd: list[str]
) -> None:
    approvals = await opened(harness, TURNS, 10)
    assert len(approvals) == APPROVALS
    chance = random.Random(7)
    work = [(approval, name) for approval in approvals for name in crowd]
    chance.shuffle(work)
    decisions = [chance.choice([Decision.APPROVE, Decision.REJECT]) for _ in work]
    sent = zip(work, decisions, strict=True)
    answers = await gathered(
        *(harness.decide(each, decision, by=name, comment=name) for (each, name), decision in sent)
    )
    told = zip(answers, work, strict=True)
    won = [(said[0].approval_id, name, said[0].status) for said, (_, name) in told if isinstance(said, tuple)]
    lost = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(won) == APPROVALS
    assert {approval for approval, _, _ in won} == set(approvals)
    assert "requester" not in {name for _, name, _ in won}
    assert Counter(each.code for each in lost if isinstance(each, CallerError)) == {
        "already_decided": APPROVALS * (RACERS - 2),
        "own_request": APPROVALS,
    }
    rows = await harness.rows(
        "SELECT a.id, a.status, a.version, u.name FROM approvals a JOIN users u ON u.id = a.decided_by "
        "WHERE a.id = ANY($1)",
        list(approvals),
    )
    assert sorted((str(row["id"]), row["name"], row["status"]) for row in rows) == sorted(won)
    assert {row["version"] for row in rows} == {2}
    audited = await harness.rows(
        "SELECT subject FROM audit WHERE kind = 'approval.decided' AND subject = ANY($1)", list(approvals)
    )
    assert sorted(row["subject"] for row in audited) == sorted(approvals)
    bells = await harness.rows("SELECT request_id FROM outbox WHERE request_id = ANY($1)", list(approvals))
    assert sorted(row["request_id"] for row in bells) == sorted(approvals)


async def test_a_decision_and_the_expiry_never_both_count(harness: Harness) -> None:
    approvals = await opened(harness, 8, 5)
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
            await read(harness, address, approvals)

    turns = {address.turn_id: address for address in approvals.values()}
    said, _ = await asyncio.gather(
        asyncio.gather(*map(decides, approvals, offsets)), asyncio.gather(*map(reads, turns.values()))
    )
    for address in turns.values():
        await read(harness, address, approvals)
    found = await harness.rows("SELECT id, status FROM approvals WHERE id = ANY($1)", list(approvals))
    rows = {str(row["id"]): row["status"] for row in found}
    for approval, answer in zip(approvals, said, strict=True):
        assert (answer, rows[approval]) in {("approved", "approved"), ("approval_expired", "expired")}
    assert set(rows.values()) == {"approved", "expired"}, "the race fell both ways"
    denied = await harness.rows("SELECT data FROM events WHERE kind = 'tool.denied' AND turn_id = ANY($1)", [*turns])
    assert len(denied) == sum(status == "expired" for status in rows.values()), "each expiry is said once"


async def read(harness: Harness, address: TurnAddress, approvals: dict[str, TurnAddress]) -> list[VerdictState]:
    rows = await harness.rows("SELECT id, call_id FROM approvals WHERE turn_id = $1 ORDER BY call_id", address.turn_id)
    requests = tuple(RequestRef(request_id=str(row["id"]), call_id=row["call_id"], tool="pay") for row in rows)
    answer = await harness.activity(
        ApprovalActivities(harness.deps).read, VerdictsRequest(address=address, requests=requests)
    )
    return [verdict.state for verdict in answer.verdicts]


@pytest.mark.sized
async def test_a_decision_and_the_end_of_the_turn_leave_one_truth(harness: Harness) -> None:
    approvals = await opened(harness, sized(30, 8), 1)

    async def ends(address: TurnAddress) -> None:
        async with harness.db.transaction("local") as tx:
            await finish(tx, FinishRequest(address=address, status=TurnStatus.STOPPED))

    answers = await gathered(
        *(harness.decide(approval) for approval in approvals), *(ends(address) for address in approvals.values())
    )
    for (approval, address), answer in zip(approvals.items(), answers, strict=False):
        status = await harness.value("SELECT status FROM approvals WHERE id = $1", approval)
        assert status == "cancelled", "an approval that was not reserved is void with its turn"
        if isinstance(answer, tuple):
            assert isinstance(answer[0], Decided)
        else:
            assert isinstance(answer, CallerError) and answer.code == "already_decided"
        assert (await harness.run_tool(address)).problem is not None
    assert not [each for each in answers[len(approvals) :] if each is not None]
    turns = [address.turn_id for address in approvals.values()]
    assert await harness.value("SELECT count(*) FROM turns WHERE id = ANY($1) AND ended_at IS NULL", turns) == 0
