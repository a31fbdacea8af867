"""The client's requests: what is sent, what is sent again, and what becomes an error."""

import socket
import time
from typing import Any

import pytest

from perdure import ApiError, Client
from perdure.client import turns
from tests.unit.apps.api_double import BROKEN, ApiDouble, said
from tests.unit.apps.conftest import Either

TURN = {"turn_id": "t", "conversation_id": "c", "status": "accepted", "events": "/v1/turns/t/events"}
REFUSAL = {"error": {"code": "conversation_busy", "message": "wait", "details": {"turn_id": "x"}, "request_id": "r"}}


async def test_a_start_carries_token_body_and_a_key_of_its_own(api: ApiDouble, client: Either) -> None:
    api.will(said(TURN, 202), said(TURN, 202))
    turn = await client.call(lambda c: c.turns.start("c", "hi", on_busy="queue", limits={"max_tokens": 5}))
    await client.call(lambda c: c.turns.start("c", "hi"))
    first, second = api.asked
    assert (first.method, first.path) == ("POST", "/v1/conversations/c/turns")
    assert first.body == {"message": "hi", "on_busy": "queue", "limits": {"max_tokens": 5}}
    assert second.body == {"message": "hi"}
    assert first.headers["authorization"] == "Bearer t-1"
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert turn.turn_id == "t" and not turn.has_ended and turn.events == "/v1/turns/t/events"


async def test_a_lost_answer_is_asked_for_again_under_the_same_key(api: ApiDouble, client: Either) -> None:
    api.will(BROKEN, BROKEN, said(TURN, 202))
    await client.call(lambda c: c.turns.start("c", "hi"))
    keys = {asked.headers["idempotency-key"] for asked in api.asked}
    assert len(api.asked) == 3 and len(keys) == 1


async def test_a_503_that_names_a_wait_is_waited_out(api: ApiDouble, client: Either) -> None:
    api.will(said({}, 503, Retry_After="0.5"), said(TURN, 202))
    began = time.monotonic()
    await client.call(lambda c: c.turns.start("c", "hi"))
    assert time.monotonic() - began >= 0.5
    assert len({asked.headers["idempotency-key"] for asked in api.asked}) == 1


@pytest.mark.parametrize(
    "reply",
    [
        said(REFUSAL, 409),
        said(REFUSAL, 503),
        said(REFUSAL, 503, Retry_After="soon"),
        said(REFUSAL, 429, Retry_After="0"),
    ],
)
async def test_every_other_refusal_is_raised_at_once_with_all_it_says(
    api: ApiDouble, client: Either, reply: Any
) -> None:
    api.will(reply)
    with pytest.raises(ApiError) as raised:
        await client.call(lambda c: c.turns.start("c", "hi"))
    error = raised.value
    assert (error.status, error.code, error.message) == (reply.status, "conversation_busy", "wait")
    assert (error.details, error.request_id) == ({"turn_id": "x"}, "r")
    assert len(api.asked) == 1


async def test_patience_ends_with_the_answer_that_tried_it(api: ApiDouble, client: Either) -> None:
    api.will(*[said(REFUSAL, 503, Retry_After="1.5")] * 3)
    with pytest.raises(ApiError) as raised:
        await client.call(lambda c: c.turns.get("t"))
    assert raised.value.status == 503 and len(api.asked) == 2


async def test_nobody_listening_is_said_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Client(url, "t", patience_seconds=0.3) as client, pytest.raises(ApiError) as raised:
        client.agents.list()
    assert (raised.value.status, raised.value.code) == (0, "unreachable")
    assert url in raised.value.message


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"[]", b'{"error": "no"}', b"\xff"])
async def test_an_error_that_is_not_ours_is_still_an_api_error(api: ApiDouble, client: Either, body: bytes) -> None:
    api.will(said({}, 502).__class__(502, body, {"Content-Type": "text/html"}))
    with pytest.raises(ApiError) as raised:
        await client.call(lambda c: c.turns.get("t"))
    assert (raised.value.status, raised.value.code) == (502, "http_502")


async def test_an_answer_of_another_program_is_an_api_error_too(api: ApiDouble, client: Either) -> None:
    api.will(said({"hello": "world"}))
    with pytest.raises(ApiError) as raised:
        await client.call(lambda c: c.turns.get("t"))
    assert raised.value.code == "unreadable_answer"


async def test_an_id_stays_one_segment_whatever_is_in_it(api: ApiDouble, client: Either) -> None:
    api.will(said(TURN))
    await client.call(lambda c: c.turns.get("../users?x=1#y"))
    assert (api.asked[0].path, api.asked[0].query) == ("/v1/turns/..%2Fusers%3Fx%3D1%23y", {})


async def test_a_call_made_by_hand_may_be_sent_twice_and_is_one_request_to_the_api(
    api: ApiDouble, client: Either
) -> None:
    api.will(said(TURN, 202), said(TURN, 202))
    call = turns.start_turn("c", "hi", idempotency_key="mine")
    await client.call(lambda c: c.send(call))
    await client.call(lambda c: c.send(call))
    assert [asked.headers["idempotency-key"] for asked in api.asked] == ["mine", "mine"]


async def test_fields_that_the_client_does_not_know_are_kept(api: ApiDouble, client: Either) -> None:
    api.will(said({"items": [{**TURN, "colour": "red"}], "next": "n", "total": 1}))
    page = await client.call(lambda c: c.turns.list(status="running", limit=2))
    assert page.next == "n" and page.items[0].colour == "red"
    assert page.model_dump()["items"][0]["colour"] == "red"
    assert api.asked[0].query == {"status": ["running"], "limit": ["2"]}


@pytest.mark.parametrize(("through_pauses", "ends_as"), [(False, "awaiting_approval"), (True, "completed")])
async def test_waiting_for_a_turn_ends_at_a_pause_or_goes_through_it(
    api: ApiDouble, client: Either, through_pauses: bool, ends_as: str
) -> None:
    api.will(*(said({**TURN, "status": status}) for status in ("running", "awaiting_approval", "completed")))
    turn = await client.call(lambda c: c.turns.wait("t", through_pauses=through_pauses, timeout_seconds=5))
    assert turn.status == ends_as


async def test_waiting_ends_when_its_time_is_over(api: ApiDouble, client: Either) -> None:
    api.will(*[said({**TURN, "status": "running"})] * 10)
    with pytest.raises(TimeoutError):
        await client.call(lambda c: c.turns.wait("t", timeout_seconds=0.3))


async def test_a_decision_names_the_digest_that_was_seen(api: ApiDouble, client: Either) -> None:
    api.will(said({"id": "a", "status": "edited", "tool": "t", "version": 2}))
    decided = await client.call(lambda c: c.approvals.decide("a", "edit", "d1", args={"n": 1}, comment=""))
    assert decided.status == "edited"
    assert api.asked[0].body == {"decision": "edit", "digest": "d1", "args": {"n": 1}}


async def test_a_turns_story_and_its_model_calls_are_read(api: ApiDouble, client: Either) -> None:
    api.will(said({"items": [{"kind": "tool", "tool": "pay", "arguments": {"amount": 1}}], "next": None}))
    api.will(
        said({"turn_id": "t", "calls": [{"call_id": "m1", "attempts": 2, "seconds": None}], "totals": {"calls": 1}})
    )
    (part,) = (await client.call(lambda c: c.turns.segments("t"))).items
    metrics = await client.call(lambda c: c.turns.metrics("t"))
    assert (part.kind, part.tool, part.arguments, part.result) == ("tool", "pay", {"amount": 1}, None)
    assert [(call.call_id, call.attempts, call.seconds) for call in metrics.calls] == [("m1", 2, None)]
    assert [asked.path for asked in api.asked] == ["/v1/turns/t/segments", "/v1/turns/t/metrics"]
