"""The other commands: what they ask for, what they show, and how checks of skills and MCP servers end."""

import io
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from perdure.apps.mcp import lock_path
from perdure.cli.demo.scenarios import check_calls_settled_once, check_equal, check_transcript, count_by_call
from perdure.client import Event, Message, signed_in_words
from tests.unit.apps.api_double import Reply, event, reply, streamed
from tests.unit.apps.skill_app import SKILL, WATER, write_app
from tests.unit.cli.conftest import LIAR, Perdure, refusal
from tests.unit.cli.test_outputs import EFFECT, ERASED, FILE, STATUS, STREAM, VERSION, WHOLE
from tests.unit.cli.test_outputs import TURN as WAITING

TURN = WAITING | {"status": "completed", "waiting_for": None}
CONVERSATION = reply({"id": "c-1", "agent": "refunds"}, 201)
STARTED = reply({"turn_id": "t-1", "conversation_id": "c-1", "status": "accepted"}, 202)
BOSS = {"id": "u", "name": "boss", "display_name": "boss", "roles": ["requester", "admin"]}
DONE = reply({"user": BOSS, "access_token": "hush-access", "refresh_token": "hush-refresh", "expires_in": 900}, 201)
HEAD = {"tenant": "local", "seq": 7, "hash": "ab" * 32, "at": "t", "key": "k", "hmac": "h"}
START, COMPLETE = "generation.start", "generation.complete"


def test_a_chat_continues_where_it_was(cli: Perdure) -> None:
    cli.will(STARTED, streamed(event("workflow_complete", status="failed")), reply({**TURN, "status": "failed"}))
    assert cli("chat refunds --conversation c-9 -m hi").code == 1
    assert cli.asked[0].path == "/v1/conversations/c-9/turns"


def test_a_chat_in_json_is_every_event_and_then_the_turn(cli: Perdure) -> None:
    lines = cli("chat refunds -m hi --json", CONVERSATION, STARTED, STREAM, reply(TURN)).out.splitlines()
    assert cli.asked[1].body == {"message": "hi"}
    *events, turn = map(json.loads, lines)
    assert [each["event"] for each in events][-2:] == ["done", "workflow_complete"] and turn["answer"] == TURN["answer"]


def test_a_conversation_continues_until_the_input_ends(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", Mock(side_effect=["hi", "  ", "again", EOFError]))
    end = streamed(event("workflow_complete", status="completed"))
    ended = cli("chat refunds", CONVERSATION, STARTED, end, reply(TURN), refusal(409, "conversation_busy"))
    assert ended.code == 0
    assert [asked.body["message"] for asked in cli.asked if asked.path.endswith("/turns")] == ["hi", "again"]
    assert "conversation_busy" in ended.out and "chat refunds --conversation c-1" in ended.out


def test_a_joined_message_is_followed_to_the_turn_that_receives_it(cli: Perdure) -> None:
    joined = reply({"turn_id": "t-1", "conversation_id": "c-1", "status": "running", "joined": True}, 202)
    over = event("workflow_complete", status="completed")
    first = streamed(event("done", status="completed", tokens_used=1, left_over="t-2") + over)
    cli.will(joined, first, streamed(event("done", status="completed", tokens_used=1) + over), reply(TURN))
    ended = cli("chat refunds --conversation c-1 --on-busy steer -m 'by the way'")
    assert ended.code == 0 and "t-2" in ended.out
    assert cli.asked[0].body["on_busy"] == "steer"
    assert [each.path.split("/")[3] for each in cli.asked[1:]] == ["t-1", "t-2", "t-2"]


def test_topologies_are_drawn(cli: Perdure) -> None:
    drawing = Reply(200, b"flowchart TD\n", {"Content-Type": "text/plain"})
    assert cli("topologies show p --mermaid", drawing).out == "flowchart TD\n"
    assert cli("topologies show p --mermaid --json", drawing).json["mermaid"] == "flowchart TD\n"


def test_status_checks_every_part_and_hides_every_credential(perdure: Perdure, home: Path) -> None:
    with socket.socket() as server, socket.socket() as dead:
        for each in (server, dead):
            each.bind(("127.0.0.1", 0))
        server.listen()
        live = f"127.0.0.1:{server.getsockname()[1]}"
        run = {
            "temporal": live, "postgres": f"postgresql://perdure_app:hunter2@{live}/perdure",
            "redis": f"redis://:hunter2@127.0.0.1:{dead.getsockname()[1]}/0",
            "pids": {"worker-llm": os.getpid(), "worker-relay": os.getpid()}, "ready": ["worker-llm"],
            "tokens": {"requester": "hunter2"},
        }  # fmt: skip
        (home / "run.json").write_text(json.dumps(run))
        ended, as_json = perdure("status"), perdure("status --json")
    assert (ended.code, as_json.code) == (1, 1)
    assert "hunter2" not in ended.out + as_json.out
    assert "valkey" in ended.out and "redis" not in ended.out, "people read one name"
    states = {part["name"]: part["state"] for part in as_json.json["parts"]}
    told = {"temporal": "answers", "postgres": "answers", "redis": "silent"}
    assert states == told | {"worker-llm": "runs", "worker-relay": "not ready"}


def test_a_nearly_full_disk_is_reported(perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "run.json").write_text(json.dumps({"pids": {"worker-llm": os.getpid()}, "ready": ["worker-llm"]}))
    assert perdure("status").code == 0
    monkeypatch.setenv("PERDURE_LEAST_FREE_BYTES", str(shutil.disk_usage(home).total))
    ended, as_json = perdure("status"), perdure("status --json")
    assert (ended.code, as_json.code) == (1, 1) and "disk" in ended.out
    assert [part["name"] for part in as_json.json["parts"]] == ["worker-llm", "disk"]


def test_a_tenants_status_names_who_sees_the_rest(cli: Perdure) -> None:
    ended = cli("status", reply({}), reply(STATUS | {"is_operator": False}))
    assert ended.code == 1 and "PERDURE_TOKEN" in ended.out


def test_the_outcome_of_no_effect_is_not_suggested_before_the_deadline(cli: Perdure) -> None:
    shown = cli("effects show pdk_1", reply({**EFFECT, "deadline": "2999-01-01T00:00:00Z"})).out
    assert "2999-01-01 00:00:00 UTC" in shown
    assert "settle pdk_1 happened" in shown and "did_not_happen" not in shown


@pytest.mark.parametrize("as_json", ["", " --json"])
def test_a_settled_effect_is_not_settled_again(cli: Perdure, as_json: str) -> None:
    done = reply({**EFFECT, "state": "done", "settled_by": "rita"})
    ended = cli(f"effects settle pdk_1 happened --comment seen{as_json}", done)
    assert (ended.code, len(cli.asked)) == (5, 1) and "rita" in ended.err


@pytest.mark.parametrize(("is_terminal", "given", "code"), [(True, "", 0), (True, " --yes", 2), (False, "", 2)])
def test_a_missing_comment_is_asked_for_at_a_terminal(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, given: str, code: int
) -> None:
    typed = iter((" ", "seen"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal)
    monkeypatch.setattr("typer.confirm", lambda _question: True)
    monkeypatch.setattr("typer.prompt", lambda _question, **_: next(typed))
    cli.will(*([reply(EFFECT), reply({"key": "pdk_1", "outcome": "happened"})] if code == 0 else []))
    assert cli(f"effects settle pdk_1 happened{given}").code == code
    assert [asked.body["comment"] for asked in cli.asked[1:]] == (["seen"] if code == 0 else [])


DRAWN = reply({**TURN, "output": {"pictures": {"png": "/v1/files/f-2", "specification": "/v1/files/f-3"}}})
ASKS = streamed(
    event("clarification.requested", "1.0.0-0", turn_id="t-1", question="Which\x1b column?", request_id="q-1"),
    event("done", "2.0.0-0", status="completed", tokens_used=7, cost_usd=0, duration_ms=10),
    event("workflow_complete", status="completed"),
)


def test_a_file_is_uploaded_before_the_message_and_pictures_are_saved(cli: Perdure, tmp_path: Path) -> None:
    sales = tmp_path / "sales.csv"
    sales.write_bytes(b"region,sales\nN,30\n")
    cli.will(CONVERSATION, reply(FILE, 201), STARTED, ASKS, DRAWN)
    ended = cli(f"chat charts --file {sales} -m 'Plot sales by region'")
    assert ended.code == 0, ended.err
    uploaded = cli.asked[1]
    assert (uploaded.path, uploaded.query) == ("/v1/conversations/c-1/files", {"name": ["sales.csv"]})
    assert (uploaded.headers["content-type"], uploaded.body) == ("text/csv", sales.read_bytes())
    assert "files get f-2 chart.png" in ended.out and "files get f-3 chart.vl.json" in ended.out
    assert "turns answer t-1 TEXT" in ended.out and "\x1b" not in ended.out
    ended = cli(f"files get f-2 {tmp_path / 'no' / 'such' / 'folder'}", Reply(200, b"x"))
    assert ended.code == 1 and "Traceback" not in ended.err


@pytest.mark.parametrize(("role", "host"), [("requester", "127.0.0.1"), ("reviewer", "localhost")])
def test_each_local_user_gets_a_sign_in_link_with_its_own_host(cli: Perdure, role: str, host: str) -> None:
    words = f"link --path /chat {role if role == 'reviewer' else ''}"
    ended = cli(words, reply({"code": "local.abc", "expires_at": "2026-01-01T10:15:00Z"}, 201))
    assert ended.code == 0
    address = httpx.URL(ended.out.strip())
    assert (address.host, address.port, address.path) == (host, httpx.URL(cli.url).port, "/sign-in")
    assert dict(address.params) == {"code": "local.abc", "next": "/chat"}
    (asked,) = cli.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/v1/auth/codes", f"Bearer t-{role}")


@pytest.mark.parametrize("stage", ["active", "archived"])
def test_a_version_that_cannot_be_promoted_is_not_sent(cli: Perdure, stage: str) -> None:
    assert cli("prompts promote v-1", reply({**VERSION, "stage": stage})).code == 1
    assert len(cli.asked) == 1


def test_the_editor_opens_with_the_active_text(cli: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys\np = sys.argv[1]\nt = open(p).read()\nopen(p, 'w').write(t + ' Be brief.')\n")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    assert cli("prompts edit voice", reply({**VERSION, "text": "Be kind."}), reply(VERSION)).code == 0
    assert cli.asked[1].body == {"text": "Be kind. Be brief."}
    monkeypatch.setenv("EDITOR", "true")  # one that is not there yet begins empty, and an empty text is not saved
    ended = cli("prompts edit voice", refusal(404, "prompt_template_not_found"))
    assert (ended.code, len(cli.asked)) == (2, 3)


@pytest.mark.parametrize(("words", "sent", "token"), [
    ("--setup-code ABCD-EFGH", {"setup_code": "ABCD-EFGH"}, None),
    ("--invitation perdure_invitation_x", {"invitation": "perdure_invitation_x"}, None),
    ("", {}, "Bearer t-admin"),
])  # fmt: skip
def test_a_user_registers_with_a_prompted_password(
    cli: Perdure, monkeypatch: pytest.MonkeyPatch, words: str, sent: dict[str, str], token: str | None
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **given: "green tractors sing" if given["hide_input"] else "")
    ended = cli(f"users register boss {words}", DONE)
    assert ended.code == 0 and "boss" in ended.out and "/sign-in" in ended.out
    (asked,) = cli.asked
    assert (asked.method, asked.path) == ("POST", "/v1/auth/register")
    assert asked.body == {"name": "boss", "password": "green tractors sing", **sent}
    assert asked.headers.get("authorization") == token and "idempotency-key" not in asked.headers
    ended = cli(f"users register boss {words}", refusal(403, "setup_code_invalid"))
    assert ended.code != 0 and "setup_code_invalid" in ended.err
    shown = cli(f"users register boss {words} --json", DONE)
    assert shown.json["user"]["name"] == "boss" and "hush" not in shown.out


def test_each_sign_in_method_is_described_with_its_voucher() -> None:
    for signed_in, named in (
        ({"how": "password", "invited_by": "ann"}, ["ann"]),
        ({"how": "invitation", "created_by": "ann"}, ["ann"]),
        ({"how": "token", "created_by": "ann", "created_by_through": [{"by": "root"}]}, ["ann", "root"]),
        ({"how": "chat", "created_by": "unknown"}, ["unknown"]),
    ):
        assert all(name in signed_in_words({"signed_in": signed_in}) for name in named)
    words = [signed_in_words({"signed_in": {"how": how}}) for how in ("password", "local", "oidc", "token")]
    assert len(set(words)) == 4 and all(words)
    for data in ({"signed_in": {"how": "something new"}}, {"signed_in": None}, {"signed_in": "password"}, {}, None):
        assert signed_in_words(data) == ""


def lines(*rows: dict[str, Any]) -> Reply:
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return Reply(200, body.encode(), {"Content-Type": "application/jsonl"})


def test_the_newest_stored_heads_are_sent(cli: Perdure, tmp_path: Path) -> None:
    kept, odd = tmp_path / "kept.jsonl", HEAD | {"tenant": "a\u2028b\u0085c"}  # cut at line ends alone
    heads = [HEAD | {"seq": seq} for seq in range(1, 1_000)] + [odd]
    kept.write_text("".join(json.dumps(head, ensure_ascii=False) + "\n" for head in heads) + "\n", encoding="utf-8")
    assert cli(f"audit verify --heads {kept}", reply(WHOLE)).code == 0
    (asked,) = cli.asked
    assert asked.method == "POST" and asked.body["heads"] == heads[-500:]
    for text in ("no json\n", "{"):
        kept.write_text(text)
        ended = cli(f"audit verify --heads {kept}")
        assert ended.code == 2 and str(kept) in ended.err and len(cli.asked) == 1


def test_an_export_prints_json_lines_page_by_page(cli: Perdure) -> None:
    text = "ü\x1b[31m a\u2028b\u2029c\u0085d"
    first = [{"seq": seq, "kind": "a", "data": {"text": text}} for seq in range(1, 1_001)]
    ended = cli("audit export", lines(*first), lines({"seq": 1_001, "kind": "b"}))
    assert ended.code == 0
    rows = [json.loads(line) for line in ended.out.split("\n") if line]
    assert [row["seq"] for row in rows] == list(range(1, 1_002)) and rows[0]["data"]["text"] == text
    assert ended.out.isascii() and "\x1b" not in ended.out
    assert [each.query["after"] for each in cli.asked] == [["0"], ["1000"]]
    assert cli.asked[0].headers["authorization"] == "Bearer t-admin"


def test_a_user_is_erased_only_after_a_confirmation(cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO("n\n"))
        assert cli("users erase ann").code == 1
    assert cli.asked == []
    assert cli("users erase ann --yes", reply(ERASED)).code == 0 and len(cli.asked) == 1
    assert cli("users erase portal --subject c/1 --yes", reply(ERASED)).code == 0
    assert cli.asked[-1].query == {"subject": ["c/1"]}


def log(*kinds_and_calls: tuple[str, str]) -> list[Event]:
    return [Event(kind, {"call_id": call_id}, str(place)) for place, (kind, call_id) in enumerate(kinds_and_calls)]


def test_a_call_asked_twice_was_paid_once_only_where_it_was_settled_once_at_last() -> None:
    asked, settled = (START, "m1"), (COMPLETE, "m1")
    events = log(asked, asked, settled, (START, "m2"), (COMPLETE, "m2"))
    assert check_calls_settled_once("its", events).has_passed and count_by_call(events, START) == {"m1": 2, "m2": 1}
    for wrong in ([asked, settled, asked], [asked, settled, settled], [asked], []):
        assert not check_calls_settled_once("its", log(*wrong)).has_passed


def test_a_doubled_message_or_other_words_in_the_readers_hands_do_not_hold() -> None:
    said = [Message(id="1", role="user", content="q"), Message(id="2", role="assistant", content="a")]
    assert check_transcript(said, {"m1": "a", "m0": ""}, ("user", "assistant")).has_passed
    assert not check_transcript([*said, said[1]], {"m1": "a"}, ("user", "assistant")).has_passed
    assert not check_transcript(said, {"m1": "aa"}, ("user", "assistant")).has_passed
    assert check_equal("refunds", 1, 1, "ledger").has_passed and not check_equal("refunds", 2, 1, "ledger").has_passed


@pytest.fixture
def app_folder(tmp_path: Path) -> Path:
    """An app folder with a server whose tool changes once there is a file `drifted`."""
    (tmp_path / "app" / "mcp").mkdir(parents=True)
    server(tmp_path / "app", f"command: [python, {LIAR}, {tmp_path}]\nstart_seconds: 30\n")
    return tmp_path / "app"


def server(app_folder: Path, text: str) -> None:
    (app_folder / "mcp" / "liar.yaml").write_text(text)


def test_a_drifted_server_fails_until_it_is_locked(perdure: Perdure, app_folder: Path) -> None:
    assert perdure("mcp", "check", str(app_folder)).code == 0
    assert "remove" in perdure("mcp", "lock", str(app_folder)).out
    first = lock_path(app_folder, "liar").read_text()
    assert perdure("mcp", "check", str(app_folder)).code == 0
    (app_folder.parent / "drifted").touch()
    ended = perdure("mcp", "check", str(app_folder), "--json")
    (told,) = ended.json["servers"]
    assert (ended.code, told["state"], told["changed"]) == (1, "differs", {"remove": ["parameters"]})
    assert lock_path(app_folder, "liar").read_text() == first
    ended = perdure("mcp", "lock", str(app_folder))
    assert ended.code == 0 and "remove" in ended.out
    assert (changed := lock_path(app_folder, "liar").read_text()) != first
    assert "remove" not in perdure("mcp", "lock", str(app_folder)).out, "nothing has changed since"
    assert lock_path(app_folder, "liar").read_text() == changed


def test_an_unreachable_server_keeps_its_lock_and_exits_with_1(perdure: Perdure, app_folder: Path) -> None:
    server(app_folder, "command: [no-such-program]\n")
    lock_path(app_folder, "liar").write_text('{"tools": []}')
    for command in ("lock", "check"):
        ended = perdure("mcp", command, str(app_folder))
        assert ended.code == 1 and "liar" in ended.out
    assert lock_path(app_folder, "liar").read_text() == '{"tools": []}'


def test_a_malformed_lock_fails_the_check_and_is_rewritten(perdure: Perdure, app_folder: Path) -> None:
    lock_path(app_folder, "liar").write_text("{")
    ended = perdure("mcp", "check", str(app_folder))
    assert ended.code == 1 and "liar.lock.json:1:" in ended.out
    assert perdure("mcp", "lock", str(app_folder)).code == perdure("mcp", "check", str(app_folder)).code == 0


def test_a_folder_without_servers_or_with_a_mistake_is_refused(perdure: Perdure, app_folder: Path) -> None:
    assert perdure("mcp", "lock", str(app_folder / "none")).code == 2
    server(app_folder, "comand: [x]\n")
    ended = perdure("mcp", "lock", str(app_folder))
    assert ended.code == 1 and "comand" in ended.err
    (app_folder / "mcp" / "liar.yaml").unlink()
    assert perdure("mcp", "check", str(app_folder)).code == 2


def test_a_valid_app_is_one_line_and_a_warning_is_no_failure(perdure: Perdure, tmp_path: Path) -> None:
    ended = perdure("skills check")
    assert (ended.code, ended.err) == (0, ""), "the apps that ship"
    folder = write_app(tmp_path / "app")
    ended = perdure(f"skills check {folder}")
    assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1) and "parlour" in ended.out
    write_app(folder, {"skills/water/SKILL.md": WATER.replace("None.", "None. " * 600)})
    ended = perdure(f"skills check {folder}")
    assert ended.code == 0 and "skills/water/SKILL.md:" in ended.out
    write_app(folder, {"skills/tea/SKILL.md": SKILL.replace("triggers:", '"\\e[31mtrigers":')})
    ended = perdure(f"skills check {folder}")
    assert ended.code == 1 and "\x1b" not in ended.out, "what a file says cannot command the terminal"


def test_a_mistake_has_a_place_and_exit_code(perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = SKILL.replace("triggers:", "trigers:").replace("A leaf", "A leaf " * 500)
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": spoiled, "skills/tea/blocks/steep.py": "x = 1\n"})
    monkeypatch.chdir(folder)
    ended = perdure("skills check .")
    assert ended.code == 1
    places = re.findall(r"^([\w/.]+\.(?:md|py|yaml):\d+):", ended.out, re.MULTILINE)
    skill, block = "skills/tea/SKILL.md", "skills/tea/blocks/steep.py"
    assert places == [f"{skill}:5", f"{skill}:23", f"{block}:1", "agents/host.yaml:4"]


def test_with_json_the_places_are_values(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", {"skills/tea/SKILL.md": None})
    ended = perdure("skills", "check", str(folder), "--json")
    assert ended.code == 1
    assert ended.json["apps"] == [{"app": "parlour", "folder": str(folder), "agents": [], "skills": ["water"]}]
    agent = str(folder / "agents" / "host.yaml")
    assert [{**each, "message": ""} for each in ended.json["problems"]] == [
        {"file": str(folder / "skills" / "tea"), "line": None, "warning": False, "message": ""},
        {"file": agent, "line": 4, "warning": False, "message": ""},
    ]


def test_a_folder_without_an_app_is_named(perdure: Perdure, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    assert perdure("skills", "check", str(tmp_path / "nowhere")).code == 2
    ended = perdure("skills", "check", str(folder / "skills" / "tea"))
    assert ended.code == 2 and str(folder) in ended.err
    assert perdure("skills", "check", str(tmp_path)).code == 1
