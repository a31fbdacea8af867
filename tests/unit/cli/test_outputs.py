"""What a user sees of each command: one snapshot per command. No other test repeats these texts."""

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.unit.apps.api_double import ApiDouble, Reply, event, said, streamed
from tests.unit.cli.approval import APPROVAL, OPEN
from tests.unit.cli.conftest import Perdure

AT, LATER = "2020-11-21T10:00:00Z", "2999-01-01T00:00:00Z"
TURN: dict[str, Any] = {
    "turn_id": "t-1", "conversation_id": "c-1", "status": "awaiting_approval", "agent": "refunds",
    "topology": "tool_loop", "answer": "All done.", "nodes": ["a", "b"], "attempts": 2,
    "usage": {"input_tokens": 3, "output_tokens": 4, "tokens_used": 7, "cost_usd": 0.5},
    "waiting_for": {"kind": "approval", "ids": ["a-1"]},
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
ENDED = said(TURN | {"status": "completed", "waiting_for": None})
ASKED = {"id": "q-1", "turn_id": "t-1", "kind": "clarification", "status": "pending", "answer_schema": {}}
ASKS = TURN | {"status": "awaiting_answer", "waiting_for": {"kind": "clarification", "ids": ["q-1"]}}
DECIDED = said(APPROVAL | {"status": "approved", "ready_at": LATER})
REJECTED = said(APPROVAL | {"status": "rejected"})
OUTDATED = APPROVAL | {"outdated": "the tool has changed since"}
CLAIMED = APPROVAL | {"claimed_by": "rita", "claimed_until": LATER}
LOST = OPEN["votes"][0] | {"counts": False}
VOTE = {"by": "ann", "for": None, "decision": "approve", "at": AT, "counts": True}
FELL_BACK = {"reviewer": "una", "at": AT, "fell_back_at": AT}
TOKEN = {"what": "approval.decided", "at": AT, "by": "rita",
         "data": {"type": "approve", "signed_in": {"how": "token", "created_by": "root"}}}  # fmt: skip
AGEING = {
    "role": "reviewer", "assignee": "rita", "agent": "refunds", "waiting": 7, "oldest_at": AT, "next_expiry_at": LATER,
    "fallback": {"reviewer": "una", "at": "2020-01-01T00:00:00Z"}, "buckets": {"1h": 1, "1d": 2, "3d": 4, "older": 0},
}  # fmt: skip
EFFECT = {
    "key": "pdk_1", "tool": "send_note", "state": "outcome_unknown", "effect": "opaque", "agent": "refunds",
    "args": {"order": "1"}, "turn_id": "t-1", "attempts": 2, "first_sent_at": AT, "deadline": "2020-01-01T00:00:00Z",
    "approval": {"id": "a-1", "decided_by": "rita"},
}  # fmt: skip
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
FILE = {"id": "f-1", "conversation_id": "c-1", "name": "a.csv", "media_type": "text/csv", "size_bytes": 18}
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
        "overridden": True, "checkpoint": "before_sending"}  # fmt: skip
TOOLS = [{"tool": "memory_patch", "approval": False}, {"tool": "memory_propose_promotion", "approval": True}]
USER = {"name": "bob", "roles": ["reviewer"]}
MEMBER = USER | {"display_name": "Bob", "has_password": True, "invited_until": AT}
WEBHOOK = {"id": "w-1", "url": "https://receiver.example/a", "made_at": AT, "waiting": 2, "secret": "hush"}
LENT = {"id": "d-1", "to": "tom", "until": "2999-01-31T12:00:00Z"}
STATUS = {
    "at": AT, "well": False, "parts": [{"name": "relay", "fault": "unavailable"}],
    "queues": [{"name": "q-turns", "kinds": ["turns"], "workers": 2, "backlog": 7}],
    "mcp_servers": [{"app": "tools", "name": "dead", "fault": "no answer", "at": AT}],
    "turns": [{"status": "awaiting_approval", "count": 3}],
}  # fmt: skip
WHOLE = {"ok": True, "rows": 7, "head": {"seq": 7, "hash": "ab"}, "heads_checked": 0, "erased": 1}
BROKEN = WHOLE | {
    "ok": False, "heads_checked": 2, "faults": [{"seq": 9, "kind": "tail_cut", "audit_id": None}], "faults_found": 201,
    "faults_by_kind": {"row_changed": 200, "tail_cut": 1},
}  # fmt: skip
ROW = {"seq": 1, "at": AT, "actor": "ann", "erased": False, "kind": "approval.opened", "data": {"tool": "pay"}}
ERASED = {"name": "erased-1", "user_id": "1", "erased": {"messages": 4}, "histories": {"runs": 3, "turns_left": 2}}
REFUSED = {
    "code": "already_decided", "message": "refused", "request_id": "r",
    "details": {"decision": {"type": "reject", "by": "rita", "comment": "no"}},
}  # fmt: skip


def items(*given: dict[str, Any]) -> Reply:
    """The last page of a list."""
    return said({"items": given, "next": None})


CASES: list[tuple[str, list[Reply]]] = [
    ("--help", []),
    ("turns list", [said({"items": [TURN], "next": "more"})]),
    ("turns show t-1", [said(TURN)]),
    ("turns watch t-1", [STREAM, said(APPROVAL), ENDED]),
    ("turns stop t-1", [said({"turn_id": "t-1"}, 202)]),
    ("turns answer t-1", [said(ASKS), said(ASKED | {"asked": {"question": "Which?"}})]),
    ("turns raise t-1 --tokens 900", [said({"turn_id": "t-1", "limits": {"max_tokens": 900}})]),
    ("chat refunds -m hi", [said({"id": "c-1", "agent": "refunds"}, 201), said(TURN, 202), STREAM, said(APPROVAL),
                            ENDED]),
    ("approvals list", [items(OPEN, OUTDATED)]),
    ("approvals show a-1", [said(OPEN)]),
    ("approvals show a-2", [said(APPROVAL | {"status": "withdrawn", "withdrawal": {"by": "ann", "at": AT}})]),
    ("approvals show a-3", [said(OUTDATED | {"allowed_decisions": ["reject"]})]),
    ("approvals show a-4", [said(OPEN | {"votes": [LOST], "assignee": "una", "fallback": FELL_BACK})]),
    ("approvals show a-5", [said(OPEN | {"votes": [LOST], "reviewer_role": "admin", "escalated_at": AT})]),
    ("approvals show a-6", [said(OPEN | {"votes": [VOTE, VOTE | {"by": "bob", "counts": False}], "history": [TOKEN]})]),
    ("approvals ageing", [items(AGEING)]),
    ("approvals preview a-1", [said(APPROVAL | {"preview": {"at": AT, "before": {"n": 9}, "after": {"n": 4}}})]),
    ("approvals approve a-1", [said(APPROVAL), DECIDED]),
    ("approvals approve a-2", [said(OPEN | {"votes": []}), said(OPEN)]),
    ("approvals approve a-3", [REJECTED]),
    ("approvals edit a-1 --args {}", [said(APPROVAL | {"schema": {}}), said(APPROVAL | {"status": "edited"})]),
    ("approvals reject a-1 --reason policy", [said(APPROVAL), REJECTED]),
    ("approvals respond a-1 later", [said(APPROVAL), said(APPROVAL | {"status": "responded"})]),
    ("approvals batch approve a-1", [said(APPROVAL), items({"id": "a-1", "status": "approved"})]),
    ("approvals withdraw a-1", [said(APPROVAL), said(APPROVAL | {"status": "withdrawn"})]),
    ("approvals claim a-1", [said(CLAIMED)]),
    ("approvals release a-1", [said(APPROVAL)]),
    ("approvals reassign a-1 tom", [said(APPROVAL | {"assignee": "tom"})]),
    ("approvals escalate a-1", [said(APPROVAL | {"reviewer_role": "admin"})]),
    ("delegations list", [items(LENT)]),
    ("delegations add tom --until 2999-01-31", [said(LENT, 201)]),
    ("delegations remove d-1", [Reply(204)]),
    ("effects list", [items(EFFECT)]),
    ("effects show pdk_1", [said(EFFECT)]),
    ("effects settle pdk_1 happened --comment seen",
     [said(EFFECT), said({"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"})]),
    ("files list c-1", [items(FILE)]),
    ("files delete f-1", [Reply(204)]),
    ("files usage c-1", [items(*USAGES)]),
    ("agents list", [items({"id": "desk", "title": "Help desk", "topology": "tool_loop", "model": "fast"})]),
    ("topologies list", [items({"name": "tool_loop", "purpose": "Ask and do."})]),
    ("topologies show tool_loop", [said({"name": "tool_loop", "nodes": []})]),
    ("budgets show", [said(BUDGETS)]),
    ("budgets set --tokens 5000", [said(BUDGETS), said(BUDGETS)]),
    ("memory show c-1", [said(MEMORY)]),
    ("memory set c-1 n=1", [said(MEMORY)]),
    ("memory clear c-1", [Reply(204)]),
    ("memory promotions list", [items(PROPOSED)]),
    ("memory promotions show p-1", [said(PROPOSED)]),
    ("memory promotions approve p-1", [said(PROPOSED), said(PROPOSED | {"status": "approved"})]),
    ("memory promotions reject p-1 --comment no", [said(PROPOSED), said(PROPOSED | {"status": "rejected"})]),
    ("prompts list", [items(VERSION)]),
    ("prompts show voice", [said(VERSION)]),
    ("prompts promote v-1", [said(VERSION), said(VERSION | {"stage": "pre_production"})]),
    ("prompts archive v-1", [said(VERSION | {"stage": "archived"})]),
    ("rules list", [items(RULE)]),
    ("rules set desk/parcels:booked abort", [items(RULE)]),
    ("rules tools", [items(*TOOLS)]),
    ("rules waive memory_patch", [items(*TOOLS)]),
    ("users list", [items(USER)]),
    ("users add bob --role reviewer", [said(USER, 201), said({"name": "bob", "token": "hush"}, 201)]),
    ("users token bob", [said({"name": "bob", "token": "hush"}, 201)]),
    ("users role bob reviewer", [said(USER)]),
    ("users team", [items(MEMBER, {"name": "ann"}, {"name": "eve", "active": False})]),
    ("users invite bob", [said({"name": "bob", "invitation": "hush", "expires_at": AT}, 201)]),
    ("users close bob", [said(MEMBER | {"active": False})]),
    ("users reopen bob", [said(MEMBER)]),
    ("users erase bob --yes", [said(ERASED)]),
    ("webhooks list", [items(WEBHOOK)]),
    ("webhooks add https://receiver.example/a", [said(WEBHOOK, 201)]),
    ("webhooks remove w-1", [said(WEBHOOK)]),
    ("audit verify", [said(WHOLE)]),
    ("audit verify --as admin", [said(BROKEN)]),
    ("audit show a-1", [items(ROW, ROW | {"seq": 2, "data": None, "erased": True})]),
    ("status", [said({}), said(STATUS)]),
    ("turns show refused", [said({"error": REFUSED}, 409)]),
    ("turns list --as mallory", []),
    ("chat nobody -m hi", [said({"error": {"code": "agent_not_found", "message": "refused"}}, 404)]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "replies"), CASES, ids=[case[0] for case in CASES])
def test_a_command_shows(
    perdure: Perdure, stack: ApiDouble, snapshot: SnapshotAssertion, line: str, replies: list[Reply]
) -> None:
    stack.will(*replies)
    assert perdure(*line.split()).seen == snapshot


def test_commands_that_read_and_write_files_show(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    table, text = tmp_path / "a.csv", tmp_path / "voice.md"
    table.write_text("a\n1\n")
    text.write_text("Be kind.")
    stack.will(said(FILE, 201), Reply(200, b"x"), said(VERSION))
    lines = (
        ("files", "upload", "c-1", str(table)),
        ("files", "get", "f-1", str(tmp_path / "b.csv")),
        ("prompts", "edit", "voice", "--file", str(text)),
        ("init", str(tmp_path / "app")),
        ("mcp", "check", str(tmp_path / "app")),
        ("skills", "check", str(tmp_path / "app")),
    )
    assert [perdure(*line).seen for line in lines] == snapshot


def test_what_cannot_run_shows_why(
    perdure: Perdure, home: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv("PERDURE_HOST", "0.0.0.0")
    lines = (("up",), ("status",), ("turns", "list"), ("turns", "show"), ("nonsense",), ("mcp", "check", str(home)))
    assert [perdure(*line).seen for line in lines] == snapshot
