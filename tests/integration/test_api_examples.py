"""The agents `care_navigator`, with its calendar as a process of its own, and `skeleton` over REST: skipped tools, a
booking that a person approves (S1), exact nodes, facts from turn to turn."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.apps import SHIPPED
from tests.integration.conftest import Api
from tests.unit.examples.payments_process import free_port, wait_until_healthy

AGENT = "care_navigator"
BUNDLES = {"client_signal", "provider_genome", "patient_context", "therapeutic_fit", "session_narrative"}


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


async def talk(client: httpx.AsyncClient) -> str:
    """Where turns of a new conversation are started."""
    made = await client.post("/v1/conversations", json={"agent": AGENT})
    return f"/v1/conversations/{made.json()['id']}/turns"


async def turn(client: httpx.AsyncClient, path: str, message: str) -> dict[str, Any]:
    answer = await client.post(path, params={"wait": 30}, json={"message": message})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def stages(client: httpx.AsyncClient, of: dict[str, Any]) -> list[dict[str, Any]]:
    """The `stage` events of a turn's stream, which ends with the turn."""
    lines = (await client.get(of["events"])).text.splitlines()
    told = [after for before, after in pairwise(lines) if before == "event: stage"]
    return [json.loads(line.removeprefix("data: ")) for line in told]


async def test_the_second_turn_of_a_conversation_shows_what_it_skipped(api: Api) -> None:
    async with api.client() as client:
        path = await talk(client)
        first = await turn(client, path, "I am anxious and cannot sleep")
        assert (first["status"], first["topology"]) == ("completed", "context_assembly")
        ran = [each["ran"] for each in await stages(client, first) if each["stage"] == "context_assembly"]
        assert {*ran[0], *ran[1]} == BUNDLES and ran[1:] == [["therapeutic_fit"]]
        second = await turn(client, path, "Thanks")
        told = [each for each in await stages(client, second) if each["stage"] == "context_assembly"]
    assert [each["ran"] for each in told] == [[], []]
    assert {(skipped["tool"], skipped["why"]) for each in told for skipped in each["skipped"]} == {
        (name, "same_slice") for name in BUNDLES
    }


async def test_an_approved_booking_is_made_exactly_once(api: Api, calendar: str) -> None:
    async with api.client() as client, api.client("reviewer") as reviewer, httpx.AsyncClient() as outside:
        found = await turn(client, await talk(client), "Book p1 at Monday 10:00")
        assert found["status"] == "awaiting_approval"
        assert (await outside.get(f"{calendar}/bookings")).json() == {"bookings": []}, "nothing before somebody decides"
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


async def test_a_booking_that_a_reviewer_changed_is_told_as_made(api: Api, calendar: str) -> None:
    async with api.client() as client, api.client("reviewer") as reviewer:
        found = await turn(client, await talk(client), "Book p2 at Tuesday 9:00")
        (approval_id,) = found["waiting_for"]["ids"]
        digest = (await reviewer.get(f"/v1/approvals/{approval_id}")).json()["digest"]
        decision = {"decision": "edit", "digest": digest, "args": {"provider": "p2", "slot": "Tuesday 11:00"}}
        assert (await reviewer.post(f"/v1/approvals/{approval_id}/decision", json=decision)).status_code == 200
        await stages(client, found)  # to the turn's end
        answer = (await client.get(f"/v1/turns/{found['turn_id']}")).json()["answer"]
    assert "Tuesday 11:00" in answer and "Tuesday 9:00" not in answer


async def test_words_of_danger_while_a_booking_waits_are_answered_in_the_request_itself(api: Api) -> None:
    async with api.client() as client:
        path = await talk(client)
        waiting = await turn(client, path, "Book p3 at Monday 10:00")
        assert waiting["status"] == "awaiting_approval"
        key = {"Idempotency-Key": f"danger-{waiting['turn_id']}"}
        said = [await client.post(path, json={"message": "I want to  D1E"}, headers=key) for _ in range(2)]
        assert [(each.status_code, each.json()["status"]) for each in said] == [(202, "completed")] * 2
        found = (await client.get(f"/v1/turns/{said[0].json()['turn_id']}")).json()
        assert said[0].json() == said[1].json() and found["answer"]
        told = await stages(client, found)
        assert [each["stage"] for each in told] == ["preflight", "safety_intervention"] and told[0]["at_once"]
        now = await turn(client, path, "i want to end it all")
        assert (now["status"], now["answer"]) == ("completed", found["answer"])
        busy = await client.post(path, json={"message": "Which therapists are there?"})
        assert (busy.status_code, busy.json()["error"]["details"]["turn_id"]) == (409, waiting["turn_id"])
        assert (await client.get(f"/v1/turns/{waiting['turn_id']}")).json()["waiting_for"] == waiting["waiting_for"]
        await client.post(f"/v1/turns/{waiting['turn_id']}/stop")


BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
WHOLE = f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node".split()


async def executed(client: httpx.AsyncClient, message: str) -> dict[str, Any]:
    return dict((await client.post("/v1/execute", json={"agent": "skeleton", "message": message})).json())


async def test_any_text_takes_the_same_way_and_a_success_without_a_word_fails_with_its_type(api: Api) -> None:
    async with api.client() as client:
        for text in ("/echo one two", 'memory_read {"command": "format"}'):
            turn = await executed(client, text)
            assert (turn["status"], turn["topology"], turn["nodes"]) == ("completed", "decision_hub", WHOLE)
            assert text.removeprefix("/echo ") in turn["answer"]
        turn = await executed(client, "say nothing")
    assert (turn["status"], turn["error"]["code"]) == ("failed", "invalid_output")


async def test_a_given_trace_id_reaches_the_response_and_audio_is_stood_in_for(api: Api) -> None:
    given = {"trace_id": "trace-7", "input_type": "audio"}
    async with api.client() as client:
        body = {"agent": "skeleton", "message": "a sound", "metadata": given}
        turn = (await client.post("/v1/execute", json=body)).json()
        events = (await client.get(turn["events"])).text
        bad = [{"input_type": each} for each in ("video", "", 3, ["text"], None)]
        bad += [{"trace_id": each} for each in ("two words", "x" * 129, 7)]
        refused = [await client.post("/v1/execute", json={**body, "metadata": each}) for each in bad]
    assert (turn["status"], turn["nodes"]) == ("completed", WHOLE)
    assert '"trace_id":"trace-7"' in events.replace(" ", "") and "event: stage" in events
    assert [each.status_code for each in refused] == [422] * len(bad)
    assert [each.json()["error"]["code"] for each in refused] == ["bad_input_type"] * 5 + ["bad_trace_id"] * 3


async def test_what_a_person_states_is_known_in_another_conversation(api: Api) -> None:
    async with api.client("admin") as client:
        first, second = [await executed(client, text) for text in ("My name is Ann", "who am I?")]
        events = (await client.get(second["events"])).text.replace(" ", "")
    assert first["conversation_id"] != second["conversation_id"]
    assert '"scope":"user","status":"success"' in events or '"status":"success","scope":"user"' in events
    assert '"facts":1' in events
