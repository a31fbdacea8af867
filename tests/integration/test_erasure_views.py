"""What an erased person's turn is answered as: every view of it, with nothing where the words were."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.integration.conftest import Api
from tests.integration.test_api_approvals import ended
from tests.integration.test_api_turns import code, conversation

NAME = "leaver"
GONE = {"answer", "outcome", "ttft_seconds", "items[].data"}
"""What the contract has null where it is not known; the audit says `erased` beside it."""


def nulls(value: Any, path: str = "") -> Iterator[str]:
    """Where there is null."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from nulls(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for each in value:
            yield from nulls(each, f"{path}[]")
    elif value is None:
        yield path


def told(stream: str) -> list[tuple[str, dict[str, Any]]]:
    """Kind and data of a stream's events."""
    blocks = [block.splitlines() for block in stream.split("\n\n") if "data: " in block]
    fields = [dict(line.split(": ", 1) for line in block) for block in blocks]
    return [(each["event"], json.loads(each["data"])) for each in fields]


async def test_every_view_of_an_erased_persons_turn_answers_without_a_null_that_was_none(api: Api) -> None:
    async with api.client("admin") as admin, api.client("reviewer") as reviewer:
        await admin.post("/v1/users", json={"name": NAME, "roles": ["requester"]})
        token = (await admin.post(f"/v1/users/{NAME}/tokens", json={})).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as leaver:
            path = f"/v1/conversations/{await conversation(leaver)}/turns"
            turn = (await leaver.post(path, params={"wait": 20}, json={"message": "Refund order 1042"})).json()
        approval = f"/v1/approvals/{turn['waiting_for']['ids'][0]}"
        given = {"decision": "approve", "digest": (await reviewer.get(approval)).json()["digest"], "comment": "yes"}
        assert (await reviewer.post(f"{approval}/decision", json=given)).status_code == 200
        assert (await ended(reviewer, turn["turn_id"]))["status"] == "completed"
        effects = (await admin.get("/v1/effects")).json()["items"]
        key = next(each["key"] for each in effects if each["turn_id"] == turn["turn_id"])
        of_turn, mine = f"/v1/turns/{turn['turn_id']}", {"turn": turn["turn_id"]}
        views: list[tuple[str, dict[str, str]]] = [
            (of_turn, {}), ("/v1/turns", {"conversation": turn["conversation_id"]}), (approval, {}),
            ("/v1/approvals", mine), (f"/v1/effects/{key}", {}), ("/v1/effects", {}), (f"{approval}/audit", {}),
        ]  # fmt: skip
        before = [(await admin.get(path, params=params)).json() for path, params in views]
        assert before[0]["nodes"] and all(each.get("items", True) for each in before), before
        erased = await admin.delete(f"/v1/users/{NAME}/data")
        assert erased.status_code == 200, erased.text

        answers = [await admin.get(path, params=params) for path, params in views]
        assert [answer.status_code for answer in answers] == [200] * len(views)
        for answer, whole in zip(answers, before, strict=True):
            new = {*nulls(answer.json())} - {*nulls(whole)}
            assert new <= GONE | {f"items[].{name}" for name in GONE}, answer.url
        assert answers[0].json()["nodes"] == []
        assert answers[2].json()["votes"][0]["comment"] == ""
        late = await reviewer.post(f"{approval}/decision", json=given)
        assert (late.status_code, code(late)) == (409, "already_decided"), late.text

        replay = told((await admin.get(f"{of_turn}/events")).text)
        assert [(kind, [*nulls(data)]) for kind, data in replay] == [(kind, []) for kind, _ in replay]
        ends = [("done", "completed"), ("workflow_complete", "completed")]
        assert [(kind, data["status"]) for kind, data in replay[-2:]] == ends
        gone = f"/v1/conversations/{turn['conversation_id']}"
        for path in (gone, f"{gone}/messages", f"{gone}/stream"):
            assert (await admin.get(path)).status_code == 404, path
