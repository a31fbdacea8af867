"""The provider double as a process of its own: its script, its admin routes and its log."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
ASK = {"model": "m", "messages": [{"role": "user", "content": "first please"}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    script = tmp_path_factory.mktemp("double") / "steps.yaml"
    script.write_text(
        "- {match: second, text: for the second}\n- {match: first, text: for the first}\n- {status: 503}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.doubles.provider", "--port", str(port), "--script", str(script)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as made:
            _wait_until_it_answers(made, process)
            yield made
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_it_answers(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(400):
        assert process.poll() is None, "the double ended"
        try:
            client.get("/_requests")
        except httpx.ConnectError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the double did not answer")


def test_a_step_is_chosen_by_order_and_by_text_and_every_request_is_logged(client: httpx.Client) -> None:
    client.delete("/_requests")
    answer = client.post(
        "/v1/chat/completions", json=ASK, headers={"Idempotency-Key": "k-1", "Authorization": "Bearer s"}
    )
    assert answer.json()["choices"][0]["message"]["content"] == "for the first"
    assert client.post("/v1/chat/completions", json=ASK).status_code == 503
    assert client.post("/v1/chat/completions", json=ASK).status_code == 418, "the script is used up"
    seen = client.get("/_requests").json()
    assert [one["outcome"] for one in seen] == ["answered", "503", "no_step"]
    assert [one["idempotency_key"] for one in seen] == ["k-1", "", ""]
    assert seen[0]["authorized"] and not seen[1]["authorized"]
    assert all(one["received_at"] <= one["ended_at"] for one in seen)
    assert seen[0]["number"] < seen[1]["number"] < seen[2]["number"]


def test_a_script_can_be_replaced_while_it_runs(client: httpx.Client) -> None:
    steps = [{"text": "twice", "times": 2}, {"status": 429, "retry_after": "3", "times": None}]
    assert client.post("/_script", json=steps).json() == {"steps": 2}
    answers = [client.post("/v1/chat/completions", json=ASK) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    assert answers[2].headers["retry-after"] == "3"


def test_a_script_that_cannot_be_read_is_refused(client: httpx.Client) -> None:
    assert client.post("/_script", json=[{"fault": "meteor"}]).status_code == 422


def test_a_stream_is_server_sent_events_with_usage_where_it_is_asked_for(client: httpx.Client) -> None:
    client.post("/_script", json=[{"text": "one two", "times": None}])
    plain = client.post("/v1/chat/completions", json={**ASK, "stream": True}).text
    assert plain.endswith("data: [DONE]\n\n") and '"usage"' not in plain and plain.count('"content": "') == 3
    counted = client.post(
        "/v1/chat/completions", json={**ASK, "stream": True, "stream_options": {"include_usage": True}}
    ).text
    assert '"completion_tokens": 2' in counted


def test_a_reset_is_a_reset_on_the_wire(client: httpx.Client) -> None:
    client.post("/_script", json=[{"text": "one two", "fault": "reset"}, {"fault": "reset_at_once"}])
    with (
        pytest.raises(httpx.ReadError),
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as got,
    ):
        got.read()
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        client.post("/v1/chat/completions", json=ASK)
