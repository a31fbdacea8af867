"""The messages beside a turn: wake signals and signed notices, stored in the transaction that causes them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.approvals import ApprovalActivities
from perdure.contracts.activities import VerdictsRequest
from perdure.contracts.approvals import RequestRef
from perdure.contracts.ids import turn_workflow_id
from perdure.contracts.turns import TurnAddress
from perdure.core.approvals.decisions import Decision
from perdure.core.delivery import MAX_ATTEMPTS
from perdure.core.turns import OnBusy
from perdure.store import audit
from perdure.store.database import Database, new_id
from perdure.store.delivery import outbox, webhooks
from perdure.store.delivery.outbox import Note, Wake
from perdure.temporal.workflow_client import TASK_TIMEOUT, Notifier
from perdure.worker import outbox as loop
from perdure.worker import webhooks as posts
from perdure.worker.outbox import START_ATTEMPTS, deliver_due, run_relay
from perdure.worker.webhooks import WebhookEgress, WebhookSender, send_deliveries
from tests.conftest import Urls
from tests.doubles.message_script import Line
from tests.doubles.webhook_receiver import Receiver
from tests.eventually import until
from tests.harness import Harness

STATUS = "SELECT status FROM turns WHERE id = $1"
Patch = pytest.MonkeyPatch
PEOPLE = "https://perdure.test"


@pytest.fixture(autouse=True)
async def nothing_due(relay: Database) -> None:
    await relay.pool.execute("DELETE FROM perdure.outbox")


class Heard(Notifier):
    """A notifier that only counts, and fails as often as the test sets."""

    def __init__(
        self, client: Client, db: Database, fails: int = 0, status: RPCStatusCode = RPCStatusCode.UNAVAILABLE
    ) -> None:
        super().__init__(client, db)
        self.fails, self.status, self.signaled = fails, status, Counter[tuple[Wake, str]]()

    async def deliver(self, note: Note) -> None:
        if self.fails:
            self.fails -= 1
            raise RPCError("away", self.status, b"")
        self.signaled[note.kind, note.turn_id] += 1


async def due(relay: Database, notifier: Notifier) -> int:
    """Time passes, and the relay looks."""
    await relay.pool.execute("UPDATE perdure.outbox SET due_at = now() - interval '1 ms'")
    return await deliver_due(relay, notifier)


async def put(harness: Harness, kind: Wake, *turn_ids: str) -> list[Note]:
    async with harness.db.transaction("local") as tx:
        return [await outbox.put(tx, "local", kind, turn_id) for turn_id in turn_ids]


async def outbox_count(relay: Database) -> int:
    return int(await relay.pool.fetchval("SELECT count(*) FROM perdure.outbox"))


async def test_the_relay_starts_a_turn_whose_starter_died(harness: Harness, relay: Database, temporal: Client) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None and not await Heard(temporal, harness.db, fails=1).deliver_soon(started.note)
    assert await outbox_count(relay) == 1
    assert await deliver_due(relay, harness.deps.notifier) == 0, "its writer has a head start"
    stop = asyncio.Event()
    running = asyncio.create_task(run_relay(relay, Notifier(temporal, relay), stop))
    handle = temporal.get_workflow_handle(turn_workflow_id(address.turn_id))
    await until(lambda: relay.pool.fetchval("SELECT count(*) = 0 FROM perdure.outbox"))
    stop.set()
    await running
    described = await handle.describe()
    assert (described.status, described.task_queue) == (WorkflowExecutionStatus.RUNNING, harness.routing.turns)
    assert described.typed_search_attributes.search_attributes
    assert described.raw_description.execution_config.default_workflow_task_timeout.ToTimedelta() == TASK_TIMEOUT
    await handle.terminate()


async def test_a_start_delivered_twice_starts_once(harness: Harness, relay: Database, temporal: Client) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None
    for _ in range(3):
        assert await harness.deps.notifier.deliver_soon(started.note)
    handle = temporal.get_workflow_handle(turn_workflow_id(address.turn_id))
    first_run = (await handle.describe()).run_id
    await handle.terminate()
    await harness.deps.notifier.deliver(started.note)
    assert (await handle.describe()).run_id == first_run, "a terminated turn is for the reconciler, not for a new run"


async def test_a_signal_to_an_absent_turn_starts_nothing(harness: Harness, relay: Database, temporal: Client) -> None:
    address, started = await harness.start(Line("hi"))
    assert started.note is not None
    for kind in (Wake.REQUEST, Wake.STOP):
        (note,) = await put(harness, kind, address.turn_id)
        assert await harness.deps.notifier.deliver_soon(note)
    assert await outbox_count(relay) == 1, "the start alone"
    await harness.finish(address)
    await harness.deps.notifier.deliver(replace(started.note, begins=None))  # as the relay has it
    await harness.deps.notifier.deliver(Note(0, "local", Wake.START, new_id()))
    with pytest.raises(RPCError):
        await temporal.get_workflow_handle(turn_workflow_id(address.turn_id)).describe()


@pytest.mark.parametrize("kind", list(Wake))
async def test_notes_to_a_lost_namespace_stay(harness: Harness, relay: Database, temporal: Client, kind: Wake) -> None:
    address, _ = await harness.start(Line("hi"))
    if kind is not Wake.START:
        await put(harness, kind, address.turn_id)
    await relay.pool.execute("DELETE FROM perdure.outbox WHERE kind <> $1", kind.value)
    target = temporal.service_client.config.target_host
    elsewhere = await Client.connect(target, namespace="misspelt", data_converter=temporal.data_converter)
    assert await due(relay, Notifier(elsewhere, relay)) == 0
    assert await outbox_count(relay) == 1


async def test_each_outage_logs_its_start_and_end_once(
    urls: Urls, relay: Database, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "OUTAGE_SECONDS", 0.01)
    away = await Database.connect(urls.relay, max_connections=1)
    stop = asyncio.Event()
    open_pool, closed_pool = relay.pool, away.pool
    await away.close()
    with capture_logs() as said:
        running = asyncio.create_task(run_relay(away, Heard(temporal, relay), stop))
        for heard, pool in enumerate((closed_pool, open_pool, closed_pool, open_pool), start=1):
            away.pool = pool
            await until(lambda heard=heard: len(said) >= heard)  # type: ignore[misc]
            await asyncio.sleep(0.1)  # time to say it again
        stop.set()
        await running
    began, ended = "relay_waits_for_postgres", "relay_waits_for_postgres_resolved"
    assert [line["event"] for line in said] == [began, ended, began, ended]
    assert said[0]["error"] == "InterfaceError"


async def test_two_relays_deliver_each_wake_up_once(harness: Harness, relay: Database, temporal: Client) -> None:
    notes = await put(harness, Wake.REQUEST, *(new_id() for _ in range(120)))
    heard = Heard(temporal, relay)
    await relay.pool.execute("UPDATE perdure.outbox SET due_at = now() - interval '1 ms'")
    for _ in range(3):
        await asyncio.gather(*(deliver_due(relay, heard) for _ in range(4)))
    assert await outbox_count(relay) == 0
    assert heard.signaled == Counter((Wake.REQUEST, note.turn_id) for note in notes)


async def test_undelivered_notes_return_and_delay_none(harness: Harness, relay: Database, temporal: Client) -> None:
    await put(harness, Wake.REQUEST, new_id(), new_id(), new_id())
    heard = Heard(temporal, relay, fails=2)
    assert await due(relay, heard) == 1, "one that fails does not hold up the others"
    assert await outbox_count(relay) == 2
    assert await deliver_due(relay, heard) == 0, "not due yet"
    assert await due(relay, heard) == 2
    assert await outbox_count(relay) == 0


async def test_a_turn_temporal_refuses_fails_after_tries(harness: Harness, relay: Database, temporal: Client) -> None:
    address, _ = await harness.start(Line("hi"))
    no_queue = "UPDATE turns SET routing = routing || jsonb_build_object('turns', repeat('q', 1001)) WHERE id = $1"
    await harness.write(no_queue, address.turn_id)  # a name that Temporal does not take
    waiting, _ = await harness.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    notifier = Notifier(temporal, relay)
    for _ in range(START_ATTEMPTS - 1):
        assert await due(relay, notifier) == 0
        assert await harness.value(STATUS, address.turn_id) == "accepted"
    assert await due(relay, notifier) == 1
    (row,) = await harness.rows("SELECT status, problem FROM turns WHERE id = $1", address.turn_id)
    assert (row["status"], row["problem"]["code"]) == ("failed", "start_refused")
    assert len(row["problem"]["message"]) <= 300
    assert (await harness.kinds(address.turn_id))[-2:] == ["workflow.error", "done"]
    assert not await harness.rows("SELECT id FROM outbox WHERE turn_id = $1", address.turn_id)
    handle = temporal.get_workflow_handle(turn_workflow_id(waiting.turn_id))
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING, "the next turn has begun"
    await handle.terminate()


@pytest.mark.parametrize(("kind", "status"), [
    (Wake.START, RPCStatusCode.UNAVAILABLE),
    (Wake.REQUEST, RPCStatusCode.INVALID_ARGUMENT),  # a refused wake signal ends nothing
])  # fmt: skip
async def test_temporary_start_failures_and_wake_signals_are_retried_without_limit(
    harness: Harness, relay: Database, temporal: Client, kind: Wake, status: RPCStatusCode
) -> None:
    address, _ = await harness.start(Line("hi"))
    await relay.pool.execute("UPDATE perdure.outbox SET kind = $1", kind.value)
    heard = Heard(temporal, relay, fails=3 * START_ATTEMPTS, status=status)
    for _ in range(3 * START_ATTEMPTS):
        assert await due(relay, heard) == 0
    assert await harness.value(STATUS, address.turn_id) == "accepted"
    assert await due(relay, heard) == 1
    assert heard.signaled == Counter({(kind, address.turn_id): 1})


@dataclass(slots=True)
class WebhookApp:
    """The test app with a webhook for its approvals."""

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

    async def request_approval(self) -> tuple[TurnAddress, RequestRef]:
        return await self.harness.request_approval(amount=7)

    async def deliver(self) -> int:
        return await send_deliveries(self.relay, self.post, PEOPLE)

    async def time_passes(self) -> None:
        await self.harness.write("UPDATE notices SET due_at = now()")

    async def waiting(self) -> list[dict[str, object]]:
        sql = "SELECT problem, gave_up_at IS NOT NULL AS gave_up, extract(epoch FROM due_at - now())::float AS seconds "
        return [dict(row) for row in await self.harness.rows(sql + "FROM notices ORDER BY at")]


@pytest.fixture
async def webhook_app(harness: Harness, relay: Database) -> AsyncIterator[WebhookApp]:
    receiver = await Receiver().start()
    port = urlsplit(receiver.url).port
    made = WebhookApp(
        harness, relay, receiver, WebhookSender(WebhookEgress((f"127.0.0.1:{port}", "localhost", "*.example.org")))
    )
    receiver.secret = await made.add(receiver.url)
    yield made
    await made.end_all()
    await made.post.close()
    await receiver.stop()


async def test_a_receiver_gets_the_request_and_its_outcome(webhook_app: WebhookApp) -> None:
    _, request = await webhook_app.request_approval()
    assert await webhook_app.deliver() == 1
    await webhook_app.harness.decide(request.request_id, Decision.REJECT, comment="no")
    assert await webhook_app.deliver() == 1
    first, second = webhook_app.receiver.notices
    assert (first["event"], first["approval"]["status"]) == ("approval.opened", "pending")
    assert (second["event"], second["approval"]["status"]) == ("approval.decided", "rejected")
    assert (second["approval"]["decision"], second["approval"]["decided_by"]) == ("reject", "reviewer")
    assert second["approval"]["version"] > first["approval"]["version"], "by which a receiver tells what is newer"
    assert first["url"] == f"{PEOPLE}/review/{request.request_id}"
    told = webhook_app.receiver.requests[0][1].decode()
    assert "amount" not in told and "digest" not in told, "what is to be decided is looked at on its page"
    assert await webhook_app.deliver() == 0 and await webhook_app.waiting() == []


async def test_a_failed_delivery_is_retried_at_growing_intervals_and_then_given_up(webhook_app: WebhookApp) -> None:
    webhook_app.receiver.answers = [500, 302, 404, 500]
    await webhook_app.request_approval()
    waits = []
    for _ in range(3):
        assert await webhook_app.deliver() == 1
        (waiting,) = await webhook_app.waiting()
        assert waiting["problem"]
        waits.append(float(str(waiting["seconds"])))
        assert await webhook_app.deliver() == 0, "not before its time"
        await webhook_app.time_passes()
    assert 0 < waits[0] <= 5 < waits[1] <= 10 < waits[2] <= 20
    assert len(webhook_app.receiver.requests) == 3, "a redirect is not followed"
    assert len({headers["x-perdure-delivery"] for headers, _ in webhook_app.receiver.requests}) == 1, (
        "it is one delivery"
    )
    assert not webhook_app.receiver.refused, "each attempt is signed for its own time"
    await webhook_app.harness.write("UPDATE notices SET attempts = $1", MAX_ATTEMPTS - 1)
    await webhook_app.deliver()
    (waiting,) = await webhook_app.waiting()
    assert waiting["gave_up"] is True
    await webhook_app.time_passes()
    assert await webhook_app.deliver() == 0
    async with webhook_app.harness.db.transaction("local") as tx:
        (shown,) = await webhooks.list_webhooks(tx)
    assert (shown.waiting, shown.given_up) == (0, 1) and shown.problem


async def test_a_silent_receiver_delays_no_other(webhook_app: WebhookApp, monkeypatch: Patch) -> None:
    monkeypatch.setattr(posts, "TIMEOUT_SECONDS", 2.0)
    other = await Receiver().start()
    other.secret = await webhook_app.add(other.url.replace("127.0.0.1", "localhost"))
    webhook_app.receiver.stalls = True
    await webhook_app.request_approval()
    sent, notices = await webhook_app.deliver(), other.notices
    await other.stop()
    assert sent == 2 and [notice["event"] for notice in notices] == ["approval.opened"]
    (waiting,) = await webhook_app.waiting()
    assert waiting["problem"]


async def test_a_notice_is_committed_with_its_change_or_not_at_all(webhook_app: WebhookApp) -> None:
    _, request = await webhook_app.request_approval()
    await webhook_app.deliver()
    with pytest.raises(RuntimeError):
        async with webhook_app.harness.db.transaction("local") as tx:
            await audit.record(tx, "approval.decided", request.request_id, {}, actor=None, turn_id=None)
            assert await tx.fetchval("SELECT count(*) FROM notices") == 1
            raise RuntimeError("cut off")
    assert await webhook_app.waiting() == []


async def test_an_expiry_is_reported_and_a_deleted_webhook_gets_nothing(webhook_app: WebhookApp) -> None:
    address, request = await webhook_app.request_approval()
    await webhook_app.deliver()
    await webhook_app.harness.write("UPDATE approvals SET expires_at = now() WHERE id = $1", request.request_id)
    ask = VerdictsRequest(address=address, requests=(request,))
    await webhook_app.harness.activity(ApprovalActivities(webhook_app.harness.deps).read, ask)
    await webhook_app.deliver()
    last = webhook_app.receiver.notices[-1]
    assert (last["event"], last["approval"]["status"]) == ("approval.expired", "expired")
    await webhook_app.end_all()
    await webhook_app.request_approval()
    assert await webhook_app.waiting() == []


async def test_a_webhook_to_a_forbidden_address_is_not_sent(webhook_app: WebhookApp, monkeypatch: Patch) -> None:
    sent: list[object] = []

    async def posted(*given: object) -> None:
        sent.append(given)

    monkeypatch.setattr(WebhookSender, "_post", posted)
    await webhook_app.end_all()
    for url in (  # each was allowed once, and is no longer
        "http://127.0.0.1:9/hook", "https://other.test/hook", "http://hooks.example.org/hook",
        "https://169.254.169.254/latest", "https://nowhere.example.org/",
    ):  # fmt: skip
        await webhook_app.add(url)
    await webhook_app.request_approval()
    await webhook_app.deliver()
    problems = [waiting["problem"] for waiting in await webhook_app.waiting()]
    assert len(problems) == 5 and all(problems) and not sent
    await webhook_app.harness.write("UPDATE notices SET problem = NULL")
    for address in ("127.0.0.1", "169.254.169.254", "fd00::7"):  # a name that stands for this machine, or the cloud's

        async def stands_for(*_: object, address: str = address, **__: object) -> list[tuple[object, ...]]:
            return [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", (address, 443))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", stands_for)
        await webhook_app.time_passes()
        await webhook_app.deliver()
        assert all(waiting["problem"] for waiting in await webhook_app.waiting()) and not sent, address


async def test_a_low_risk_notice_contains_its_arguments_if_the_administrator_allows_it(webhook_app: WebhookApp) -> None:
    await webhook_app.end_all()
    webhook_app.receiver.secret = await webhook_app.add(webhook_app.receiver.url, with_args=True)
    _, request = await webhook_app.request_approval()
    await webhook_app.deliver()
    await webhook_app.harness.write("UPDATE approvals SET risk = 'low' WHERE id = $1", request.request_id)
    await webhook_app.harness.decide(request.request_id)
    await webhook_app.deliver()
    high, low = (notice["approval"] for notice in webhook_app.receiver.notices)
    assert "args" not in high
    assert low["args"] == {"amount": 7, "mode": ""} and len(low["digest"]) == 64
