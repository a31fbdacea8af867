"""The reviewer tool: it shows the exact call, and decides on exactly what it has shown."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Perdure
from tests.unit.perdure.api_double import ApiDouble, said

APPROVAL: dict[str, Any] = {
    "id": "a-1",
    "status": "pending",
    "tool": "refund",
    "effect": "keyed",
    "risk": "high",
    "agent": "refunds",
    "args": {"order": "1042", "reason": "\u202eevil\x1b[8m"},
    "digest": "d" * 64,
    "requested_by": "requester",
    "expires_at": "2999-01-01T00:00:00Z",
    "allowed_decisions": ["approve", "edit", "reject", "respond"],
    "history": [{"what": "approval.opened", "at": "2026-11-21T10:00:00Z", "by": "requester", "data": {}}],
    "links": {"temporal": "http://127.0.0.1:1/namespaces/default/workflows/turn:t"},
}


def test_a_decision_shows_the_exact_arguments_and_sends_the_digest_of_what_was_shown(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    ended = perdure("approvals", "approve", "a-1", "--comment", "fine")
    assert ended.code == 0
    assert '"order": "1042"' in ended.out and "\\u202eevil\\u001b[8m" in ended.out
    assert "approved: refund" in ended.out
    sent = stack.asked[1]
    assert (sent.method, sent.path) == ("POST", "/v1/approvals/a-1/decision")
    assert sent.body == {"decision": "approve", "digest": "d" * 64, "comment": "fine"}


CHECKPOINT = {
    **APPROVAL,
    "kind": "checkpoint",
    "checkpoint": "before_sending",
    "reason": "A person looks first.",
    "result": {"package": ["\u202elive"]},
}


@pytest.mark.parametrize("command", ["show", "approve"])
def test_a_checkpoint_shows_what_came_of_the_call_and_what_it_was_made_from(
    perdure: Perdure, stack: ApiDouble, command: str
) -> None:
    stack.will(said(CHECKPOINT), said({**CHECKPOINT, "status": "approved"}))
    ended = perdure("approvals", command, "a-1")
    assert ended.code == 0
    assert "before_sending: the result of refund:" in ended.out
    assert '"\\u202elive"' in ended.out and '"order": "1042"' in ended.out
    if command == "show":
        assert "A person looks first." in ended.out


def test_a_checkpoint_on_an_answer_shows_the_answer_and_no_arguments(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**CHECKPOINT, "tool": "", "args": {}, "result": "What I would say\u001b[8m"}))
    ended = perdure("approvals", "show", "a-1")
    assert "What I would say\\u001b[8m" in ended.out
    assert "exact arguments" not in ended.out


def test_a_digest_seen_before_is_sent_instead(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    perdure("approvals", "approve", "a-1", "--digest", "seen", "--json")
    assert stack.asked[1].body["digest"] == "seen"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("reject", "a-1", "--comment", "no"), {"decision": "reject", "comment": "no"}),
        (("reject", "a-1", "--reason", "policy"), {"decision": "reject", "reason_code": "policy"}),
        (("respond", "a-1", "ask later"), {"decision": "respond", "comment": "ask later"}),
        (("edit", "a-1", "--args", '{"order": "7"}'), {"decision": "edit", "args": {"order": "7"}}),
    ],
)
def test_every_decision_says_what_it_must(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...], body: dict[str, Any]
) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "decided"}))
    assert perdure("approvals", *words).code == 0
    assert stack.asked[1].body == {**body, "digest": "d" * 64}


def test_a_rejection_without_a_reason_is_not_even_asked_about(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("approvals", "reject", "a-1", "--comment", " ").code == 2
    assert stack.asked == []


@pytest.mark.parametrize(("answer", "sent"), [(True, 2), (False, 1)])
def test_a_person_at_a_terminal_is_asked_once_more(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch, answer: bool, sent: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: answer)
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    ended = perdure("approvals", "approve", "a-1")
    assert (ended.code, len(stack.asked)) == (0 if answer else 1, sent)


def test_watching_shows_each_approval_as_it_comes_and_what_became_of_it(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def sleep(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("cli.approval_watch.time.sleep", sleep)
    waits, none = said({"items": [APPROVAL], "next": None}), said({"items": [], "next": None})
    stack.will(waits, waits, none, said({**APPROVAL, "status": "rejected"}))
    ended = perdure("approvals", "watch")
    assert ended.code == 0
    assert ended.out.count('"order": "1042"') == 1
    assert ended.out.splitlines()[-1] == "= refund (a-1) is rejected"


def editor(folder: Path, script: str) -> str:
    """An editor that does what `script` says with the file at `path`."""
    path = folder / "editor.py"
    path.write_text(f"import sys, json, os, pathlib\npath = pathlib.Path(sys.argv[1])\n{script}\n")
    return f"{sys.executable} {path}"


def test_an_edit_opens_the_editor_shows_the_difference_and_sends_the_new_arguments(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        f"open({str(tmp_path / 'mode')!r}, 'w').write(oct(os.stat(path).st_mode))\n"
        "args = json.loads(path.read_text()); args['order'] = '7'; path.write_text(json.dumps(args))"
    )
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "edited"}))
    ended = perdure("approvals", "edit", "a-1")
    assert ended.code == 0
    assert '-  "order": "1042",' in ended.out and '+  "order": "7",' in ended.out
    assert stack.asked[1].body["args"] == {**APPROVAL["args"], "order": "7"}
    assert stat.S_IMODE(int((tmp_path / "mode").read_text(), 8)) == 0o600


@pytest.mark.parametrize("script", ["pass", "path.write_text('{')", "path.write_text('[1]')", "sys.exit(1)"])
def test_an_edit_that_changed_nothing_or_broke_it_sends_nothing(
    perdure: Perdure, stack: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    stack.will(said(APPROVAL))
    ended = perdure("approvals", "edit", "a-1")
    assert ended.code == 2 and "nothing" in ended.err
    assert len(stack.asked) == 1


@pytest.mark.parametrize(("status", "code"), [("rejected", 5), ("done", 5), ("expired", 6)])
def test_what_is_decided_already_is_not_decided_again(
    perdure: Perdure, stack: ApiDouble, status: str, code: int
) -> None:
    before = {"type": "reject", "by": "rita"}
    decided = {"decided_by": "rita", "decided_at": "2026-03-01T12:00:00Z", "decision": before}
    stack.will(said({**APPROVAL, "status": status, **(decided if code == 5 else {})}))
    ended = perdure("approvals", "approve", "a-1")
    told = {
        5: f"too late: reject by rita at 2026-03-01 12:00:00 UTC; it is {status} now\n",
        6: "too late: it expired undecided at 2999-01-01 00:00:00 UTC\n",
    }
    assert (ended.code, ended.err) == (code, told[code])
    assert len(stack.asked) == 1


def test_an_approval_is_shown_whole_and_nothing_in_it_reaches_the_terminal_raw(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(APPROVAL))
    ended = perdure("approvals", "show", "a-1")
    assert ended.code == 0
    for part in ("refund (keyed, risk high) of agent refunds", "approval.opened by requester", "turn:t", "dddd…"):
        assert part in ended.out
    assert "approvals reject a-1" in ended.out
    assert not set(ended.out) & {"\u202e", "\x1b"}


def test_lists_and_single_ones_come_as_json(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [APPROVAL], "next": None}), said(APPROVAL), said({"items": [APPROVAL], "next": None}))
    listed = perdure("approvals", "list", "--json", "--status", "all")
    assert listed.json["items"][0]["args"] == APPROVAL["args"]
    assert perdure("approvals", "show", "a-1", "--json").json["id"] == "a-1"
    assert "status" not in stack.asked[0].query
    table = perdure("approvals", "list").out
    assert "a-1" in table and json.dumps(APPROVAL["args"]["order"]) in table
    assert stack.asked[2].query["status"] == ["pending"]
