"""Both clients: what is sent, what is sent again, what becomes an error, and how a stream is resumed."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import ApiError, AsyncClient, Client
from perdure.client import Ageing, Approval, Delegation, Effect, Event, turns
from perdure.client.connection import Decoder
from perdure.local.ports import free_port
from tests.unit.apps.api_double import BROKEN, Reply, event, reply, streamed
from tests.unit.apps.conftest import Either

TURN = {"turn_id": "t", "conversation_id": "c", "status": "accepted", "events": "/v1/turns/t/events"}
REFUSAL = {"error": {"code": "conversation_busy", "message": "wait", "details": {"turn_id": "x"}, "request_id": "r"}}
STARTED = reply(TURN, 202)
LAST = event("workflow_complete", status="completed")
_TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
APPROVAL: dict[str, Any] = {"id": "a", "status": "pending", "tool": "t", "digest": "d", "schema": {"type": "object"}}


def keys(client: Either) -> list[str]:
    return [asked.headers["idempotency-key"] for asked in client.asked]


async def test_a_start_sends_its_token_body_and_a_unique_idempotency_key(client: Either) -> None:
    limits = {"max_tokens": 5}
    turn = await client.call(lambda c: c.turns.start("c", "hi", on_busy="queue", limits=limits), STARTED)
    await client.call(lambda c: c.turns.start("c", "hi"), STARTED)
    first, second = client.asked
    assert (first.method, first.path) == ("POST", "/v1/conversations/c/turns")
    assert first.body == {"message": "hi", "on_busy": "queue", "limits": limits} and second.body == {"message": "hi"}
    assert first.headers["authorization"] == "Bearer t-1" and len({*keys(client)}) == 2
    assert turn.turn_id == "t" and not turn.has_ended and turn.events == "/v1/turns/t/events"


async def test_a_lost_answer_is_retried_with_the_same_idempotency_key(client: Either) -> None:
    await client.call(lambda c: c.turns.start("c", "hi"), BROKEN, BROKEN, STARTED)
    assert len(client.asked) == 3 and len({*keys(client)}) == 1


async def test_a_503_with_retry_after_is_retried_after_it(client: Either) -> None:
    began = time.monotonic()
    await client.call(lambda c: c.turns.start("c", "hi"), reply({}, 503, Retry_After="0.5"), STARTED)
    assert time.monotonic() - began >= 0.5 and len({*keys(client)}) == 1


@pytest.mark.parametrize("reply", [
    reply(REFUSAL, 409),
    reply(REFUSAL, 503),
    *(reply(REFUSAL, n, Retry_After=w) for n, w in ((503, "soon"), (429, "17"))),
])  # fmt: skip
async def test_every_other_refusal_is_raised_immediately_with_its_details(client: Either, reply: Reply) -> None:
    error = await client.refused(lambda c: c.turns.start("c", "hi"), reply)
    assert (error.status, error.code, error.message) == (reply.status, "conversation_busy", "wait")
    assert (error.details, error.request_id) == ({"turn_id": "x"}, "r") and len(client.asked) == 1
    assert error.retry_after_seconds == (17 if reply.status == 429 else None)


async def test_retries_end_with_the_last_answer(client: Either) -> None:
    error = await client.refused(lambda c: c.turns.get("t"), *[reply(REFUSAL, 503, Retry_After="1.5")] * 3)
    assert error.status == 503 and len(client.asked) == 2


async def test_an_unreachable_server_is_reported() -> None:
    host = f"127.0.0.1:{free_port()}"
    with Client(f"http://u:hush@{host}", "t", patience_seconds=0.3) as client, pytest.raises(ApiError) as raised:
        client.agents.list()
    assert (raised.value.status, raised.value.code) == (0, "unreachable") and host in raised.value.message
    assert "hush" not in f"{raised.value.message} {raised.value.details}"


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"[]", b'{"error": "no"}', b"\xff"])
async def test_an_error_in_another_format_is_still_an_api_error(client: Either, body: bytes) -> None:
    error = await client.refused(lambda c: c.turns.get("t"), Reply(502, body, {"Content-Type": "text/html"}))
    assert (error.status, error.code) == (502, "http_502")


async def test_an_answer_of_another_program_is_an_api_error_too(client: Either) -> None:
    assert (await client.refused(lambda c: c.turns.get("t"), reply({"hello": "world"}))).code == "unreadable_answer"


async def test_an_id_stays_one_path_segment_whatever_it_contains(client: Either) -> None:
    await client.call(lambda c: c.turns.get("../users?x=1#y"), reply(TURN))
    assert (client.asked[0].path, client.asked[0].query) == ("/v1/turns/..%2Fusers%3Fx%3D1%23y", {})


async def test_a_call_made_by_hand_may_be_sent_twice_and_is_one_request_to_the_api(client: Either) -> None:
    call = turns.start_turn("c", "hi", idempotency_key="mine")
    for _ in range(2):
        await client.call(lambda c: c.send(call), STARTED)
    assert keys(client) == ["mine", "mine"]


async def test_fields_that_the_client_does_not_know_are_kept(client: Either) -> None:
    known = reply({"items": [{**TURN, "colour": "red"}], "next": "n", "total": 1})
    page = await client.call(lambda c: c.turns.list(status="running", limit=2), known)
    assert page.next == "n" and page.items[0].colour == page.model_dump()["items"][0]["colour"] == "red"
    assert client.asked[0].query == {"status": ["running"], "limit": ["2"]}


@pytest.mark.parametrize(("through", "ends_as"), [(False, "awaiting_approval"), (True, "completed")])
async def test_waiting_ends_at_a_pause_or_continues_through_it(client: Either, through: bool, ends_as: str) -> None:
    replies = [reply({**TURN, "status": status}) for status in ("running", "awaiting_approval", "completed")]
    turn = await client.call(lambda c: c.turns.wait("t", through_pauses=through, timeout_seconds=5), *replies)
    assert turn.status == ends_as


async def test_waiting_ends_at_its_timeout(client: Either) -> None:
    with pytest.raises(TimeoutError):
        running = [reply({**TURN, "status": "running"})] * 10
        await client.call(lambda c: c.turns.wait("t", timeout_seconds=0.3), *running)


async def test_a_turns_segments_and_model_calls_are_read(client: Either) -> None:
    listed = {"items": [{"kind": "tool", "tool": "pay", "arguments": {"amount": 1}}], "next": None}
    counted = {"turn_id": "t", "calls": [{"call_id": "m1", "attempts": 2, "seconds": None}], "totals": {"calls": 1}}
    (part,) = (await client.call(lambda c: c.turns.segments("t"), reply(listed))).items
    metrics = await client.call(lambda c: c.turns.metrics("t"), reply(counted))
    assert (part.kind, part.tool, part.arguments, part.result) == ("tool", "pay", {"amount": 1}, None)
    assert [(call.call_id, call.attempts, call.seconds) for call in metrics.calls] == [("m1", 2, None)]
    assert [asked.path for asked in client.asked] == ["/v1/turns/t/segments", "/v1/turns/t/metrics"]


async def test_a_stream_ends_with_its_last_event(client: Either) -> None:
    sent = streamed(event("ready", "1.0.0-0"), ": heartbeat\n\n", event("token", "1.e.5-0", text="hi"), LAST)
    events = await client.events(lambda c: c.turns.events("t"), sent)
    kinds_and_ids = [(each.kind, each.id) for each in events]
    assert kinds_and_ids == [("ready", "1.0.0-0"), ("token", "1.e.5-0"), ("workflow_complete", None)]
    assert events[1].data == {"text": "hi"}
    assert len(client.asked) == 1 and "last-event-id" not in client.asked[0].headers


@pytest.mark.parametrize("breaks_off", [True, False])
async def test_a_cut_stream_continues_after_the_last_event_seen(client: Either, breaks_off: bool) -> None:
    half = event("token", "3.e.2-0", text="lost")[:-6]
    cut = streamed(event("ready", "1.0.0-0"), event("node_start", "2.0.0-0"), half, breaks_off=breaks_off)
    rest = streamed(event("token", "3.e.2-0", text="kept"), LAST)
    events = await client.events(lambda c: c.turns.events("t"), cut, BROKEN, reply({}, 503, Retry_After="0"), rest)
    assert [each.kind for each in events] == ["ready", "node_start", "token", "workflow_complete"]
    assert events[2].data["text"] == "kept"
    assert [asked.headers.get("last-event-id") for asked in client.asked] == [None, "2.0.0-0", "2.0.0-0", "2.0.0-0"]


async def test_204_ends_a_stream(client: Either) -> None:
    done = streamed(event("done", "9.0.0-0"))
    events = await client.events(lambda c: c.turns.events("t", after="8.0.0-0"), done, Reply(204))
    assert [each.kind for each in events] == ["done"]
    assert [asked.headers["last-event-id"] for asked in client.asked] == ["8.0.0-0", "9.0.0-0"]


async def test_a_refused_stream_ends_immediately_and_a_silent_one_times_out(client: Either) -> None:
    gone = reply({"error": {"code": "turn_not_found", "message": "no such turn"}}, 404)
    assert (await client.refused(lambda c: c.turns.events("t"), gone)).code == "turn_not_found"
    assert len(client.asked) == 1
    assert (await client.refused(lambda c: c.turns.events("t"), *[streamed()] * 10)).code == "unreachable"
    assert 3 < len(client.asked) < 11


@given(
    st.lists(st.tuples(st.sampled_from(["token", "reset", "done"]), _TEXTS), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_events_are_the_same_however_bytes_are_cut(sent: list[tuple[str, str]], line_end: str, cuts: list[int]) -> None:
    written = ""
    for number, (kind, text) in enumerate(sent):
        body = json.dumps({"text": text}, ensure_ascii=False).replace("\r", "\\r").replace("\n", "\\n")
        written += line_end.join([f"id: {number}", f"event: {kind}", f"data: {body}", ": comment", "", ""])
    left, decoder = written.encode() + b":", Decoder()
    got: list[Event] = []
    for cut in (*cuts, len(left)):
        got += decoder.feed(left[:cut])
        left = left[cut:]
    assert got == [Event(kind, {"text": text}, str(number)) for number, (kind, text) in enumerate(sent)]


async def test_hundreds_of_streams_are_open_at_once() -> None:
    most, everybody, here = 150, asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        await reader.readuntil(b"\r\n\r\n")
        here += 1
        if here == most:
            everybody.set()
        await everybody.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + LAST.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        AsyncClient(f"http://127.0.0.1:{port}", "t-1", patience_seconds=10) as client,
        asyncio.timeout(30),
    ):

        async def follow() -> list[str]:
            return [each.kind async for each in client.turns.events("t")]

        assert await asyncio.gather(*(follow() for _ in range(most))) == [["workflow_complete"]] * most


@pytest.mark.parametrize(("verb", "body"), [
    ("withdraw", {"comment": "no need"}), ("withdraw", {}), ("claim", {}), ("claim", {"seconds": 60}),
    ("release", {}), ("reassign", {"to": "tom"}), ("escalate", {"comment": "urgent"}),
])  # fmt: skip
async def test_a_call_keeps_its_key_after_a_lost_answer(client: Either, verb: str, body: dict[str, Any]) -> None:
    answer = await client.call(lambda c: getattr(c.approvals, verb)("a", **body), BROKEN, reply(APPROVAL))
    assert isinstance(answer, Approval)
    assert {(asked.method, asked.path) for asked in client.asked} == {("POST", f"/v1/approvals/a/{verb}")}
    assert [asked.body for asked in client.asked] == [body, body] and len({*keys(client)}) == 1


async def test_a_decision_names_the_digest_that_was_seen(client: Either) -> None:
    answer = reply({"id": "a", "status": "edited", "tool": "t", "version": 2})
    decided = await client.call(lambda c: c.approvals.decide("a", "edit", "d1", args={"n": 1}, comment=""), answer)
    assert decided.status == "edited"
    assert client.asked[0].body == {"decision": "edit", "digest": "d1", "args": {"n": 1}}


async def test_an_approval_keeps_all_its_fields(client: Either) -> None:
    cast = (("rita", None, "approve", "", True), ("una", "tom", "edit", "x", True), ("ina", None, "reject", "x", False))
    fixed = {"at": "2026-11-21T10:00:00Z", "signed_in": {"how": "password"}}
    names = ("by", "for", "decision", "comment", "counts")
    votes = [{**dict(zip(names, vote, strict=True)), **fixed} for vote in cast]
    sent = {**APPROVAL, "quorum": 3, "votes": votes, "fallback": {"reviewer": "una", "at": "2026-11-22T10:00:00Z"}}
    read = await client.call(lambda c: c.approvals.get("a"), reply(sent))
    assert (read.approving, read.quorum, read.votes[1].delegator, read.fallback.reviewer) == (2, 3, "tom", "una")
    assert read.args_schema == {"type": "object"}
    assert {name: value for name, value in read.model_dump(mode="json").items() if name in sent} == sent


async def test_a_bulk_decision_is_one_request_with_a_result_for_each(client: Either) -> None:
    answer = {"items": [{"id": "a", "status": "approved"}, {"id": "b", "error": {"code": "claimed", "message": "no"}}]}
    items = [{"id": name, "digest": "d", "decision": "approve"} for name in "ab"]
    page = await client.call(lambda c: c.approvals.decide_many(items), reply(answer))
    results = [(each.status, (each.error or {}).get("code")) for each in page.items]
    assert results == [("approved", None), (None, "claimed")]
    assert (client.asked[0].path, client.asked[0].body) == ("/v1/approvals/decisions", {"items": items})
    assert keys(client)


async def test_delegations_name_their_user_and_end(client: Either) -> None:
    given, until = {"id": "d", "to": "tom", "until": "2026-12-24T00:00:00Z"}, datetime(2026, 12, 24, tzinfo=UTC)
    delegation = await client.call(lambda c: c.delegations.add("tom", until), reply(given, 201))
    assert isinstance(delegation, Delegation) and delegation.until == until
    assert client.asked[0].body == {"to": "tom", "until": "2026-12-24T00:00:00+00:00"}
    assert (await client.call(lambda c: c.delegations.list(), reply({"items": [given]}))).items == [delegation]
    assert await client.call(lambda c: c.delegations.remove("d"), Reply(204)) is None
    assert (client.asked[2].method, client.asked[2].path) == ("DELETE", "/v1/delegations/d")
    with pytest.raises(ValueError):  # an end without a zone is not guessed
        await client.call(lambda c: c.delegations.add("tom", datetime(2026, 12, 24)))
    assert len(client.asked) == 3


async def test_ageing_audit_one_effect_and_a_narrowed_list_are_read(client: Either) -> None:
    row = {"role": "reviewer", "waiting": 3, "buckets": {"1h": 3}}
    ages = await client.call(lambda c: c.approvals.ageing(), reply({"items": [row]}))
    assert ages.items == [Ageing(role="reviewer", waiting=3, buckets={"1h": 3})]
    trail = reply({"items": [{"kind": "approval.opened", "actor": "u"}]})
    assert (await client.call(lambda c: c.approvals.audit("a"), trail)).items[0].kind == "approval.opened"
    stored = reply({"key": "k", "tool": "t", "state": "done", "call_id": "c", "attempts": 2})
    effect = await client.call(lambda c: c.effects.get("k"), stored)
    assert isinstance(effect, Effect) and effect.attempts == 2
    narrowed = {"assignee": "rita", "role": "reviewer", "mine": True, "expiring_seconds": 60}
    await client.call(lambda c: c.approvals.list(**narrowed), reply({"items": [], "next": None}))
    paths = ["/v1/approvals/ageing", "/v1/approvals/a/audit", "/v1/effects/k", "/v1/approvals"]
    assert [asked.path for asked in client.asked] == paths
    query = {"assignee": ["rita"], "role": ["reviewer"], "mine": ["true"], "expiring": ["60"]}
    assert client.asked[3].query == query
