"""What a user sees of each command and of its help: one snapshot each. No other test repeats these texts."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from syrupy.assertion import SnapshotAssertion

from perdure.apps.scaffold import scaffold
from perdure.cli.app import app
from perdure.cli.terminal import say
from perdure.contracts.ids import effect_key
from perdure.local import StackConfig
from perdure.local.config import PAGES
from perdure.local.welcome import Welcome
from tests.unit.apps.api_double import Reply, event, reply, streamed
from tests.unit.cli.conftest import APPROVAL, LIAR, OPEN, Perdure, request

API = "http://127.0.0.1:8080"
ADDRESSES = (f"{API}/sign-in?code=local.a", "http://localhost:8080/sign-in?code=local.b", f"{API}/docs")
WELCOME = Welcome(
    seconds=9.71, home=Path("/data"), logs=Path("/data/logs"), command="bin/perdure", api=API,
    pages=list(zip(PAGES, ADDRESSES, strict=True)), temporal_ui="http://127.0.0.1:9",
    tokens={role: f"perdure_{role}_x" for role in ("requester", "reviewer", "admin")}, setup_code="ABCD-EFGH",
    setup_code_expires_at=datetime(2026, 11, 21, 12, tzinfo=UTC),
    left_out=["the app x is left out:", "  a -> b -> a"],
)  # fmt: skip
AT, LATER = "2020-11-21T10:00:00Z", "2999-01-01T00:00:00Z"
TURN: dict[str, Any] = {
    "turn_id": "t-1", "conversation_id": "c-1", "status": "awaiting_approval", "agent": "refunds",
    "topology": "tool_loop", "answer": "All done.", "started_at": AT, "nodes": ["a", "b"], "attempts": 2,
    "usage": {"input_tokens": 3, "output_tokens": 4, "tokens_used": 7, "cost_usd": 0.5},
    "waiting_for": {"kind": "approval", "ids": ["a-1", effect_key("t-1", "n.0")]},
}  # fmt: skip
STREAM = streamed(
    event("ready", "1.0.0-0"),
    event("token", "1.e.1-0", call_id="m1", text="Hel"),
    event("reset", "1.x.0-0", call_id="m1"),
    event("token", "1.e.2-0", call_id="m1", text="Hello"),
    event("tool.awaiting_approval", "2.e.2-0", tool="refund", approval_id="a-1"),
    event("done", "3.e.2-0", status="completed", tokens_used=7, cost_usd=0, duration_ms=10),
    event("workflow_complete", status="completed"),
)
ENDED = reply(TURN | {"status": "completed", "waiting_for": None})
ASKED = {"id": "q-1", "turn_id": "t-1", "kind": "clarification", "status": "pending", "answer_schema": {}}
ASKS = TURN | {"status": "awaiting_answer", "waiting_for": {"kind": "clarification", "ids": ["q-1"]}}
REJECTED = reply(APPROVAL | {"status": "rejected"})
OUTDATED = APPROVAL | {"status": "outdated", "outdated": "the tool has changed since", "changes": {
    "risk": {"before": "low", "after": "high"}, "parameters": {"before": {}, "after": {"type": "object"}},
    "code": [{"place": "tools.desk:refund", "change": "changed"}],
}}  # fmt: skip
CLAIMED = APPROVAL | {"claimed_by": "rita", "claimed_until": LATER}
LOST = OPEN["votes"][0] | {"counts": False}
VOTE = {"by": "ann", "for": None, "decision": "approve", "at": AT, "counts": True}
FELL_BACK = {"reviewer": "una", "at": AT, "fell_back_at": AT}
TOKEN = {"what": "approval.decided", "at": AT, "by": "rita",
         "data": {"type": "approve", "signed_in": {"how": "token", "created_by": "root"}}}  # fmt: skip
ORIGIN = {"what": "approval.opened", "at": AT, "by": "ann", "data": {
    "asked_with": {"how": "token", "created_by": "root"}, "related": [],
    "account": {"opened": "invitation", "invited_by": "root", "invited_near": True, "roles_by": "root"}}}  # fmt: skip
RELATED = [{"relation": "credential", "of": "requester", "by": "root"},
           {"relation": "role_giver", "of": "reviewer", "by": "root"}]  # fmt: skip
AGEING = {
    "role": "reviewer", "assignee": "rita", "agent": "refunds", "waiting": 7, "oldest_at": AT, "next_expiry_at": LATER,
    "fallback": {"reviewer": "una", "at": "2020-01-01T00:00:00Z"}, "buckets": {"1h": 1, "1d": 2, "3d": 4, "older": 0},
}  # fmt: skip
AGENT = {
    "id": "desk", "title": "Help desk", "topology": "tool_loop", "model": "openai/gpt", "version": "a1",
    "on_length": "continue", "fallback_model": "claude", "unavailable_tools": ["cluster_*"],
    "not_sent": [{"tool": "odd", "model": "openai/gpt", "rule": "not_an_object",
                  "reason": "not sent to openai/gpt: its parameters are not an object"}],
}  # fmt: skip
KNOWN = {"code": "raised_after_send", "message": "the tool raised an error after its request was sent"}
EFFECT = {
    "key": "pdk_1", "tool": "send_note", "state": "outcome_unknown", "effect": "opaque", "agent": "refunds",
    "args": {"order": "1"}, "turn_id": "t-1", "attempts": 2, "first_sent_at": AT, "deadline": "2020-01-01T00:00:00Z",
    "approval": {"id": "a-1", "decided_by": "rita"}, "known": KNOWN, "failure": "KeyError: 'id' at tools/desk.py:41",
}  # fmt: skip
FAILED_CALLS: list[dict[str, Any]] = [
    {"kind": "tool", "state": "error", "tool": "pay", "failure": "KeyError: 'a\x1b' at tools/desk.py:41"},
    {"kind": "tool", "state": "error", "call_id": "n.0", "tool": "send_note", "known": KNOWN,
     "failure": "ValueError at tools/desk.py:7"},
    {"kind": "tool", "state": "error", "tool": "look", "result": {"status": "error", "message": "to: is missing"}},
    {"kind": "tool", "state": "completed", "tool": "look"},
]  # fmt: skip
BUDGETS = {
    "day": "2026-11-21", "resets_at": "2026-11-22T00:00:00Z",
    "tenant": {"max_tokens": 5_000, "used_tokens": 1_200, "reserved_tokens": 40, "used_cost_usd": 0.5},
    "agents": [{"agent": "desk", "max_tokens": None, "used_tokens": 7, "max_cost_usd": 30.0, "assumed_tokens": 6,
                "assumed_cost_usd": 0.25}],
}  # fmt: skip
PROPOSED = {
    "id": "p-1", "store": "team", "path": "runbooks/a.md", "title": "A", "type": "runbook", "risk": "high",
    "status": "pending", "sha256": "5" * 64, "proposed_by": "ada", "by_agent": True, "created_at": AT,
    "content": "Restart it.",
}  # fmt: skip
FILE = {"id": "f-1", "conversation_id": "c-1", "name": "a.csv", "media_type": "text/csv", "size_bytes": 18,
        "created_at": AT}  # fmt: skip
USAGES = [
    {"scope": "conversation", "used_bytes": 0, "limit_bytes": 2**28, "variable": "PERDURE_BYTES_PER_CONVERSATION"},
    {"scope": "user", "used_bytes": 12 * 2**20, "limit_bytes": 2**30, "variable": "PERDURE_BYTES_PER_USER"},
    {"scope": "tenant", "used_bytes": 13 * 2**20, "limit_bytes": None},
]
MEMORY = {"conversation_id": "c-1", "fields": {"note": "two words", "n": 1}}
VERSION = {
    "id": "v-1", "template": "voice", "stage": "draft", "author": "requester", "digest": "d" * 64, "characters": 8,
    "changed_at": AT, "text": "Be kind.",
}  # fmt: skip
RULE = {"id": "desk/parcels:booked", "on": "after_tool_call", "when": {"tool": "book"}, "do": "abort",
        "overridden": True, "checkpoint": "before_sending", "message": ""}  # fmt: skip
TOOLS = [{"tool": "memory_patch", "approval": False}, {"tool": "memory_propose_promotion", "approval": True}]
USER = {"name": "bob", "roles": ["reviewer"]}
MEMBER = USER | {"display_name": "Bob", "has_password": True, "invited_until": AT}
WEBHOOK = {"id": "w-1", "url": "https://receiver.example/a", "made_at": AT, "waiting": 2, "secret": "hush"}
LENT = {"id": "d-1", "by": "rita", "to": "tom", "until": "2999-01-31T12:00:00Z"}
STATUS = {
    "at": AT, "well": False, "parts": [{"name": "relay", "fault": "unavailable"}],
    "queues": [{"name": "q-turns", "kinds": ["turns"], "workers": 2, "backlog": 7}],
    "mcp_servers": [{"app": "tools", "name": "dead", "fault": "no answer", "at": AT}],
    "turns": [{"status": "awaiting_approval", "count": 3}],
    "stuck_turns": [{"turn_id": "t-9", "agent": "desk", "failures": 7, "since": AT, "message": "KeyError: 'a'"}],
}  # fmt: skip
WHOLE = {"ok": True, "rows": 7, "head": {"seq": 7, "hash": "ab"}, "heads_checked": 0, "erased": 1}
BROKEN = WHOLE | {
    "ok": False, "heads_found": 2, "faults": [{"seq": 9, "kind": "tail_cut", "audit_id": None}], "faults_found": 201,
    "faults_by_kind": {"row_changed": 200, "tail_cut": 1}, "keys_unknown": {"9638d99e": 200},
}  # fmt: skip
ROW = {"seq": 1, "at": AT, "actor": "ann", "erased": False, "kind": "approval.opened", "data": {"tool": "pay"}}
ERASED = {"name": "erased-1", "user_id": "1", "erased": {"messages": 4}, "histories": {"runs": 3, "turns_left": 2}}
LIMITED = {"code": "model_rate_limited", "message": "Try again later.", "retry_after_seconds": 7200}
BOTH_FAILED = {
    "code": "model_bad_request", "message": "refused",
    "details": {"model": "openai/b", "status": 400, "vendor_code": "unsupported_parameter", "param": "max_tokens",
        "sentence": "Unsupported parameter: 'max_tokens'.",
        "first": {"code": "model_overloaded", "message": "busy", "model": "openai/a", "status": 529}},
}  # fmt: skip
REFUSED = {
    "code": "already_decided", "message": "refused", "request_id": "r",
    "details": {"decision": {"type": "reject", "by": "rita", "comment": "no"}},
}  # fmt: skip


def items(*given: dict[str, Any]) -> Reply:
    """The last page of a list."""
    return reply({"items": given, "next": None})


CASES: list[tuple[str, list[Reply], str]] = [
    ("up", [], ""),
    ("link --path /chat", [reply({"code": "local.abc", "expires_at": AT}, 201)], "requester POST /v1/auth/codes"),
    ("init FOLDER/new", [], ""),
    ("turns list", [reply({"items": [TURN], "next": "more"})], "requester GET /v1/turns limit=20"),
    ("turns show t-1", [reply(TURN), items(*FAILED_CALLS)], "requester GET /v1/turns/t-1/segments"),
    ("turns show t-4", [reply(TURN | {"status": "failed", "truncated": True, "ended_at": AT, "error": LIMITED}),
                        items()], "requester GET /v1/turns/t-4/segments"),
    ("turns show t-3", [reply(TURN | {"error": BOTH_FAILED}), items()], "requester GET /v1/turns/t-3/segments"),
    ("turns watch t-1", [STREAM, reply(APPROVAL), ENDED], "requester GET /v1/turns/t-1"),
    ("turns stop t-1", [reply({"turn_id": "t-1"}, 202)], "requester POST /v1/turns/t-1/stop {}"),
    ("turns answer t-1", [reply(ASKS), reply(ASKED | {"asked": {"question": "Which?"}})],
     "requester GET /v1/turns/t-1/answers/q-1"),
    ("turns raise t-1 --tokens 900", [reply({"turn_id": "t-1", "limits": {"max_tokens": 900}})],
     'reviewer POST /v1/turns/t-1/limits {"max_tokens": 900}'),
    ("chat refunds -m hi", [reply({"id": "c-1", "agent": "refunds"}, 201), reply(TURN, 202), STREAM, reply(APPROVAL),
                            ENDED], "requester GET /v1/turns/t-1"),
    ("approvals list", [items(OPEN, OUTDATED)], "reviewer GET /v1/approvals status=pending&limit=50"),
    ("approvals show a-1", [reply(OPEN)], "reviewer GET /v1/approvals/a-1"),
    ("approvals show a-2", [reply(APPROVAL | {"status": "withdrawn", "withdrawal": {"by": "ann", "at": AT}})],
     "reviewer GET /v1/approvals/a-2"),
    ("approvals show a-3", [reply(OUTDATED | {"allowed_decisions": ["reject"]})], "reviewer GET /v1/approvals/a-3"),
    ("approvals show a-4", [reply(OPEN | {"votes": [LOST], "assignee": "una", "fallback": FELL_BACK})],
     "reviewer GET /v1/approvals/a-4"),
    ("approvals show a-5", [reply(OPEN | {"votes": [LOST], "reviewer_role": "admin", "escalated_at": AT})],
     "reviewer GET /v1/approvals/a-5"),
    ("approvals show a-7", [reply(OPEN | {"related": RELATED, "allowed_decisions": ["reject"], "history": [ORIGIN]})],
     "reviewer GET /v1/approvals/a-7"),
    ("approvals show a-6", [reply(OPEN | {"votes": [VOTE, VOTE | {"by": "bob", "counts": False}], "history": [TOKEN]})],
     "reviewer GET /v1/approvals/a-6"),
    ("approvals ageing", [items(AGEING)], "reviewer GET /v1/approvals/ageing"),
    ("approvals watch", [items(OPEN)], "reviewer GET /v1/approvals status=pending&limit=200"),
    ("approvals preview a-1", [reply(APPROVAL | {"preview": {"at": AT, "before": {"n": 9}, "after": {"n": 4}}})],
     "reviewer POST /v1/approvals/a-1/preview"),
    ("approvals approve a-1", [reply(APPROVAL), reply(APPROVAL | {"status": "approved", "ready_at": LATER})],
     'reviewer POST /v1/approvals/a-1/decision {"decision": "approve", "digest": "d…", "revision": 2}'),
    ("approvals approve a-2", [reply(OPEN | {"votes": []}), reply(OPEN)],
     'reviewer POST /v1/approvals/a-1/decision {"decision": "approve", "digest": "d…", "revision": 2}'),
    ("approvals approve a-3", [REJECTED], "reviewer GET /v1/approvals/a-3"),
    ("approvals edit a-1 --args {}", [reply(APPROVAL | {"schema": {}}), reply(APPROVAL | {"status": "edited"})],
     'reviewer POST /v1/approvals/a-1/decision {"decision": "edit", "digest": "d…", "revision": 2, "args": {}}'),
    ("approvals reject a-1 --reason policy", [reply(APPROVAL), REJECTED],
     'reviewer POST /v1/approvals/a-1/decision '
     '{"decision": "reject", "digest": "d…", "revision": 2, "reason_code": "policy"}'),
    ("approvals respond a-1 later", [reply(APPROVAL), reply(APPROVAL | {"status": "responded"})],
     'reviewer POST /v1/approvals/a-1/decision '
     '{"decision": "respond", "digest": "d…", "revision": 2, "comment": "later"}'),
    ("approvals batch approve a-1", [reply(APPROVAL), items({"id": "a-1", "status": "approved"})],
     'reviewer POST /v1/approvals/decisions '
     '{"items": [{"id": "a-1", "digest": "d…", "revision": 2, "decision": "approve"}]}'),
    ("approvals withdraw a-1", [reply(APPROVAL), reply(APPROVAL | {"status": "withdrawn"})],
     "requester POST /v1/approvals/a-1/withdraw {}"),
    ("approvals reissue a-1", [reply(OUTDATED), reply(APPROVAL | {"expires_at": LATER}, 201)],
     "reviewer POST /v1/approvals/a-1/reissue {}"),
    ("approvals claim a-1", [reply(CLAIMED)], "reviewer POST /v1/approvals/a-1/claim {}"),
    ("approvals release a-1", [reply(APPROVAL)], "reviewer POST /v1/approvals/a-1/release {}"),
    ("approvals reassign a-1 tom", [reply(APPROVAL | {"assignee": "tom"})],
     'reviewer POST /v1/approvals/a-1/reassign {"to": "tom"}'),
    ("approvals escalate a-1", [reply(APPROVAL | {"reviewer_role": "admin"})],
     "reviewer POST /v1/approvals/a-1/escalate {}"),
    ("delegations list", [items(LENT)], "reviewer GET /v1/delegations"),
    ("delegations add tom --until 2999-01-31", [reply(LENT, 201)],
     'reviewer POST /v1/delegations {"to": "tom", "until": "2999-02-01T00:00:00+00:00"}'),
    ("delegations remove d-1", [Reply(204)], "reviewer DELETE /v1/delegations/d-1"),
    ("effects list", [items(EFFECT)], "reviewer GET /v1/effects state=outcome_unknown&limit=50"),
    ("effects show pdk_1", [reply(EFFECT)], "reviewer GET /v1/effects/pdk_1"),
    ("effects settle pdk_1 happened --comment seen",
     [reply(EFFECT), reply({"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"})],
     'reviewer POST /v1/effects/pdk_1/settle {"outcome": "happened", "comment": "seen"}'),
    ("files upload c-1 FOLDER/a.csv", [reply(FILE, 201)],
     'requester POST /v1/conversations/c-1/files "region,sales\\nN,30\\n"'),
    ("files get f-1 FOLDER/b.csv", [Reply(200, b"region,sales\nN,30\n")], "requester GET /v1/files/f-1"),
    ("files list c-1", [items(FILE)], "requester GET /v1/conversations/c-1/files"),
    ("files delete f-1", [Reply(204)], "requester DELETE /v1/files/f-1"),
    ("files usage c-1", [items(*USAGES)], "requester GET /v1/usage conversation=c-1"),
    ("agents list", [items({"id": "desk", "title": "Help desk", "topology": "tool_loop", "model": "fast"})],
     "requester GET /v1/agents"),
    ("agents show desk", [reply(AGENT), items({"name": "look", "effect": "read", "needs_approval": False})],
     "requester GET /v1/agents/desk/tools"),
    ("topologies list", [items({"name": "tool_loop", "purpose": "Ask and do."})], "requester GET /v1/topologies"),
    ("topologies show tool_loop", [reply({"name": "tool_loop", "nodes": []})],
     "requester GET /v1/topologies/tool_loop"),
    ("budgets show", [reply(BUDGETS)], "admin GET /v1/budgets"),
    ("budgets set --tokens 5000", [reply(BUDGETS), reply(BUDGETS)],
     'admin PUT /v1/budgets {"max_tokens": 5000, "max_cost_usd": null}'),
    ("memory show c-1", [reply(MEMORY)], "requester GET /v1/memory/working/c-1"),
    ("memory set c-1 n=1", [reply(MEMORY)], 'requester PUT /v1/memory/working/c-1 {"fields": {"n": 1}}'),
    ("memory clear c-1", [Reply(204)], "requester DELETE /v1/memory/working/c-1"),
    ("memory promotions list", [items(PROPOSED)], "admin GET /v1/memory/promotions status=pending&limit=50"),
    ("memory promotions show p-1", [reply(PROPOSED)], "admin GET /v1/memory/promotions/p-1"),
    ("memory promotions approve p-1", [reply(PROPOSED), reply(PROPOSED | {"status": "approved"})],
     'admin POST /v1/memory/promotions/p-1/decision {"decision": "approve", "sha256": "5…", "comment": ""}'),
    ("memory promotions reject p-1 --comment no", [reply(PROPOSED), reply(PROPOSED | {"status": "rejected"})],
     'admin POST /v1/memory/promotions/p-1/decision {"decision": "reject", "sha256": "5…", "comment": "no"}'),
    ("prompts list", [items(VERSION)], "reviewer GET /v1/prompt-templates limit=50"),
    ("prompts show voice", [reply(VERSION)], "requester GET /v1/prompt-templates/voice"),
    ("prompts edit voice --file FOLDER/voice.md", [reply(VERSION)],
     'requester PUT /v1/prompt-templates/voice/draft {"text": "Be kind."}'),
    ("prompts promote v-1", [reply(VERSION), reply(VERSION | {"stage": "pre_production"})],
     'reviewer POST /v1/prompt-versions/v-1/promote {"to": "pre_production", "digest": "d…"}'),
    ("prompts archive v-1", [reply(VERSION | {"stage": "archived"})],
     "reviewer POST /v1/prompt-versions/v-1/archive {}"),
    ("rules list", [items(RULE)], "admin GET /v1/rules"),
    ("rules set desk/parcels:booked abort", [items(RULE)],
     'admin PUT /v1/rules {"rule": "desk/parcels:booked", "do": "abort"}'),
    ("rules tools", [items(*TOOLS)], "admin GET /v1/rules/tools"),
    ("rules waive memory_patch", [items(*TOOLS)],
     'admin PUT /v1/rules/tools {"tool": "memory_patch", "approval": false}'),
    ("rules related", [reply({"related_decide": False})], "admin GET /v1/rules/related"),
    ("rules related --allow", [reply({"related_decide": True})],
     'admin PUT /v1/rules/related {"related_decide": true}'),
    ("users list", [items(USER)], "admin GET /v1/users"),
    ("users add bob --role reviewer", [reply(USER, 201), reply({"name": "bob", "token": "hush"}, 201)],
     'admin POST /v1/users/bob/tokens {"label": ""}'),
    ("users token bob", [reply({"name": "bob", "token": "hush"}, 201)],
     'admin POST /v1/users/bob/tokens {"label": ""}'),
    ("users role bob reviewer", [reply(USER)], 'admin POST /v1/users/bob/roles {"roles": ["reviewer"]}'),
    ("users team", [items(MEMBER, {"name": "ann"}, {"name": "eve", "active": False})], "admin GET /v1/team"),
    ("users invite bob", [reply({"name": "bob", "invitation": "hush", "expires_at": AT}, 201)],
     'admin POST /v1/team/invitations {"name": "bob", "roles": ["requester"], "display_name": ""}'),
    ("users close bob", [reply(MEMBER | {"active": False})], "admin DELETE /v1/team/bob"),
    ("users reopen bob", [reply(MEMBER)], 'admin PATCH /v1/team/bob {"active": true}'),
    ("users erase bob --yes", [reply(ERASED)], "admin DELETE /v1/users/bob/data"),
    ("users register boss --setup-code ABCD-EFGH",
     [reply({"user": USER | {"name": "boss"}, "access_token": "hush", "refresh_token": "hush", "expires_in": 1}, 201)],
     'nobody POST /v1/auth/register {"name": "boss", "password": "four plain words", "setup_code": "ABCD-EFGH"}'),
    ("webhooks list", [items(WEBHOOK)], "admin GET /v1/webhooks"),
    ("webhooks add https://receiver.example/a", [reply(WEBHOOK, 201)],
     'admin POST /v1/webhooks {"url": "https://receiver.example/a", "with_args": false}'),
    ("webhooks remove w-1", [reply(WEBHOOK)], "admin DELETE /v1/webhooks/w-1"),
    ("audit verify", [reply(WHOLE)], "reviewer GET /v1/audit/verify"),
    ("audit verify --as admin", [reply(BROKEN)], "admin GET /v1/audit/verify"),
    ("audit show a-1", [items(ROW, ROW | {"seq": 2, "data": None, "erased": True})],
     "reviewer GET /v1/approvals/a-1/audit"),
    ("audit export", [Reply(200, json.dumps(ROW).encode())], "admin GET /v1/audit/export after=0&limit=1000"),
    ("mcp check FOLDER/app", [], ""), ("mcp lock FOLDER/app", [], ""), ("skills check FOLDER/app", [], ""),
    ("check FOLDER/app", [items(*(APPROVAL | {"agent": "desk", "tool": tool, "tool_version": "older"}
                                  for tool in ("open_ticket", "removed", "liar_remove"))), items(), items(OPEN)],
     "reviewer GET /v1/approvals status=edited&brief=true&limit=200"),
    ("status", [reply({}), reply(STATUS)], "reviewer GET /v1/status"),
    ("turns show refused", [reply({"error": REFUSED}, 409)], "requester GET /v1/turns/refused"),
    ("turns list --as mallory", [], ""),
    ("chat unknown -m hi", [reply({"error": {"code": "agent_not_found", "message": "refused"}}, 404)],
     'requester POST /v1/conversations {"agent": "unknown"}'),
]  # fmt: skip


@pytest.fixture
def command_line(home: Path, cli: Perdure, monkeypatch: pytest.MonkeyPatch) -> Perdure:
    """A command line with files in its folder, a user who types a password and then Ctrl-C, and a stack that starts
    at once."""

    async def start(config: StackConfig) -> int:
        say(replace(WELCOME, public_url=config.public_url).text())
        return 0

    monkeypatch.setenv("PERDURE_PUBLIC_URL", "https://perdure.example.org/")
    monkeypatch.setattr("perdure.cli.stack.run_stack", start)
    interrupted = Mock(sleep=Mock(side_effect=KeyboardInterrupt), monotonic=time.monotonic)
    monkeypatch.setattr("perdure.cli.approvals.watch.time", interrupted)
    monkeypatch.setattr("typer.prompt", Mock(return_value="four plain words"))
    scaffold(home / "app")
    (home / "app" / "mcp").mkdir()
    (home / "app" / "mcp" / "liar.yaml").write_text(f"command: [python, {LIAR}, {home}]\nstart_seconds: 30\n")
    (home / "a.csv").write_text("region,sales\nN,30\n")
    (home / "voice.md").write_text("Be kind.")
    return cli


@pytest.mark.parametrize(("line", "replies", "asked"), CASES, ids=[case[0] for case in CASES])
def test_a_command_asks_and_shows(
    command_line: Perdure, snapshot: SnapshotAssertion, line: str, replies: list[Reply], asked: str
) -> None:
    command_line.will(*replies)
    assert command_line(*line.replace("FOLDER", str(command_line.home)).split()).seen == snapshot
    assert [request(each) for each in command_line.asked[-1:]] == ([asked] if asked else [])
    assert not any("idempotency-key" in each.headers for each in command_line.asked if each.path.endswith("/tokens"))


def commands_of(command: Any, *path: str) -> Iterator[tuple[str, bool]]:
    """Yields each command and group below `command`, and whether it is a group."""
    below = getattr(command, "commands", {})
    yield " ".join(path), bool(below)
    for name, each in below.items():
        yield from commands_of(each, *path, name)


COMMANDS = dict(commands_of(typer.main.get_command(app)))


def test_no_command_is_without_a_snapshot() -> None:
    shown = [f"{line} " for line, _, _ in CASES]
    assert [
        name
        for name, is_group in COMMANDS.items()
        if not is_group and not any(line.startswith(f"{name} ") for line in shown)
    ] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = perdure(*name.split(), "--help").out
    assert out == snapshot
    assert not re.search(r"\w\.\.\.$", out, re.MULTILINE), "a summary in a list of commands is cut"


def test_what_cannot_run_shows_why(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv("PERDURE_HOST", "0.0.0.0")
    lines = (("up",), ("status",), ("turns", "list"), ("turns", "show"), ("nonsense",), ("mcp", "check", str(home)))
    assert [perdure(*line).seen for line in lines] == snapshot
