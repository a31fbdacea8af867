"""A conversation's turns as a person reads them, and the place in the stream from which nothing is missed."""

import httpx

from tests.doubles.spoken import Line
from tests.harness import Harness
from tests.integration.conftest import Api
from tests.integration.test_joining import ask, end, steer


async def story(client: httpx.AsyncClient, conversation_id: str, **query: object) -> httpx.Response:
    return await client.get(f"/v1/conversations/{conversation_id}/story", params=query)  # type: ignore[arg-type]


async def test_a_story_tells_what_was_said_where_it_was_heard_and_what_waits(api: Api, harness: Harness) -> None:
    address, _ = await harness.start(Line("first"), Line("second"))
    conversation_id = address.conversation_id
    await steer(harness, address, "heard")
    await ask(harness, address, 1)
    await steer(harness, address, "later")
    async with api.client() as client:
        told = (await story(client, conversation_id)).json()
        assert told["own"] is True and told["next"] is None
        (turn,) = told["items"]
        assert [(each["kind"], each["call_id"]) for each in turn["segments"]] == [("message", "m1"), ("text", "m1")]
        assert [each["waits"] for each in turn["said"]] == [False, True]
        last = await harness.value("SELECT max(seq) FROM events WHERE conversation_id = $1", conversation_id)
        assert told["seq"] == last
        await end(harness, address)
        newer, older = (await story(client, conversation_id)).json()["items"]
        assert (older["turn_id"], older["status"]) == (address.turn_id, "completed"), "the newest is the first"
        assert [each["waits"] for each in newer["said"]] == [False] and not newer["segments"]
        one = (await story(client, conversation_id, turn=newer["turn_id"])).json()["items"]
        assert [each["turn_id"] for each in one] == [newer["turn_id"]]
        first = (await story(client, conversation_id, limit=1)).json()
        second = (await story(client, conversation_id, limit=1, cursor=first["next"])).json()
        assert [each["items"][0]["turn_id"] for each in (first, second)] == [newer["turn_id"], address.turn_id]


async def test_a_story_is_told_to_its_person_and_to_reviewers_and_to_nobody_else(api: Api, harness: Harness) -> None:
    address, _ = await harness.start(Line("mine"), by="admin")
    elsewhere, _ = await harness.start(Line("other"))
    async with api.client("reviewer") as reviewer, api.client() as requester:
        seen = await story(reviewer, address.conversation_id)
        assert (seen.status_code, seen.json()["own"]) == (200, False)
        assert (await story(requester, address.conversation_id)).status_code == 404
        assert (await story(requester, "nothing")).status_code == 404
        mixed = await story(reviewer, address.conversation_id, turn=elsewhere.turn_id)
        assert (mixed.status_code, mixed.json()["items"]) == (200, [])
        assert (await story(reviewer, address.conversation_id, turn="nothing")).status_code == 404
