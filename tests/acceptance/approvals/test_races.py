"""Sixteen users decide on each approval at once through two API processes, its requester among them."""

import asyncio
import random
from collections import Counter

import pytest

from perdure.local import DataParts
from tests.acceptance.approvals.conftest import Answer, Person, decide, with_tokens
from tests.acceptance.machine import Others
from tests.conftest import Urls
from tests.harness import Harness
from tests.integration.test_api_process import served_with
from tests.scale import NO_RATE_LIMIT, PATIENCE_SECONDS, sized
from tests.served_turns import MANY

pytestmark = [pytest.mark.soak, pytest.mark.timeout(PATIENCE_SECONDS)]

APPROVALS = sized(2_000, 25)
DECIDERS = 16
APPROVALS_AT_ONCE = 4
"""64 open requests."""
AT_ONCE = 8


async def opened(harness: Harness, count: int) -> dict[str, str]:
    """Approvals of as many turns, with their digests."""
    digests: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            address = await harness.plan(("pay", {"amount": number + 1}), by="requester", caps=MANY)
            (request,) = await harness.open(address, "t1.0")
            digests[request.request_id] = str((await harness.approval_row(address))["digest"])

    await asyncio.gather(*(one(number) for number in range(count)))
    return digests


async def race(people: list[Person], digests: dict[str, str], chance: random.Random) -> list[Answer]:
    """All deciders on every approval, a few approvals at a time."""
    answers: list[Answer] = []
    waiting = list(digests.items())

    async def worker() -> None:
        while waiting:
            approval, digest = waiting.pop()
            attempts = [
                decide(person, approval, chance.choice(("approve", "reject")), digest, f"by {person.name}")
                for person in chance.sample(people, len(people))
            ]
            answers.extend(await asyncio.gather(*attempts))

    await asyncio.gather(*(worker() for _ in range(APPROVALS_AT_ONCE)))
    return answers


async def assert_decided_once(harness: Harness, won: dict[str, Answer]) -> None:
    """Checks that the records have one decision and its reviewer, who is not the requester."""
    rows = await harness.rows(
        "SELECT a.id::text, a.status, a.version, u.name, (SELECT count(*) FROM audit x WHERE x.subject = a.id::text "
        "AND x.kind = 'approval.decided') AS audited FROM approvals a JOIN users u ON u.id = a.decided_by "
        "WHERE a.id = ANY($1)",
        list(won),
    )
    answers = {approval: (answer.by, answer.says) for approval, answer in won.items()}
    assert {row["id"]: (row["name"], row["status"]) for row in rows} == answers
    assert {(row["version"], row["audited"]) for row in rows} == {(2, 1)}, "decided once, and said once"
    assert "requester" not in {row["name"] for row in rows}


async def test_racing_reviewers_decide_once_never_the_requester(harness: Harness, parts: DataParts, urls: Urls) -> None:
    digests = await opened(harness, APPROVALS)
    names = ["requester", *(f"decider-{number}" for number in range(DECIDERS - 1))]
    async with (
        served_with(parts, urls, **NO_RATE_LIMIT) as one,
        served_with(parts, urls, **NO_RATE_LIMIT) as other,
        with_tokens(harness.people["admin"].token, names, [one.url, other.url]) as people,
    ):
        with Others() as clocked:
            answers = await race(people, digests, random.Random(5))
    won = {answer.approval_id: answer for answer in answers if answer.status == 200}
    summary = f"{APPROVALS} approvals, {len(answers)} attempts in {clocked}: {len(answers) / clocked.seconds:.0f}/s"
    print(f"\nracing: {summary}; {len(won)} decided")
    assert Counter((answer.status, answer.says) for answer in answers if answer.status != 200) == {
        (403, "own_request"): APPROVALS,
        (409, "already_decided"): APPROVALS * (DECIDERS - 2),
    }
    assert len(won) == APPROVALS
    await assert_decided_once(harness, won)
