"""The audit as typed by whoever has to trust it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
from tests.unit.cli.conftest import Perdure

WHOLE: dict[str, Any] = {
    "ok": True,
    "rows": 7,
    "head": {"seq": 7, "hash": "ab"},
    "heads_checked": 2,
    "erased": 1,
    "faults": [],
    "faults_found": 0,
    "faults_by_kind": {},
}
CUT = WHOLE | {"ok": False, "faults": [{"seq": 9, "kind": "tail_cut", "audit_id": None}], "faults_found": 201}
CUT["faults_by_kind"] = {"row_changed": 200, "tail_cut": 1}
HEAD = {"tenant": "local", "seq": 7, "hash": "ab" * 32, "at": "t", "key": "k", "hmac": "h"}


def lines(*rows: dict[str, Any]) -> Reply:
    body = "".join(json.dumps(row) + "\n" for row in rows)
    return Reply(200, body.encode(), {"Content-Type": "application/jsonl"})


def test_a_whole_chain_ends_in_0(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(WHOLE))
    ended = perdure("audit", "verify")
    assert ended.code == 0 and "7" in ended.out
    assert (stack.asked[0].method, stack.asked[0].path) == ("GET", "/v1/audit/verify")
    assert stack.asked[0].headers["authorization"] == "Bearer t-reviewer"


def test_faults_are_told_and_end_in_one(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(CUT), said(CUT))
    ended = perdure("audit", "verify")
    assert ended.code == 1
    assert all(each in ended.out for each in ("201", "row_changed", "200", "tail_cut"))
    ended = perdure("audit", "verify", "--json")
    assert (ended.code, ended.json) == (1, CUT)


def test_heads_that_were_kept_are_sent_the_newest_of_many(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps(HEAD | {"seq": seq}) + "\n" for seq in range(1, 1_001)))
    stack.will(said(WHOLE))
    assert perdure("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].method == "POST"
    assert [head["seq"] for head in stack.asked[0].body["heads"]] == list(range(501, 1_001))


@pytest.mark.parametrize("text", [None, "no json\n", "{"])
def test_a_file_that_has_no_heads_is_a_usage_error(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, text: str | None
) -> None:
    kept = tmp_path / "kept.jsonl"
    if text is not None:
        kept.write_text(text)
    ended = perdure("audit", "verify", "--heads", str(kept))
    assert ended.code == 2 and str(kept) in ended.err and stack.asked == []


def test_an_export_is_lines_of_json_page_by_page(perdure: Perdure, stack: ApiDouble) -> None:
    first = [{"seq": seq, "kind": "a", "data": {"text": "ü\x1b[31m"}} for seq in range(1, 1_001)]
    stack.will(lines(*first), lines({"seq": 1_001, "kind": "b"}))
    ended = perdure("audit", "export")
    assert ended.code == 0
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, 1_002)) and rows[0]["data"]["text"] == "ü\x1b[31m"
    assert ended.out.isascii() and "\x1b" not in ended.out
    assert [each.query["after"] for each in stack.asked] == [["0"], ["1000"]]
    assert stack.asked[0].headers["authorization"] == "Bearer t-admin"


def test_what_people_said_does_not_cut_an_exported_row(perdure: Perdure, stack: ApiDouble) -> None:
    row = {"seq": 1, "data": {"text": "a\u2028b\u2029c\u0085d"}}
    body = json.dumps(row, ensure_ascii=False) + "\n"
    stack.will(Reply(200, body.encode(), {"Content-Type": "application/jsonl"}))
    ended = perdure("audit", "export")
    assert (ended.code, [json.loads(line) for line in ended.out.split("\n") if line]) == (0, [row])


def test_heads_are_cut_at_line_ends_alone(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    kept, head = tmp_path / "kept.jsonl", HEAD | {"tenant": "a\u2028b\u0085c"}
    kept.write_text(json.dumps(head, ensure_ascii=False) + "\n\n", encoding="utf-8")
    stack.will(said(WHOLE))
    assert perdure("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].body["heads"] == [head]


def test_an_approvals_rows_are_shown_in_order_and_what_was_erased_is_said_so(
    perdure: Perdure, stack: ApiDouble
) -> None:
    row = {"at": "2026-01-01T00:00:00Z", "actor": "ann", "erased": False}
    items = [
        row | {"seq": 1, "kind": "approval.opened", "data": {"tool": "pay"}},
        row | {"seq": 2, "kind": "approval.decided", "data": None, "erased": True},
    ]
    stack.will(said({"items": items[:1], "next": "more"}), said({"items": items[1:], "next": None}))
    ended = perdure("audit", "show", "an-id")
    assert ended.code == 0
    assert ended.out.index("approval.opened") < ended.out.index("approval.decided")
    assert stack.asked[0].path == "/v1/approvals/an-id/audit"
    assert stack.asked[1].query["cursor"] == ["more"]


def test_who_may_not_is_told_so(perdure: Perdure, stack: ApiDouble) -> None:
    refused = {"error": {"code": "role_required", "message": "this needs the role admin", "details": {}}}
    stack.will(said(refused, 403))
    ended = perdure("audit", "export", "--as", "requester")
    assert ended.code == 1 and "role_required" in ended.err and ended.out == ""


def test_a_person_is_erased_only_when_asked_once_more(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO("n\n"))
        assert perdure("users", "erase", "ann").code == 1
    assert stack.asked == []
    stack.will(
        said({"name": "erased-1", "user_id": "1", "erased": {"messages": 4}, "histories": {"runs": 3, "turns_left": 2}})
    )
    ended = perdure("users", "erase", "ann", "--yes")
    assert ended.code == 0 and "erased-1" in ended.out
    assert (stack.asked[0].method, stack.asked[0].path) == ("DELETE", "/v1/users/ann/data")
