"""The agent `skeleton` over REST: exact nodes, ids that are kept, facts from turn to turn."""

import pytest

from tests.integration.conftest import Api

BEGIN = "router_node state_init_node decision_logic_node task_preprocessing_node decision_logic_node"
READ = "memory_read_node decision_logic_node long_term_memory_read_node decision_logic_node"
ANSWER = "model_call_node result_handling_node decision_logic_node"
WRITE = "memory_write_node decision_logic_node long_term_memory_write_node decision_logic_node"
WHOLE = f"{BEGIN} {READ} {ANSWER} {WRITE} format_response_node".split()


@pytest.mark.parametrize("text", ["/echo one two", 'memory_read {"command": "format"}'])
async def test_any_text_takes_the_same_way(api: Api, text: str) -> None:
    async with api.client() as client:
        turn = (await client.post("/v1/execute", json={"agent": "skeleton", "message": text})).json()
    assert (turn["status"], turn["topology"], turn["nodes"]) == ("completed", "decision_hub", WHOLE)
    assert text.removeprefix("/echo ") in turn["answer"]


async def test_a_success_without_a_word_fails_with_its_type(api: Api) -> None:
    async with api.client() as client:
        turn = (await client.post("/v1/execute", json={"agent": "skeleton", "message": "say nothing"})).json()
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
        first = (await client.post("/v1/execute", json={"agent": "skeleton", "message": "My name is Ann"})).json()
        second = (await client.post("/v1/execute", json={"agent": "skeleton", "message": "who am I?"})).json()
        events = (await client.get(second["events"])).text.replace(" ", "")
    assert first["conversation_id"] != second["conversation_id"]
    assert '"scope":"user","status":"success"' in events or '"status":"success","scope":"user"' in events
    assert '"facts":1' in events
