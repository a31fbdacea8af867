"""The agents `care_navigator`, `skeleton` and `chart_builder` over REST: what is skipped, approved, drawn."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.apps import SHIPPED
from perdure.local.ports import free_port
from tests.integration.conftest import Api, Caller
from tests.unit.examples.payments_process import wait_until_healthy

AGENT = "care_navigator"


@pytest.fixture(scope="module", autouse=True)
def calendar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, home = free_port(), tmp_path_factory.mktemp("calendar")
    environ = {**os.environ, "BOOKINGS_PORT": str(port), "PERDURE_COMPANION_HOME": str(home)}
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, str(Path(SHIPPED) / "care" / "bookings.py")], env=environ)
    try:
        wait_until_healthy(address, process)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PERDURE_SECRET_BOOKINGS_URL", address)
            yield address
    finally:
        process.kill()
        process.wait()


async def conversation(client: httpx.AsyncClient, *tables: str, agent: str = "chart_builder") -> str:
    made = await client.post("/v1/conversations", json={"agent": agent})
    path = f"/v1/conversations/{made.json()['id']}"
    for number, table in enumerate(tables):
        params, headers = {"name": f"t{number}.csv"}, {"Content-Type": "text/csv"}
        sent = await client.post(f"{path}/files", params=params, content=table, headers=headers)
        assert sent.status_code == 201, sent.text
    return path


async def say(client: httpx.AsyncClient, path: str, message: str, **given: Any) -> dict[str, Any]:
    answer = await client.post(f"{path}/turns", params={"wait": 100}, json={"message": message, **given}, timeout=120)
    assert answer.status_code == 200, answer.text
    turn: dict[str, Any] = answer.json()
    return turn


async def stages(client: httpx.AsyncClient, of: dict[str, Any]) -> list[dict[str, Any]]:
    """The `stage` events of a turn's stream, which ends with the turn."""
    lines = (await client.get(of["events"])).text.splitlines()
    told = [after for before, after in pairwise(lines) if before == "event: stage"]
    return [json.loads(line.removeprefix("data: ")) for line in told]


async def test_an_approved_booking_is_made_exactly_once(api: Api, calendar: str) -> None:
    async with api.client() as client, api.client("reviewer") as reviewer, httpx.AsyncClient() as outside:
        found = await say(client, await conversation(client, agent=AGENT), "Book p1 at Monday 10:00")
        assert found["status"] == "awaiting_approval"
        assert (await outside.get(f"{calendar}/bookings")).json() == {"bookings": []}, "nothing before a decision"
        (approval_id,) = found["waiting_for"]["ids"]
        approval = (await reviewer.get(f"/v1/approvals/{approval_id}")).json()
        assert (approval["tool"], approval["args"]) == ("book_session", {"provider": "p1", "slot": "Monday 10:00"})
        decision = {"decision": "approve", "digest": approval["digest"]}
        for expected in (200, 409):
            decided = await reviewer.post(f"/v1/approvals/{approval_id}/decision", json=decision)
            assert decided.status_code == expected, decided.text
        told = await stages(client, found)  # to the turn's end
        done = (await client.get(f"/v1/turns/{found['turn_id']}")).json()
        assert done["status"] == "completed" and all(each in done["answer"] for each in ("p1", "Monday 10:00"))
        assert done["nodes"].count("preflight") == 1 and done["nodes"][-1] == "finalize"
        assert [each["stage"] for each in told].count("preflight") == 1
        booked = (await outside.get(f"{calendar}/bookings")).json()
        assert booked == {"bookings": [{"number": 1, "provider": "p1", "slot": "Monday 10:00"}]}
        effects = (await reviewer.get("/v1/effects")).json()["items"]
    mine = [(each["tool"], each["effect"], each["state"]) for each in effects if each["turn_id"] == found["turn_id"]]
    assert mine == [("book_session", "keyed", "done")]


BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
WHOLE = f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node".split()


async def executed(client: httpx.AsyncClient, message: str) -> dict[str, Any]:
    return dict((await client.post("/v1/execute", json={"agent": "skeleton", "message": message})).json())


async def test_any_text_takes_the_same_route_and_an_empty_answer_fails_with_its_type(requester: Caller) -> None:
    for text in ("/echo one two", 'memory_read {"command": "format"}'):
        turn = await executed(requester, text)
        assert (turn["status"], turn["topology"], turn["nodes"]) == ("completed", "decision_hub", WHOLE)
        assert text.removeprefix("/echo ") in turn["answer"]
    turn = await executed(requester, "say nothing")
    assert (turn["status"], turn["error"]["code"]) == ("failed", "invalid_output")


async def test_a_given_trace_id_reaches_the_response_and_audio_is_replaced_by_a_stub(requester: Caller) -> None:
    body = {"agent": "skeleton", "message": "a sound", "metadata": {"trace_id": "trace-7", "input_type": "audio"}}
    turn = (await requester.post("/v1/execute", json=body)).json()
    events = (await requester.get(turn["events"])).text
    bad = [{"input_type": each} for each in ("video", "", 3, ["text"], None)]
    bad += [{"trace_id": each} for each in ("two words", "x" * 129, 7)]
    refused = [await requester.post("/v1/execute", json={**body, "metadata": each}) for each in bad]
    assert (turn["status"], turn["nodes"]) == ("completed", WHOLE)
    assert '"trace_id":"trace-7"' in events.replace(" ", "") and "event: stage" in events
    assert [each.status_code for each in refused] == [422] * len(bad)
    assert [each.json()["error"]["code"] for each in refused] == ["bad_input_type"] * 5 + ["bad_trace_id"] * 3


async def test_a_fact_that_a_user_states_is_known_in_another_conversation(admin: Caller) -> None:
    first, second = [await executed(admin, text) for text in ("My name is Ann", "who am I?")]
    events = (await admin.get(second["events"])).text.replace(" ", "")
    assert first["conversation_id"] != second["conversation_id"]
    assert '"scope":"user","status":"success"' in events or '"status":"success","scope":"user"' in events
    assert '"facts":1' in events


SALES = "region,sales,day\nNorth,30,2024-01-01\nSouth,10,2024-01-02\nNorth,5,2024-01-03\nNorth,,2024-01-04\n"


async def reply(client: httpx.AsyncClient, turn: dict[str, Any], **payload: Any) -> dict[str, Any]:
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


async def test_plotting_a_column_against_another_returns_a_picture(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client, SALES)
        turn = await say(client, path, "Plot sales by region")
        assert turn["status"] == "completed", turn["error"]
        assert turn["output"]["warnings"][0] in turn["answer"], "the person reads what the picture leaves out"
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
        kept = sorted(file["name"] for file in (await client.get(f"{path}/files")).json()["items"] if file["turn_id"])
        assert kept == ["chart.png", "chart.svg", "chart.vl.json", "rows.json"]


async def test_an_unclear_request_asks_a_question_and_its_answer_returns_a_picture(api: Api) -> None:
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


async def test_a_message_without_a_task_runs_no_solver_and_a_shortcut_only_the_solver(requester: Caller) -> None:
    path = await conversation(requester)
    without = await say(requester, path, "Plot sales by region")
    assert without["status"] == "completed" and without["answer"] and not without["output"].get("pictures")
    palette = await say(requester, path, "Which colours are there?")
    assert palette["output"]["suggestions"][0]["kind"] == "custom_palette" and palette["output"]["selection_prompt"]
    arrived = await say(requester, path, "#uploaded# t.csv")
    assert arrived["nodes"] == ["initialize_processing_state", "feedback_node", "format_feedback"]
    assert (await say(requester, path, "/echo one two"))["answer"] == "one two"
    bypassed = await say(requester, path, "Which colours are there? #bypass_feedback")
    assert bypassed["status"] == "completed" and bypassed["attempts"] == palette["attempts"] - 1 == 1
    path = await conversation(requester, SALES)
    turn = await say(requester, path, '#chart# <chart concept="pie"><show column=')
    assert turn["nodes"][1:] == ["expand_shortcut_node", "feedback_node", "format_feedback"], "it is broken off"
    turn = await say(requester, path, '#chart# <chart concept="pie"><show column="region"/></chart>')
    assert "asp_solving_node" in turn["nodes"] and turn["output"]["pictures"], turn
