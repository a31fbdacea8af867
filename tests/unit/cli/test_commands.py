"""The other commands: what they ask for, what they show."""

import json
import os
import shutil
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, event, said, streamed
from tests.unit.cli.conftest import Perdure
from tests.unit.cli.test_outputs import STREAM
from tests.unit.cli.test_outputs import TURN as WAITING

TURN = WAITING | {"status": "completed", "waiting_for": None}
CONVERSATION = said({"id": "c-1", "agent": "refunds"}, 201)
STARTED = said({"turn_id": "t-1", "conversation_id": "c-1", "status": "accepted"}, 202)


def test_a_chat_goes_on_where_it_was(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(STARTED, streamed(event("workflow_complete", status="failed")), said({**TURN, "status": "failed"}))
    assert perdure("chat", "refunds", "--conversation", "c-9", "-m", "hi").code == 1
    assert stack.asked[0].path == "/v1/conversations/c-9/turns"


def test_a_chat_in_json_is_every_event_and_then_the_turn(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(CONVERSATION, STARTED, STREAM, said(TURN))
    lines = [json.loads(line) for line in perdure("chat", "refunds", "-m", "hi", "--json").out.splitlines()]
    assert stack.asked[1].body == {"message": "hi"}
    assert [line["event"] for line in lines[:-1]][-2:] == ["done", "workflow_complete"]
    assert lines[-1]["answer"] == TURN["answer"]


def test_a_conversation_is_held_line_by_line_until_the_input_ends(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", Mock(side_effect=["hi", "  ", "again", EOFError]))
    end = streamed(event("workflow_complete", status="completed"))
    busy = said({"error": {"code": "conversation_busy", "message": "wait", "details": {}}}, 409)
    stack.will(CONVERSATION, STARTED, end, said(TURN), busy)
    ended = perdure("chat", "refunds")
    assert ended.code == 0
    assert [asked.body["message"] for asked in stack.asked if asked.path.endswith("/turns")] == ["hi", "again"]
    assert "conversation_busy" in ended.out and "chat refunds --conversation c-1" in ended.out


def test_a_message_into_a_turn_is_followed_to_the_turn_that_hears_it(perdure: Perdure, stack: ApiDouble) -> None:
    joined = said({"turn_id": "t-1", "conversation_id": "c-1", "status": "running", "joined": True}, 202)
    over = event("workflow_complete", status="completed")
    first = streamed(event("done", status="completed", tokens_used=1, left_over="t-2") + over)
    stack.will(joined, first, streamed(event("done", status="completed", tokens_used=1) + over), said(TURN))
    ended = perdure("chat", "refunds", "--conversation", "c-1", "--on-busy", "steer", "-m", "by the way")
    assert ended.code == 0 and "t-2" in ended.out
    assert stack.asked[0].body["on_busy"] == "steer"
    assert [each.path.split("/")[3] for each in stack.asked[1:]] == ["t-1", "t-2", "t-2"]


def test_topologies_come_as_manifest_and_as_drawing(perdure: Perdure, stack: ApiDouble) -> None:
    drawing = Reply(200, b"flowchart TD\n", {"Content-Type": "text/plain"})
    stack.will(said({"name": "p", "nodes": []}), drawing, drawing)
    assert perdure("topologies", "show", "p").json == {"name": "p", "nodes": []}
    assert perdure("topologies", "show", "p", "--mermaid").out == "flowchart TD\n"
    assert perdure("topologies", "show", "p", "--mermaid", "--json").json["mermaid"] == "flowchart TD\n"


def test_a_new_user_gets_a_token_that_is_shown_once(perdure: Perdure, stack: ApiDouble) -> None:
    user = {"name": "bob", "roles": ["reviewer"]}
    stack.will(said(user, 201), said({"name": "bob", "token": "perdure_bob_x"}, 201))
    added = perdure("users", "add", "bob", "--role", "reviewer").out
    assert "perdure_bob_x" in added and "PERDURE_TOKEN" in added
    assert [asked.path for asked in stack.asked] == ["/v1/users", "/v1/users/bob/tokens"]
    assert "idempotency-key" not in stack.asked[1].headers


def test_init_writes_an_app_and_refuses_a_folder_with_files(perdure: Perdure, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    ended = perdure("init", str(folder))
    assert ended.code == 0 and (folder / "README.md").is_file()
    assert perdure("init", str(folder)).code == 2


def test_status_asks_every_part_and_hides_every_credential(perdure: Perdure, home: Path) -> None:
    with socket.socket() as server, socket.socket() as dead:
        for each in (server, dead):
            each.bind(("127.0.0.1", 0))
        server.listen()
        live = f"127.0.0.1:{server.getsockname()[1]}"
        run = {
            "temporal": live,
            "postgres": f"postgresql://perdure_app:hunter2@{live}/perdure",
            "redis": f"redis://:hunter2@127.0.0.1:{dead.getsockname()[1]}/0",
            "pids": {"worker-llm": os.getpid(), "worker-relay": os.getpid()},
            "ready": ["worker-llm"],
            "tokens": {"requester": "hunter2"},
        }
        (home / "run.json").write_text(json.dumps(run))
        ended, as_json = perdure("status"), perdure("status", "--json")
    assert (ended.code, as_json.code) == (1, 1)
    assert "hunter2" not in ended.out + as_json.out
    states = {part["name"]: part["state"] for part in as_json.json["parts"]}
    assert states == {
        "temporal": "answers",
        "postgres": "answers",
        "redis": "silent",
        "worker-llm": "runs",
        "worker-relay": "not ready",
    }


def test_a_disk_with_hardly_any_room_left_is_told_and_is_not_well(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "run.json").write_text(json.dumps({"pids": {"worker-llm": os.getpid()}, "ready": ["worker-llm"]}))
    assert perdure("status").code == 0
    monkeypatch.setenv("PERDURE_LEAST_FREE_BYTES", str(shutil.disk_usage(home).total))
    ended, as_json = perdure("status"), perdure("status", "--json")
    assert (ended.code, as_json.code) == (1, 1)
    assert "disk" in ended.out
    assert [part["name"] for part in as_json.json["parts"]] == ["worker-llm", "disk"]


def test_status_of_a_tenant_says_whose_the_rest_is(perdure: Perdure, stack: ApiDouble) -> None:
    whole = {
        "at": "2026-01-01T00:00:00Z", "well": False, "is_operator": False,
        "parts": [{"name": "workers", "fault": "unavailable"}], "turns": [{"status": "queued", "count": 2}],
    }  # fmt: skip
    stack.will(said({}), said(whole))
    ended = perdure("status")
    assert ended.code == 1 and "workers" in ended.out and "unavailable" in ended.out and "queued" in ended.out
    assert "PERDURE_TOKEN" in ended.out
