"""Sixteen people decide on each approval at the same moment, through two API processes; one of them asked for it."""

import asyncio
import os
import random
from collections import Counter

import pytest

from perdure.local import DataParts
from tests.acceptance.approvals.deciders import Answer, Person, api_processes, decide, with_tokens
from tests.conftest import Urls
from tests.harness import Harness
from tests.scale import NO_RATE_LIMIT, PATIENCE_SECONDS, Clocked, sized
from tests.served import MANY

pytestmark = pytest.mark.soak

APPROVALS = sized(2_000, 25)
DECIDERS = 16
AT_ONCE = 4
"""Approvals that are raced for at a time: 64 requests under way."""


async def opened(harness: Harness, count: int) -> dict[str, str]:
    """Approvals of as many turns, with their digests."""
    digests: dict[str, str] = {}
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with gate:
            address = await harness.plan(("pay", {"amount": number + 1}), by="requester", caps=MANY)
            (request,) = await harness.open(address, "t1.0")
            digests[request.request_id] = str((await harness.approval_row(address))["digest"])

    await asyncio.gather(*(one(number) for number in range(count)))
    return digests


async def race(people: list[Person], digests: dict[str, str], chance: random.Random) -> list[Answer]:
    """Everybody on every approval, a few approvals at a time."""
    answers: list[Answer] = []
    waiting = list(digests.items())

    async def worker() -> None:
        while waiting:
            approval_id, digest = waiting.pop()
            order = chance.sample(people, len(people))
            answers.extend(
                await asyncio.gather(
                    *(
                        decide(person, approval_id, chance.choice(("approve", "reject")), digest, f"by {person.name}")
                        for person in order
                    )
                )
            )

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return answers


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_of_sixteen_racing_deciders_one_decides_each_approval_and_never_its_requester(
    harness: Harness, parts: DataParts, urls: Urls
) -> None:
    assert parts.redis_url is not None and parts.temporal is not None
    environ = {
        **os.environ,
        **NO_RATE_LIMIT,
        "DATABASE_URL": urls.app,
        "REDIS_URL": parts.redis_url,
        "TEMPORAL_ADDRESS": parts.temporal.address,
        "TEMPORAL_NAMESPACE": parts.temporal.namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "LOG_LEVEL": "warning",
    }
    digests = await opened(harness, APPROVALS)
    names = ["requester", *(f"decider-{number}" for number in range(DECIDERS - 1))]
    async with (
        api_processes(2, environ) as apis,
        with_tokens(harness.people["admin"].token, names, [api.url for api in apis]) as people,
    ):
        with Clocked() as clocked:
            answers = await race(people, digests, random.Random(5))
    won = {answer.approval_id: answer for answer in answers if answer.status == 200}
    said = f"{APPROVALS} approvals, {len(answers)} attempts in {clocked}: {len(answers) / clocked.seconds:.0f}/s"
    print(f"\nracing: {said}; {len(won)} decided")
    assert Counter((answer.status, answer.says) for answer in answers if answer.status != 200) == {
        (403, "own_request"): APPROVALS,
        (409, "already_decided"): APPROVALS * (DECIDERS - 2),
    }
    assert sum(answer.status == 200 for answer in answers) == len(won) == APPROVALS
    rows = await harness.rows(
        "SELECT a.id::text, a.status, a.version, u.name, (SELECT count(*) FROM audit x WHERE x.subject = a.id::text "
        "AND x.kind = 'approval.decided') AS audited FROM approvals a JOIN users u ON u.id = a.decided_by "
        "WHERE a.id = ANY($1)",
        list(digests),
    )
    assert {row["id"]: (row["name"], row["status"]) for row in rows} == {
        approval_id: (answer.by, answer.says) for approval_id, answer in won.items()
    }
    assert {(row["version"], row["audited"]) for row in rows} == {(2, 1)}, "decided once, and said once"
    assert "requester" not in {row["name"] for row in rows}
