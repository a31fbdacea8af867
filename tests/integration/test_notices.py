"""Notices of approvals on their way out: written with what they tell of, signed, tried again, kept to named hosts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from perdure.activities.approvals import ApprovalActivities
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.approvals import RequestRef
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decision
from perdure.core.delivery import MOST_ATTEMPTS
from perdure.store import audit
from perdure.store.database import Database
from perdure.store.delivery import webhooks
from perdure.worker import webhooks as posts
from perdure.worker.webhooks import WebhookEgress, WebhookSender, send_deliveries
from tests.doubles.receiver import Receiver
from tests.harness import Harness

Patch = pytest.MonkeyPatch
PEOPLE = "https://perdure.test"


@dataclass(slots=True)
class Noticed:
    """A desk whose approvals a receiver is told of."""

    harness: Harness
    relay: Database
    receiver: Receiver
    post: WebhookSender

    async def add(self, url: str, *, with_args: bool = False) -> str:
        admin = self.harness.people["admin"]
        async with self.harness.db.transaction("local") as tx:
            _, secret = await webhooks.add_webhook(tx, url, admin.user_id, admin.name, with_args=with_args)
        return secret

    async def end_all(self) -> None:
        async with self.harness.db.transaction("local") as tx:
            for webhook in await webhooks.list_webhooks(tx):
                await webhooks.end_webhook(tx, webhook.id, self.harness.people["admin"].user_id)

    async def asked(self) -> tuple[TurnAddress, RequestRef]:
        address = await self.harness.plan(("pay", {"amount": 7}))
        (request,) = await self.harness.open(address, "t1.0")
        return address, request

    async def deliver(self) -> int:
        return await send_deliveries(self.relay, self.post, PEOPLE)

    async def time_passes(self) -> None:
        await self.harness.write("UPDATE notices SET due_at = now()")

    async def waiting(self) -> list[dict[str, object]]:
        sql = "SELECT problem, gave_up_at IS NOT NULL AS gave_up, extract(epoch FROM due_at - now())::float AS seconds "
        return [dict(row) for row in await self.harness.rows(sql + "FROM notices ORDER BY at")]


@pytest.fixture
async def noticed(harness: Harness, relay: Database) -> AsyncIterator[Noticed]:
    receiver = await Receiver().start()
    port = urlsplit(receiver.url).port
    made = Noticed(
        harness, relay, receiver, WebhookSender(WebhookEgress((f"127.0.0.1:{port}", "localhost", "*.example.org")))
    )
    receiver.secret = await made.add(receiver.url)
    yield made
    await made.end_all()
    await made.post.close()
    await receiver.stop()


async def test_a_receiver_is_told_of_the_request_and_of_what_became_of_it(noticed: Noticed) -> None:
    _, request = await noticed.asked()
    assert await noticed.deliver() == 1
    await noticed.harness.decide(request.request_id, Decision.REJECT, comment="no")
    assert await noticed.deliver() == 1
    first, second = noticed.receiver.notices
    assert (first["event"], first["approval"]["status"]) == ("approval.opened", "pending")
    assert (second["event"], second["approval"]["status"]) == ("approval.decided", "rejected")
    assert (second["approval"]["decision"], second["approval"]["decided_by"]) == ("reject", "reviewer")
    assert second["approval"]["version"] > first["approval"]["version"], "by which a receiver tells what is newer"
    assert first["url"] == f"{PEOPLE}/review/{request.request_id}"
    told = noticed.receiver.requests[0][1].decode()
    assert "amount" not in told and "digest" not in told, "what is to be decided is looked at on its page"
    assert await noticed.deliver() == 0 and await noticed.waiting() == []


async def test_what_does_not_get_through_is_tried_again_later_and_later_and_then_given_up(noticed: Noticed) -> None:
    noticed.receiver.answers = [500, 302, 404, 500]
    await noticed.asked()
    waits = []
    for status in (500, 302, 404):
        assert await noticed.deliver() == 1
        (waiting,) = await noticed.waiting()
        assert str(status) in str(waiting["problem"])
        waits.append(float(str(waiting["seconds"])))
        assert await noticed.deliver() == 0, "not before its time"
        await noticed.time_passes()
    assert 0 < waits[0] <= 5 < waits[1] <= 10 < waits[2] <= 20
    assert len(noticed.receiver.requests) == 3, "a redirect is not followed"
    assert len({headers["x-perdure-delivery"] for headers, _ in noticed.receiver.requests}) == 1, "it is one delivery"
    assert not noticed.receiver.refused, "each attempt is signed for its own time"
    await noticed.harness.write("UPDATE notices SET attempts = $1", MOST_ATTEMPTS - 1)
    await noticed.deliver()
    (waiting,) = await noticed.waiting()
    assert waiting["gave_up"] is True
    await noticed.time_passes()
    assert await noticed.deliver() == 0
    async with noticed.harness.db.transaction("local") as tx:
        (shown,) = await webhooks.list_webhooks(tx)
    assert (shown.waiting, shown.given_up) == (0, 1) and "500" in str(shown.problem)


async def test_a_receiver_that_says_nothing_holds_up_no_other(noticed: Noticed, monkeypatch: Patch) -> None:
    monkeypatch.setattr(posts, "TIMEOUT_SECONDS", 2.0)
    other = await Receiver().start()
    other.secret = await noticed.add(other.url.replace("127.0.0.1", "localhost"))
    noticed.receiver.stalls = True
    await noticed.asked()
    sent, notices = await noticed.deliver(), other.notices
    await other.stop()
    assert sent == 2 and [notice["event"] for notice in notices] == ["approval.opened"]
    (waiting,) = await noticed.waiting()
    assert "2" in str(waiting["problem"])


async def test_a_relay_that_was_killed_while_sending_leaves_its_notices_to_the_next(noticed: Noticed) -> None:
    await noticed.asked()
    claimed = await noticed.relay.pool.fetch("UPDATE notices SET due_at = now() + interval '60 seconds' RETURNING id")
    assert len(claimed) == 1 and await noticed.deliver() == 0
    await noticed.time_passes()
    assert await noticed.deliver() == len(noticed.receiver.notices) == 1


async def test_a_notice_is_written_with_what_it_tells_of_or_not_at_all(noticed: Noticed) -> None:
    _, request = await noticed.asked()
    await noticed.deliver()
    with pytest.raises(RuntimeError):
        async with noticed.harness.db.transaction("local") as tx:
            await audit.record(tx, "approval.decided", request.request_id, {}, actor=None, turn_id=None)
            assert await tx.fetchval("SELECT count(*) FROM notices") == 1
            raise RuntimeError("cut off")
    assert await noticed.waiting() == []


async def test_an_expiry_is_told_and_an_ended_webhook_is_told_nothing(noticed: Noticed) -> None:
    address, request = await noticed.asked()
    await noticed.deliver()
    await noticed.harness.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request.request_id)
    ask = VerdictsRequest(address=address, requests=(request,))
    await noticed.harness.activity(ApprovalActivities(noticed.harness.deps).read, ask)
    await noticed.deliver()
    last = noticed.receiver.notices[-1]
    assert (last["event"], last["approval"]["status"]) == ("approval.expired", "expired")
    await noticed.end_all()
    await noticed.asked()
    assert await noticed.waiting() == []


async def test_what_leads_elsewhere_is_not_gone_to(noticed: Noticed, monkeypatch: Patch) -> None:
    sent: list[object] = []

    async def posted(*given: object) -> None:
        sent.append(given)

    monkeypatch.setattr(WebhookSender, "_post", posted)
    await noticed.end_all()
    for url in (  # each was allowed once, and is no longer
        "http://127.0.0.1:9/hook",
        "https://other.test/hook",
        "http://hooks.example.org/hook",
        "https://169.254.169.254/latest",
        "https://nowhere.example.org/",
    ):
        await noticed.add(url)
    await noticed.asked()
    await noticed.deliver()
    problems = [waiting["problem"] for waiting in await noticed.waiting()]
    assert len(problems) == 5 and all(problems) and not sent
    await noticed.harness.write("UPDATE notices SET problem = NULL")
    for address in ("127.0.0.1", "169.254.169.254", "fd00::7"):  # a name that stands for this machine, or the cloud's

        async def stands_for(*_: object, address: str = address, **__: object) -> list[tuple[object, ...]]:
            return [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", (address, 443))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", stands_for)
        await noticed.time_passes()
        await noticed.deliver()
        assert all(waiting["problem"] for waiting in await noticed.waiting()) and not sent, address


async def test_what_has_a_low_risk_carries_its_arguments_where_the_administrator_wants_it(noticed: Noticed) -> None:
    await noticed.end_all()
    noticed.receiver.secret = await noticed.add(noticed.receiver.url, with_args=True)
    _, request = await noticed.asked()
    await noticed.deliver()
    await noticed.harness.write("UPDATE approvals SET risk = 'low' WHERE id = $1", request.request_id)
    await noticed.harness.decide(request.request_id)
    await noticed.deliver()
    high, low = (notice["approval"] for notice in noticed.receiver.notices)
    assert "args" not in high
    assert low["args"] == {"amount": 7} and len(low["digest"]) == 64
