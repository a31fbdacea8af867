"""The event stream: cut anywhere, resumed where it was, over when the API says so."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import ApiError, AsyncClient
from perdure.client import Event
from perdure.client.connection import Decoder
from tests.unit.apps.api_double import BROKEN, ApiDouble, Reply, event, said, streamed
from tests.unit.apps.conftest import Either

LAST = event("workflow_complete", status="completed")


async def test_a_stream_ends_with_its_last_event(api: ApiDouble, client: Either) -> None:
    api.will(streamed(event("ready", "1.0.0-0"), ": heartbeat\n\n", event("token", "1.e.5-0", text="hi"), LAST))
    events = await client.events(lambda c: c.turns.events("t"))
    assert [(each.kind, each.id) for each in events] == [
        ("ready", "1.0.0-0"),
        ("token", "1.e.5-0"),
        ("workflow_complete", None),
    ]
    assert events[1].data == {"text": "hi"}
    assert len(api.asked) == 1 and "last-event-id" not in api.asked[0].headers


@pytest.mark.parametrize("breaks_off", [True, False])
async def test_a_cut_stream_goes_on_after_the_last_event_seen(api: ApiDouble, client: Either, breaks_off: bool) -> None:
    half = event("token", "3.e.2-0", text="lost")[:-6]
    api.will(
        streamed(event("ready", "1.0.0-0"), event("node_start", "2.0.0-0"), half, breaks_off=breaks_off),
        BROKEN,
        said({}, 503, Retry_After="0"),
        streamed(event("token", "3.e.2-0", text="kept"), LAST),
    )
    events = await client.events(lambda c: c.turns.events("t"))
    assert [each.kind for each in events] == ["ready", "node_start", "token", "workflow_complete"]
    assert events[2].data["text"] == "kept"
    assert [asked.headers.get("last-event-id") for asked in api.asked] == [None, "2.0.0-0", "2.0.0-0", "2.0.0-0"]


async def test_204_means_that_nothing_follows(api: ApiDouble, client: Either) -> None:
    api.will(streamed(event("done", "9.0.0-0")), Reply(204))
    events = await client.events(lambda c: c.turns.events("t", after="8.0.0-0"))
    assert [each.kind for each in events] == ["done"]
    assert [asked.headers["last-event-id"] for asked in api.asked] == ["8.0.0-0", "9.0.0-0"]


async def test_a_refusal_ends_the_reading_at_once(api: ApiDouble, client: Either) -> None:
    api.will(said({"error": {"code": "turn_not_found", "message": "no such turn"}}, 404))
    with pytest.raises(ApiError) as raised:
        await client.events(lambda c: c.turns.events("t"))
    assert raised.value.code == "turn_not_found" and len(api.asked) == 1


async def test_a_stream_that_never_says_anything_is_given_up(api: ApiDouble, client: Either) -> None:
    api.will(*[streamed()] * 10)
    with pytest.raises(ApiError) as raised:
        await client.events(lambda c: c.turns.events("t"))
    assert raised.value.code == "unreachable" and 2 < len(api.asked) < 10


_TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.tuples(st.sampled_from(["token", "reset", "done"]), _TEXTS), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_events_are_the_same_however_the_bytes_are_cut(
    sent: list[tuple[str, str]], line_end: str, cuts: list[int]
) -> None:
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
