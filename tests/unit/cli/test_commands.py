"""The other commands: what they ask for, what they show."""

import io
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from syrupy.assertion import SnapshotAssertion

from perdure.cli.demo.stories import attempts, equal, one_transcript, paid_once
from perdure.client import Event, Message, signed_in_words
from tests.unit.apps.api_double import Reply, event, said, streamed
from tests.unit.cli.conftest import APPROVAL, Perdure
from tests.unit.cli.test_outputs import EFFECT, ERASED, STREAM, VERSION, WHOLE
from tests.unit.cli.test_outputs import TURN as WAITING

TURN = WAITING | {"status": "completed", "waiting_for": None}
CONVERSATION = said({"id": "c-1", "agent": "refunds"}, 201)
STARTED = said({"turn_id": "t-1", "conversation_id": "c-1", "status": "accepted"}, 202)


def test_a_chat_goes_on_where_it_was(stack: Perdure) -> None:
    stack.will(STARTED, streamed(event("workflow_complete", status="failed")), said({**TURN, "status": "failed"}))
    assert stack("chat refunds --conversation c-9 -m hi").code == 1
    assert stack.asked[0].path == "/v1/conversations/c-9/turns"


def test_a_chat_in_json_is_every_event_and_then_the_turn(stack: Perdure) -> None:
    stack.will(CONVERSATION, STARTED, STREAM, said(TURN))
    lines = [json.loads(line) for line in stack("chat refunds -m hi --json").out.splitlines()]
    assert stack.asked[1].body == {"message": "hi"}
    assert [line["event"] for line in lines[:-1]][-2:] == ["done", "workflow_complete"]
    assert lines[-1]["answer"] == TURN["answer"]


def test_a_conversation_is_held_line_by_line_until_the_input_ends(
    stack: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", Mock(side_effect=["hi", "  ", "again", EOFError]))
    end = streamed(event("workflow_complete", status="completed"))
    busy = said({"error": {"code": "conversation_busy", "message": "wait", "details": {}}}, 409)
    ended = stack("chat refunds", CONVERSATION, STARTED, end, said(TURN), busy)
    assert ended.code == 0
    assert [asked.body["message"] for asked in stack.asked if asked.path.endswith("/turns")] == ["hi", "again"]
    assert "conversation_busy" in ended.out and "chat refunds --conversation c-1" in ended.out


def test_a_message_into_a_turn_is_followed_to_the_turn_that_hears_it(stack: Perdure) -> None:
    joined = said({"turn_id": "t-1", "conversation_id": "c-1", "status": "running", "joined": True}, 202)
    over = event("workflow_complete", status="completed")
    first = streamed(event("done", status="completed", tokens_used=1, left_over="t-2") + over)
    stack.will(joined, first, streamed(event("done", status="completed", tokens_used=1) + over), said(TURN))
    ended = stack("chat refunds --conversation c-1 --on-busy steer -m 'by the way'")
    assert ended.code == 0 and "t-2" in ended.out
    assert stack.asked[0].body["on_busy"] == "steer"
    assert [each.path.split("/")[3] for each in stack.asked[1:]] == ["t-1", "t-2", "t-2"]


def test_topologies_come_as_manifest_and_as_drawing(stack: Perdure) -> None:
    drawing = Reply(200, b"flowchart TD\n", {"Content-Type": "text/plain"})
    stack.will(said({"name": "p", "nodes": []}), drawing, drawing)
    assert stack("topologies show p").json == {"name": "p", "nodes": []}
    assert stack("topologies show p --mermaid").out == "flowchart TD\n"
    assert stack("topologies show p --mermaid --json").json["mermaid"] == "flowchart TD\n"


def test_a_new_user_gets_a_token_that_is_shown_once(stack: Perdure) -> None:
    user = {"name": "bob", "roles": ["reviewer"]}
    stack.will(said(user, 201), said({"name": "bob", "token": "perdure_bob_x"}, 201))
    added = stack("users add bob --role reviewer").out
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
        ended, as_json = perdure("status"), perdure("status --json")
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
    ended, as_json = perdure("status"), perdure("status --json")
    assert (ended.code, as_json.code) == (1, 1)
    assert "disk" in ended.out
    assert [part["name"] for part in as_json.json["parts"]] == ["worker-llm", "disk"]


def test_status_of_a_tenant_says_whose_the_rest_is(stack: Perdure) -> None:
    whole = {
        "at": "2026-01-01T00:00:00Z", "well": False, "is_operator": False,
        "parts": [{"name": "workers", "fault": "unavailable"}], "turns": [{"status": "queued", "count": 2}],
    }  # fmt: skip
    ended = stack("status", said({}), said(whole))
    assert ended.code == 1 and "workers" in ended.out and "unavailable" in ended.out and "queued" in ended.out
    assert "PERDURE_TOKEN" in ended.out


# --- `perdure effects`: settled once, by who has seen it.


def test_before_the_deadline_nobody_is_told_to_say_that_it_did_not_happen(stack: Perdure) -> None:
    shown = stack("effects show pdk_1", said({**EFFECT, "deadline": "2999-01-01T00:00:00Z"})).out
    assert "2999-01-01 00:00:00 UTC" in shown
    assert "settle pdk_1 happened" in shown and "did_not_happen" not in shown


def test_settling_shows_the_effect_first_and_then_states_it(stack: Perdure) -> None:
    settled = {"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"}
    ended = stack("effects settle pdk_1 happened --comment seen", said(EFFECT), said(settled))
    assert ended.code == 0 and ended.out.count('"order": "1"') == 1
    assert "decided_by" not in ended.out and "rita" in ended.out
    assert stack.asked[1].body == {"outcome": "happened", "comment": "seen"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_settled_already_is_not_settled_again(stack: Perdure, as_json: tuple[str, ...]) -> None:
    stack.will(said({**EFFECT, "state": "done", "settled_by": "rita"}))
    ended = stack("effects", "settle", "pdk_1", "happened", "--comment", "seen", *as_json)
    assert (ended.code, len(stack.asked)) == (5, 1) and "rita" in ended.err


# --- Files from the command line: uploaded before a message, listed, fetched.

FILE = {"id": "f-1", "conversation_id": "c-1", "name": "sales.csv", "media_type": "text/csv", "size_bytes": 18}
PICTURES = {"png": "/v1/files/f-2", "specification": "/v1/files/f-3"}
DRAWN = said({**TURN, "output": {"pictures": PICTURES}})
ASKS = streamed(
    event("clarification.requested", "1.0.0-0", turn_id="t-1", question="Which\x1b column?", request_id="q-1"),
    event("done", "2.0.0-0", status="completed", tokens_used=7, cost_usd=0, duration_ms=10),
    event("workflow_complete", status="completed"),
)


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_bytes(b"region,sales\nN,30\n")
    return path


def test_a_file_is_uploaded_before_what_is_said_and_pictures_come_with_their_commands(
    stack: Perdure, sales: Path
) -> None:
    stack.will(CONVERSATION, said(FILE, 201), STARTED, ASKS, DRAWN)
    ended = stack("chat", "charts", "--file", str(sales), "-m", "Plot sales by region")
    assert ended.code == 0, ended.err
    uploaded = stack.asked[1]
    assert (uploaded.path, uploaded.query) == ("/v1/conversations/c-1/files", {"name": ["sales.csv"]})
    assert (uploaded.headers["content-type"], uploaded.body) == ("text/csv", sales.read_bytes())
    assert "files get f-2 chart.png" in ended.out and "files get f-3 chart.vl.json" in ended.out
    assert "turns answer t-1 TEXT" in ended.out and "\x1b" not in ended.out


def test_a_file_is_uploaded_listed_and_fetched(stack: Perdure, sales: Path, tmp_path: Path) -> None:
    stack.will(said(FILE, 201), said({"items": [FILE], "next": None}), Reply(200, b"\x89PNG"))
    assert stack("files", "upload", "c-1", str(sales)).code == 0
    assert "f-1" in stack("files list c-1").out
    kept = tmp_path / "chart.png"
    assert stack("files", "get", "f-2", str(kept)).code == 0 and kept.read_bytes() == b"\x89PNG"


def test_a_place_that_cannot_be_written_is_told(stack: Perdure, tmp_path: Path) -> None:
    stack.will(Reply(200, b"x"))
    ended = stack("files", "get", "f-2", str(tmp_path / "no" / "such" / "folder"))
    assert ended.code == 1 and "Traceback" not in ended.err


# --- Links as a person asks for them.

MADE = {"code": "local.abc", "expires_at": "2026-01-01T10:15:00Z"}


@pytest.mark.parametrize(
    ("words", "role", "host"), [((), "requester", "127.0.0.1"), (("reviewer",), "reviewer", "localhost")]
)
def test_each_local_user_has_a_name_of_the_machine(
    stack: Perdure, words: tuple[str, ...], role: str, host: str
) -> None:
    stack.will(said(MADE, 201))
    ended = stack("link", *words, "--path", "/chat")
    assert ended.code == 0
    address = httpx.URL(ended.out.strip())
    assert (address.host, address.port, address.path) == (host, httpx.URL(stack.url).port, "/sign-in")
    assert dict(address.params) == {"code": "local.abc", "next": "/chat"}
    (asked,) = stack.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/v1/auth/codes", f"Bearer t-{role}")


# --- `perdure prompts`: what is promoted is the text that was shown, and a draft is what the editor left.

MISSING = said({"error": {"code": "prompt_template_not_found", "message": "no", "details": {}}}, 404)


@pytest.mark.parametrize("stage", ["active", "archived"])
def test_what_cannot_move_on_is_not_even_asked_about(stack: Perdure, stage: str) -> None:
    assert stack("prompts promote v-1", said({**VERSION, "stage": stage})).code == 1
    assert len(stack.asked) == 1


def test_a_draft_is_saved_from_a_file(stack: Perdure, tmp_path: Path) -> None:
    (tmp_path / "voice.md").write_text("Be brief.\n")
    stack.will(said(VERSION))
    ended = stack("prompts", "edit", "voice", "--file", str(tmp_path / "voice.md"))
    assert ended.code == 0
    sent = stack.asked[0]
    assert (sent.method, sent.path, sent.body) == ("PUT", "/v1/prompt-templates/voice/draft", {"text": "Be brief.\n"})


def test_the_editor_opens_on_what_speaks_now_and_its_text_is_saved(
    stack: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys\np = sys.argv[1]\nt = open(p).read()\nopen(p, 'w').write(t + ' Be brief.')\n")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    assert stack("prompts edit voice", said({**VERSION, "text": "Be kind."}), said(VERSION)).code == 0
    assert stack.asked[1].body == {"text": "Be kind. Be brief."}


def test_a_template_that_is_not_there_yet_begins_empty_and_an_empty_text_is_not_saved(
    stack: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "true")
    ended = stack("prompts edit voice", MISSING)
    assert (ended.code, len(stack.asked)) == (2, 1)


# --- `perdure users register`: the first person with the setup code or the local administrator's token, others invited.

DONE = {
    "user": {"id": "u", "name": "boss", "display_name": "boss", "roles": ["requester", "admin"]},
    "access_token": "hush-access",
    "refresh_token": "hush-refresh",
    "expires_in": 900,
}


@pytest.mark.parametrize(
    ("words", "sent", "token"),
    [
        (["--setup-code", "ABCD-EFGH"], {"setup_code": "ABCD-EFGH"}, None),
        (["--invitation", "perdure_invitation_x"], {"invitation": "perdure_invitation_x"}, None),
        ([], {}, "Bearer t-admin"),
    ],
)
def test_a_person_registers_with_a_password_that_is_asked_for(
    stack: Perdure,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sent: dict[str, str],
    token: str | None,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **given: "green tractors sing" if given["hide_input"] else "")
    stack.will(said(DONE, 201))
    ended = stack("users", "register", "boss", *words)
    assert ended.code == 0 and "hush" not in ended.out
    if not words:
        assert ended.seen == snapshot
    (asked,) = stack.asked
    assert (asked.method, asked.path) == ("POST", "/v1/auth/register")
    assert asked.body == {"name": "boss", "password": "green tractors sing", **sent}
    assert asked.headers.get("authorization") == token and "idempotency-key" not in asked.headers


def test_a_registration_can_be_refused_and_as_json_no_token_is_printed(
    stack: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "green tractors sing")
    refused = {"error": {"code": "setup_code_invalid", "message": "This setup code has expired", "details": {}}}
    ended = stack("users register boss --setup-code x", said(refused, 403), said(DONE, 201))
    assert ended.code != 0 and "setup_code_invalid" in ended.err
    shown = stack("users register boss --setup-code x --json")
    assert shown.json["user"]["name"] == "boss" and "hush" not in shown.out


@pytest.mark.parametrize(
    ("signed_in", "named"),
    [
        ({"how": "password", "invited_by": "ann"}, ["ann"]),
        ({"how": "invitation", "created_by": "ann"}, ["ann"]),
        ({"how": "token", "created_by": "ann", "created_by_through": [{"by": "root"}]}, ["ann", "root"]),
        ({"how": "chat", "created_by": "unknown"}, ["unknown"]),
    ],
)
def test_how_a_decider_signed_in_names_who_vouched(signed_in: object, named: list[str]) -> None:
    words = signed_in_words({"signed_in": signed_in})
    assert all(name in words for name in named)


def test_each_way_to_sign_in_has_its_words_and_an_unknown_way_has_none() -> None:
    words = [signed_in_words({"signed_in": {"how": how}}) for how in ("password", "local", "oidc", "token")]
    assert len(set(words)) == 4 and all(words)
    for data in ({"signed_in": {"how": "something new"}}, {"signed_in": None}, {"signed_in": "password"}, {}, None):
        assert signed_in_words(data) == ""


def test_the_history_shows_how_each_decider_was_signed_in(stack: Perdure) -> None:
    data = {"type": "approve", "signed_in": {"how": "token", "created_by": "root"}}
    entry = {"what": "approval.decided", "at": "2026-11-21T10:00:00Z", "by": "rita", "data": data}
    out = stack("approvals show a-1", said({**APPROVAL, "history": [entry]})).out
    assert "token" in out and "root" in out


# --- The audit as typed by whoever has to trust it.

HEAD = {"tenant": "local", "seq": 7, "hash": "ab" * 32, "at": "t", "key": "k", "hmac": "h"}


def lines(*rows: dict[str, Any]) -> Reply:
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return Reply(200, body.encode(), {"Content-Type": "application/jsonl"})


def test_heads_that_were_kept_are_sent_the_newest_of_many(stack: Perdure, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps(HEAD | {"seq": seq}) + "\n" for seq in range(1, 1_001)))
    stack.will(said(WHOLE))
    assert stack("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].method == "POST"
    assert [head["seq"] for head in stack.asked[0].body["heads"]] == list(range(501, 1_001))


@pytest.mark.parametrize("text", ["no json\n", "{"])
def test_a_file_that_has_no_heads_is_a_usage_error(stack: Perdure, tmp_path: Path, text: str) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(text)
    ended = stack("audit", "verify", "--heads", str(kept))
    assert ended.code == 2 and str(kept) in ended.err and stack.asked == []


def test_an_export_is_lines_of_json_page_by_page(stack: Perdure) -> None:
    text = "ü\x1b[31m a\u2028b\u2029c\u0085d"
    first = [{"seq": seq, "kind": "a", "data": {"text": text}} for seq in range(1, 1_001)]
    ended = stack("audit export", lines(*first), lines({"seq": 1_001, "kind": "b"}))
    assert ended.code == 0
    rows = [json.loads(line) for line in ended.out.split("\n") if line]
    assert [row["seq"] for row in rows] == list(range(1, 1_002)) and rows[0]["data"]["text"] == text
    assert ended.out.isascii() and "\x1b" not in ended.out
    assert [each.query["after"] for each in stack.asked] == [["0"], ["1000"]]
    assert stack.asked[0].headers["authorization"] == "Bearer t-admin"


def test_heads_are_cut_at_line_ends_alone(stack: Perdure, tmp_path: Path) -> None:
    kept, head = tmp_path / "kept.jsonl", HEAD | {"tenant": "a\u2028b\u0085c"}
    kept.write_text(json.dumps(head, ensure_ascii=False) + "\n\n", encoding="utf-8")
    stack.will(said(WHOLE))
    assert stack("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].body["heads"] == [head]


def test_a_person_is_erased_only_when_asked_once_more(stack: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO("n\n"))
        assert stack("users erase ann").code == 1
    assert stack.asked == []
    assert stack("users erase ann --yes", said(ERASED)).code == 0 and len(stack.asked) == 1


# --- The demo's claims fail where what they claim is not so.

START, COMPLETE = "generation.start", "generation.complete"


def log(*kinds_and_calls: tuple[str, str]) -> list[Event]:
    return [Event(kind, {"call_id": call_id}, str(place)) for place, (kind, call_id) in enumerate(kinds_and_calls)]


def test_a_call_asked_twice_and_settled_once_was_paid_once() -> None:
    events = log((START, "m1"), (START, "m1"), (COMPLETE, "m1"), (START, "m2"), (COMPLETE, "m2"))
    assert paid_once("its", events).held
    assert attempts(events, START) == {"m1": 2, "m2": 1}


def test_a_call_asked_again_after_it_was_settled_was_paid_twice() -> None:
    assert not paid_once("its", log((START, "m1"), (COMPLETE, "m1"), (START, "m1"))).held


def test_two_settles_of_one_call_or_none_at_all_do_not_hold() -> None:
    assert not paid_once("its", log((START, "m1"), (COMPLETE, "m1"), (COMPLETE, "m1"))).held
    assert not paid_once("its", log((START, "m1"))).held
    assert not paid_once("its", []).held


def test_a_doubled_message_or_other_words_in_the_readers_hands_do_not_hold() -> None:
    said = [Message(id="1", role="user", content="q"), Message(id="2", role="assistant", content="a")]
    assert one_transcript(said, {"m1": "a", "m0": ""}, ("user", "assistant")).held
    assert not one_transcript([*said, said[1]], {"m1": "a"}, ("user", "assistant")).held
    assert not one_transcript(said, {"m1": "aa"}, ("user", "assistant")).held


def test_a_claim_of_equality_holds_only_for_equal_values() -> None:
    assert equal("refunds", 1, 1, "ledger").held and not equal("refunds", 2, 1, "ledger").held
