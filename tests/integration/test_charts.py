"""The chart builder over HTTP: a table comes in, a picture goes out; open requests are asked back, twice at most."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from tests.integration.conftest import Api

SALES = "region,sales,day\nNorth,30,2024-01-01\nSouth,10,2024-01-02\nNorth,5,2024-01-03\n"
AGENT = "chart_builder"


async def conversation(client: httpx.AsyncClient, *tables: str) -> str:
    """A conversation that has these tables."""
    made = await client.post("/v1/conversations", json={"agent": AGENT})
    path = f"/v1/conversations/{made.json()['id']}"
    for number, table in enumerate(tables):
        sent = await client.post(
            f"{path}/files", params={"name": f"t{number}.csv"}, content=table, headers={"Content-Type": "text/csv"}
        )
        assert sent.status_code == 201, sent.text
    return path


async def say(client: httpx.AsyncClient, path: str, message: str, **given: Any) -> dict[str, Any]:
    answer = await client.post(f"{path}/turns", params={"wait": 100}, json={"message": message, **given}, timeout=120)
    assert answer.status_code == 200, answer.text
    turn: dict[str, Any] = answer.json()
    return turn


async def reply(client: httpx.AsyncClient, turn: dict[str, Any], **payload: Any) -> dict[str, Any]:
    """The turn, ended or paused again after this answer."""
    waits = turn["waiting_for"]
    path = f"/v1/turns/{turn['turn_id']}"
    sent = await client.post(f"{path}/answers/{waits['ids'][0]}", json={"kind": waits["kind"], "payload": payload})
    assert sent.status_code == 200, sent.text
    return await rests(client, path, waits["ids"])


async def rests(client: httpx.AsyncClient, path: str, before: Sequence[str] = ()) -> dict[str, Any]:
    """The turn once it rests on something new."""
    async with client.stream("GET", f"{path}/events", timeout=120) as stream:
        async for line in stream.aiter_lines():
            if line.startswith(("event: done", "event: clarification", "event: client_run")):
                turn = (await client.get(path)).json()
                if turn["ended_at"] or (turn["waiting_for"] and turn["waiting_for"]["ids"] != before):
                    return dict(turn)
    return dict((await client.get(path)).json())


async def test_plot_a_column_by_a_column_gives_a_picture_of_it(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client, SALES)
        turn = await say(client, path, "Plot sales by region")
        assert turn["status"] == "completed", turn["error"]
        pictures = turn["output"]["pictures"]
        png, svg = [(await client.get(pictures[kind])) for kind in ("png", "svg")]
        assert (png.headers["content-type"], svg.headers["content-type"]) == ("image/png", "image/svg+xml")
        assert png.content[:8] == b"\x89PNG\r\n\x1a\n" and "sandbox" in svg.headers["content-security-policy"]
        assert all(word in svg.text for word in ("North", "South", "region", "sales")), "the picture says what it shows"
        drawn = (await client.get(pictures["specification"])).json()
        assert drawn["data"]["values"] == [{"region": "North", "sales": 35}, {"region": "South", "sales": 10}]
        assert drawn["mark"]["type"] == "bar" and drawn["encoding"]["y"]["field"] == "sales"
        metrics = (await client.get(f"/v1/turns/{turn['turn_id']}/metrics")).json()
        labels = ["classify", "plan", "specify", "marks", "feedback"]
        assert [call["label"] for call in metrics["calls"]] == labels and metrics["source"] == "server"
        assert metrics["totals"]["input_tokens"] == turn["usage"]["input_tokens"] > 0
        assert all(call["seconds"] > 0 and call["number"] == 1 for call in metrics["calls"])
        assert metrics["retries"] == {"classify": 1, "planning": 1, "specify": 1, "marks": 1}
        assert turn["answer"] and turn["output"]["text"].startswith("<p>")
        made = (await client.get(f"{path}/files")).json()["items"]
        kept = sorted(file["name"] for file in made if file["turn_id"])
        assert kept == ["chart.png", "chart.svg", "chart.vl.json", "rows.json"]


async def test_an_open_request_is_asked_back_no_other_message_passes_and_the_reply_leads_to_a_picture(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client, SALES)
        turn = await say(client, path, "Plot something")
        assert (turn["status"], turn["waiting_for"]["kind"]) == ("awaiting_answer", "clarification")
        asked = await client.get(f"/v1/turns/{turn['turn_id']}/answers/{turn['waiting_for']['ids'][0]}")
        assert asked.json()["asked"]["question"]
        until = [datetime.fromisoformat(each["expires_at"]) for each in (asked.json(), turn["waiting_for"])]
        assert until[0] == until[1] > datetime.now(UTC), "a question has an end, which the turn tells"
        refused = await client.post(f"{path}/turns", json={"message": "/echo no"})
        details = refused.json()["error"]["details"]
        assert (refused.status_code, details["turn_id"]) == (409, turn["turn_id"])
        assert details["waiting_for"]["kind"] == "clarification"
        turn = await reply(client, turn, text="sales by region")
        assert turn["status"] == "completed" and turn["output"]["pictures"], turn
        assert turn["nodes"].count("planning_transformation_node") == 2


async def test_another_message_takes_the_place_of_a_turn_that_waits_for_an_answer(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client, SALES)
        turn = await say(client, path, "Plot something")
        fresh = await say(client, path, "/echo fine", on_busy="replace")
        assert (fresh["status"], fresh["answer"]) == ("completed", "fine")
        old = f"/v1/turns/{turn['turn_id']}"
        assert (await client.get(old)).json()["status"] == "replaced"
        given = {"kind": "clarification", "payload": {"text": "x"}}
        late = await client.post(f"{old}/answers/{turn['waiting_for']['ids'][0]}", json=given)
        assert (late.status_code, late.json()["error"]["code"]) == (409, "turn_stopped"), "S4-42"


async def test_what_asks_for_no_work_has_none_and_a_shortcut_goes_straight_to_the_solver(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client)
        without = await say(client, path, "Plot sales by region")
        assert without["status"] == "completed" and without["answer"] and not without["output"].get("pictures")
        palette = await say(client, path, "Which colours are there?")
        assert palette["output"]["suggestions"][0]["kind"] == "custom_palette" and palette["output"]["selection_prompt"]
        arrived = await say(client, path, "#uploaded# t.csv")
        assert arrived["nodes"] == ["initialize_processing_state", "feedback_node", "format_feedback"]
        assert (await say(client, path, "/echo one two"))["answer"] == "one two"
        bypassed = await say(client, path, "Which colours are there? #bypass_feedback")
        assert bypassed["status"] == "completed" and bypassed["attempts"] == palette["attempts"] - 1 == 1
        path = await conversation(client, SALES)
        turn = await say(client, path, '#chart# <chart concept="pie"><show column=')
        assert turn["nodes"][1:] == ["expand_shortcut_node", "feedback_node", "format_feedback"], "it is broken off"
        turn = await say(client, path, '#chart# <chart concept="pie"><show column="region"/></chart>')
        assert "asp_solving_node" in turn["nodes"] and turn["output"]["pictures"], turn


async def test_what_a_picture_leaves_out_is_said_with_it(api: Api) -> None:
    table = "region,sales\nNorth,30\nNorth,\nSouth,\nEast,inf\n,-5\n"
    async with api.client() as client:
        turn = await say(client, await conversation(client, table), "Plot sales by region #bypass_feedback")
        svg = (await client.get(turn["output"]["pictures"]["svg"])).text
        assert re.search(r">2 rows", svg), "the picture itself says it"
        assert ">(missing)<" in svg and ">South<" not in svg and ">null<" not in svg
        named = [re.findall(r"\d+|'\w+'", each) for each in turn["output"]["warnings"]]
        assert ["1", "'region'"] in named and ["2", "'sales'"] in named
        assert turn["output"]["warnings"][0] in turn["answer"], "and the person reads it"


async def test_files_are_their_owners_and_their_conversations_and_a_bad_one_is_not_kept(api: Api) -> None:
    async with api.client() as client, api.client("admin") as other:
        path = await conversation(client, SALES)
        (file,) = (await client.get(f"{path}/files")).json()["items"]
        assert (await client.get(file["content"])).content == SALES.encode()
        assert (await other.get(f"{path}/files")).status_code == 404
        assert (await client.get("/v1/files/nothing")).status_code == 404
        for name, kind, content, status, code in (
            ("a.csv", "text/csv", b"a,b\n\x00,1\n", 422, "file_has_nul"),
            ("../a.csv", "text/csv", b"a,b\n1,2\n", 422, "name_not_safe"),
            ("a.csv", "application/zip", b"PK", 415, "unsupported_media_type"),
            ("a.csv", "text/csv", b"\n".join([b",".join(b"c%d" % n for n in range(201))] * 2), 422, "table_too_large"),
        ):
            headers = {"Content-Type": kind}
            sent = await client.post(f"{path}/files", params={"name": name}, content=content, headers=headers)
            assert (sent.status_code, sent.json()["error"]["code"]) == (status, code)
        assert (await client.get(f"{path}/files")).json()["items"] == [file]
