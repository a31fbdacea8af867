"""A conversation's title: of the first words of the message that was answered first, unless its user gave one."""

import pytest

from perdure.contracts.turns import FinishAsk, TurnStatus
from perdure.store.turns.finish import finish
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.integration.conftest import Api


async def titled(desk: Desk, status: TurnStatus, title: str = "", after: str = "") -> tuple[str, list[str]]:
    """The title after a turn that ended so, and what its events tell of titles."""
    conversation_id = await desk.conversation()
    await desk.write("UPDATE conversations SET title = $2 WHERE id = $1", conversation_id, title)
    address, _ = await desk.start(Line("yes"), conversation_id=conversation_id)
    await desk.write(
        "UPDATE messages SET content = 'Where is  order 1001\nand who has paid' WHERE turn_id = $1", address.turn_id
    )
    if after:
        await desk.write("UPDATE conversations SET title = $2 WHERE id = $1", conversation_id, after)
    async with desk.db.transaction("local") as tx:
        await finish(tx, FinishAsk(address=address, status=status))
    rows = await desk.rows(
        "SELECT data FROM events WHERE turn_id = $1 AND kind = 'conversation.title.generated'", address.turn_id
    )
    kinds = await desk.kinds(address.turn_id)
    assert kinds[-1] == "done"
    now = await desk.value("SELECT title FROM conversations WHERE id = $1", conversation_id)
    return str(now), [row["data"]["title"] for row in rows]


async def test_the_first_answer_gives_the_conversation_a_title(desk: Desk) -> None:
    title = "Where is order 1001 and who"
    assert await titled(desk, TurnStatus.COMPLETED) == (title, [title])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_title_that_the_user_gave_stands(desk: Desk, when: str) -> None:
    assert await titled(desk, TurnStatus.COMPLETED, **{"title" if when == "before" else "after": "Mine"}) == (
        "Mine",
        [],
    )


@pytest.mark.parametrize("status", [TurnStatus.FAILED, TurnStatus.STOPPED, TurnStatus.LIMITED])
async def test_a_turn_without_an_answer_names_nothing(desk: Desk, status: TurnStatus) -> None:
    assert await titled(desk, status) == ("", [])


async def test_the_story_of_a_turn_is_kept_in_segments_with_its_times(api: Api) -> None:
    async with api.client() as client:
        made = (await client.post("/v1/conversations", json={"agent": "refunds"})).json()
        path = f"/v1/conversations/{made['id']}/turns"
        turn = (await client.post(path, params={"wait": 20}, json={"message": "/echo one two"})).json()
        assert 0 <= turn["ttft_seconds"] <= turn["ttr_seconds"]
        story = (await client.get(f"/v1/turns/{turn['turn_id']}/segments")).json()["items"]
        assert [(each["kind"], each["state"], each["text"]) for each in story] == [("text", "completed", "one two")]
        assert (await client.get(f"/v1/conversations/{made['id']}")).json()["title"] == "/echo one two"
        paused = (await client.post(path, params={"wait": 20}, json={"message": "Refund order 1001"})).json()
        assert paused["ttr_seconds"] is None
        story = (await client.get(f"/v1/turns/{paused['turn_id']}/segments")).json()["items"]
        asked = story[-1]
        assert (asked["kind"], asked["state"], asked["tool"]) == ("tool", "awaiting_approval", "refund")
        assert asked["arguments"]["order"] and asked["approval_id"] == paused["waiting_for"]["ids"][0]
        assert "result" not in asked
        await client.post(f"/v1/turns/{paused['turn_id']}/stop")
        missing = await client.get("/v1/turns/00000000-0000-0000-0000-000000000000/segments")
        assert missing.status_code == 404
