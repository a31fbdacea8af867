"""The audit as typed by whoever has to trust it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
from tests.unit.cli.conftest import Perdure
from tests.unit.cli.test_outputs import ERASED, WHOLE

HEAD = {"tenant": "local", "seq": 7, "hash": "ab" * 32, "at": "t", "key": "k", "hmac": "h"}


def lines(*rows: dict[str, Any]) -> Reply:
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return Reply(200, body.encode(), {"Content-Type": "application/jsonl"})


def test_heads_that_were_kept_are_sent_the_newest_of_many(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps(HEAD | {"seq": seq}) + "\n" for seq in range(1, 1_001)))
    stack.will(said(WHOLE))
    assert perdure("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].method == "POST"
    assert [head["seq"] for head in stack.asked[0].body["heads"]] == list(range(501, 1_001))


@pytest.mark.parametrize("text", ["no json\n", "{"])
def test_a_file_that_has_no_heads_is_a_usage_error(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, text: str
) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(text)
    ended = perdure("audit", "verify", "--heads", str(kept))
    assert ended.code == 2 and str(kept) in ended.err and stack.asked == []


def test_an_export_is_lines_of_json_page_by_page(perdure: Perdure, stack: ApiDouble) -> None:
    text = "ü\x1b[31m a\u2028b\u2029c\u0085d"
    first = [{"seq": seq, "kind": "a", "data": {"text": text}} for seq in range(1, 1_001)]
    stack.will(lines(*first), lines({"seq": 1_001, "kind": "b"}))
    ended = perdure("audit", "export")
    assert ended.code == 0
    rows = [json.loads(line) for line in ended.out.split("\n") if line]
    assert [row["seq"] for row in rows] == list(range(1, 1_002)) and rows[0]["data"]["text"] == text
    assert ended.out.isascii() and "\x1b" not in ended.out
    assert [each.query["after"] for each in stack.asked] == [["0"], ["1000"]]
    assert stack.asked[0].headers["authorization"] == "Bearer t-admin"


def test_heads_are_cut_at_line_ends_alone(perdure: Perdure, stack: ApiDouble, tmp_path: Path) -> None:
    kept, head = tmp_path / "kept.jsonl", HEAD | {"tenant": "a\u2028b\u0085c"}
    kept.write_text(json.dumps(head, ensure_ascii=False) + "\n\n", encoding="utf-8")
    stack.will(said(WHOLE))
    assert perdure("audit", "verify", "--heads", str(kept)).code == 0
    assert stack.asked[0].body["heads"] == [head]


def test_a_person_is_erased_only_when_asked_once_more(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO("n\n"))
        assert perdure("users", "erase", "ann").code == 1
    assert stack.asked == []
    stack.will(said(ERASED))
    assert perdure("users", "erase", "ann", "--yes").code == 0 and len(stack.asked) == 1
