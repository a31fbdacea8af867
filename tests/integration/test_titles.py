"""A conversation's title: of the first words of the message that was answered first, unless its user gave one."""

import pytest

from perdure.contracts.turns import FinishRequest, TurnStatus
from perdure.store.turns.finish import finish
from tests.doubles.spoken import Line
from tests.harness import Harness
from tests.integration.conftest import Api


async def titled(harness: Harness, status: TurnStatus, title: str = "", after: str = "") -> tuple[str, list[str]]:
    """The title after a turn that ended so, and what its events tell of titles."""
    conversation_id, set_title = await harness.conversation(), "UPDATE conversations SET title = $2 WHERE id = $1"
    await harness.write(set_title, conversation_id, title)
    address, _ = await harness.start(Line("yes"), conversation_id=conversation_id)
    said = "Where is  order 1001\nand who has paid"
    await harness.write("UPDATE messages SET content = $2 WHERE turn_id = $1", address.turn_id, said)
    if after:
        await harness.write(set_title, conversation_id, after)
    async with harness.db.transaction("local") as tx:
        await finish(tx, FinishRequest(address=address, status=status))
    told = "SELECT data->>'title' FROM events WHERE turn_id = $1 AND kind = 'conversation.title.generated'"
    rows = await harness.rows(told, address.turn_id)
    assert (await harness.kinds(address.turn_id))[-1] == "done"
    now = await harness.value("SELECT title FROM conversations WHERE id = $1", conversation_id)
    return str(now), [row[0] for row in rows]


MADE = "Where is order 1001 and who"
TITLES: list[tuple[TurnStatus, dict[str, str], tuple[str, list[str]]]] = [
    (TurnStatus.COMPLETED, {}, (MADE, [MADE])),
    (TurnStatus.COMPLETED, {"title": "Mine"}, ("Mine", [])),
    (TurnStatus.COMPLETED, {"after": "Mine"}, ("Mine", [])),
    *((status, {}, ("", [])) for status in (TurnStatus.FAILED, TurnStatus.STOPPED, TurnStatus.LIMITED)),
]


@pytest.mark.parametrize(("status", "given", "expected"), TITLES)
async def test_the_first_answer_gives_a_title_unless_the_user_did(
    harness: Harness, status: TurnStatus, given: dict[str, str], expected: tuple[str, list[str]]
) -> None:
    assert await titled(harness, status, **given) == expected


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
