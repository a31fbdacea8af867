"""The reviewer tool: it shows the exact call, and decides on exactly what it has shown."""

import json
import re
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.approval import APPROVAL, OPEN
from tests.unit.cli.conftest import Perdure


def test_a_decision_shows_the_exact_arguments_and_sends_the_digest_of_what_was_shown(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "approved"}))
    ended = perdure("approvals", "approve", "a-1", "--comment", "fine")
    assert ended.code == 0
    assert '"order": "1042"' in ended.out and "\\u202eevil\\u001b[8m" in ended.out
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
    assert "before_sending" in ended.out
    assert '"\\u202elive"' in ended.out and '"order": "1042"' in ended.out
    if command == "show":
        assert "A person looks first." in ended.out


def test_a_checkpoint_on_an_answer_shows_the_answer_and_no_arguments(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**CHECKPOINT, "tool": "", "args": {}, "result": "What I would say\u001b[8m"}))
    ended = perdure("approvals", "show", "a-1")
    assert "What I would say\\u001b[8m" in ended.out
    assert "{" not in ended.out


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


@pytest.mark.parametrize(("status", "code"), [("rejected", 5), ("done", 5), ("expired", 6)])
def test_what_is_decided_already_is_not_decided_again(
    perdure: Perdure, stack: ApiDouble, status: str, code: int
) -> None:
    before = {"type": "reject", "by": "rita"}
    decided = {"decided_by": "rita", "decided_at": "2026-03-01T12:00:00Z", "decision": before}
    stack.will(said({**APPROVAL, "status": status, **(decided if code == 5 else {})}))
    ended = perdure("approvals", "approve", "a-1")
    assert (ended.code, len(stack.asked)) == (code, 1)
    named = {5: ("rita", "2026-03-01 12:00:00 UTC", status), 6: (_NOT_YET,)}[code]
    assert all(each in ended.err for each in named)


def test_lists_and_single_ones_come_as_json(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [APPROVAL], "next": None}), said(APPROVAL), said({"items": [APPROVAL], "next": None}))
    listed = perdure("approvals", "list", "--json", "--status", "all")
    assert listed.json["items"][0]["args"] == APPROVAL["args"]
    assert perdure("approvals", "show", "a-1", "--json").json["id"] == "a-1"
    assert "status" not in stack.asked[0].query
    table = perdure("approvals", "list").out
    assert "a-1" in table and json.dumps(APPROVAL["args"]["order"]) in table
    assert stack.asked[2].query["status"] == ["pending"]


def test_a_status_that_there_is_not_is_a_usage_error_that_names_those_there_are(
    perdure: Perdure, stack: ApiDouble
) -> None:
    ended = perdure("approvals", "list", "--status", "bogus")
    assert (ended.code, stack.asked) == (2, [])
    assert all(status in ended.err for status in ("pending", "approved", "withdrawn", "all"))


@pytest.mark.parametrize("words", [("show", "a-1"), ("list",)])
def test_long_arguments_are_cut_with_a_count_and_a_flag_shows_all(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...]
) -> None:
    long = {**APPROVAL, "args": {"text": "x" * 20_000 + "the end"}}
    answer = said(long if words[0] == "show" else {"items": [long], "next": None})
    stack.will(answer, answer)
    brief, full = perdure("approvals", *words).out, perdure("approvals", *words, "--full").out
    assert "the end" not in brief and len(brief) < len(full) - 10_000
    assert "the end" in full


def test_a_decision_shows_all_of_the_arguments_however_long(perdure: Perdure, stack: ApiDouble) -> None:
    long = {**APPROVAL, "args": {"text": "x" * 20_000 + "the end"}, "description": "y" * 5_000 + "and its end"}
    stack.will(said(long), said({**long, "status": "approved"}))
    out = perdure("approvals", "approve", "a-1").out
    assert "the end" in out and "and its end" in out


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("2", {"reason_code": "not now"}), ("3", {"comment": "3"}), (" too much ", {"comment": "too much"}), ("", None)],
)
def test_a_rejection_at_a_terminal_offers_the_reasons_of_the_policy(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch, typed: str, sent: dict[str, str] | None
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: True)
    monkeypatch.setattr("typer.prompt", lambda _question, **_: typed)
    stack.will(
        said({**APPROVAL, "reject_reasons": ["dou\x1bble", "not now"]}), said({**APPROVAL, "status": "rejected"})
    )
    ended = perdure("approvals", "reject", "a-1")
    assert "dou\\u001bble" in ended.out and "not now" in ended.out
    assert ended.code == (1 if sent is None else 0)
    bodies = [asked.body for asked in stack.asked[1:]]
    assert bodies == ([] if sent is None else [{"decision": "reject", "digest": "d" * 64, **sent}])


def test_lists_are_narrowed_by_whose_they_are(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [OPEN], "next": None}))
    words = ("--mine", "--assignee", "rita", "--role", "reviewer", "--expiring", "60")
    listed = perdure("approvals", "list", *words).out
    assert stack.asked[0].query == {
        "status": ["pending"], "mine": ["true"], "assignee": ["rita"], "role": ["reviewer"], "expiring": ["60"],
        "limit": ["50"],
    }  # fmt: skip
    assert "rita" in listed and "1/2" in listed


def test_ageing_is_a_table_of_who_keeps_whom_waiting(perdure: Perdure, stack: ApiDouble) -> None:
    row = {
        "role": "reviewer",
        "assignee": "rita",
        "agent": "refunds",
        "waiting": 7,
        "oldest_at": "2020-01-01T00:00:00Z",
        "next_expiry_at": "2999-01-01T00:00:00Z",
        "fallback": {"reviewer": "una", "at": None},
        "buckets": {"1h": 1, "1d": 2, "3d": 4, "older": 0},
    }
    stack.will(said({"items": [row]}), said({"items": []}), said({"items": [row]}))
    cells = perdure("approvals", "ageing").out.splitlines()[1].split()
    assert cells[:8] == ["reviewer", "rita", "refunds", "7", "1", "2", "4", "0"] and cells[-1] == "una"
    assert len(perdure("approvals", "ageing").out.splitlines()) == 1
    assert perdure("approvals", "ageing", "--json").json["items"] == [row]


def test_arguments_that_a_reviewer_changed_are_shown_with_what_was_asked_for(
    perdure: Perdure, stack: ApiDouble
) -> None:
    before, after = {"order": "1042"}, {"order": "7"}
    revised = {**OPEN, "args": after, "revision": {"by": "una", "args": after, "args_before": before}}
    edited = {**APPROVAL, "status": "edited", "args": before, "decision": {"type": "edit", "by": "una", "args": after}}
    stack.will(said(revised), said(edited))
    for _ in range(2):
        out = perdure("approvals", "show", "a-1").out
        assert '    "order": "7"\n' in out and '  -  "order": "1042"\n' in out and '  +  "order": "7"\n' in out


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_response_is_refused_by_its_name_before_anything_is_asked(
    perdure: Perdure, stack: ApiDouble, text: str
) -> None:
    ended = perdure("approvals", "respond", "a-1", text)
    assert ended.code == 2 and "TEXT" in ended.err and stack.asked == []


def test_a_preview_is_asked_for_and_shown_as_what_changes(perdure: Perdure, stack: ApiDouble) -> None:
    seen = {"at": "2026-11-21T10:00:00Z", "before": {"left": 9}, "after": {"left": 4, "to": "\x1b[8m"}}
    failed = {"at": "2026-11-21T10:00:00Z", "fault": "no answer \x1bwithin 8 s"}
    stack.will(said({**APPROVAL, "preview": seen}), said({**APPROVAL, "preview": failed}), said(APPROVAL))
    shown, none, without = perdure("approvals", "preview", "a-1"), *(perdure("approvals", "show", "a-1") for _ in "12")
    assert (stack.asked[0].method, stack.asked[0].path) == ("POST", "/v1/approvals/a-1/preview")
    assert '-  "left": 9' in shown.out and '+  "left": 4' in shown.out and "2026-11-21 10:00:00 UTC" in shown.out
    assert "no answer" in none.out and "no answer" not in without.out
    assert "\x1b" not in shown.out + none.out


def test_of_an_edited_call_the_digest_in_force_and_the_one_asked_for_are_told_apart(
    perdure: Perdure, stack: ApiDouble
) -> None:
    decision = {"type": "edit", "by": "una", "args": {"order": "7"}, "digest": "e" * 64}
    stack.will(said({**APPROVAL, "status": "done", "decision": decision}))
    out = perdure("approvals", "show", "a-1").out
    assert 0 < out.index("e" * 16 + "…") < out.index("d" * 16 + "…")


_PAST, _THEN = "2020-01-01T00:00:00Z", "2020-01-01T00:00:09Z"
_GONE = {"reviewer": "una", "at": _PAST, "fell_back_at": _THEN}
_VOTE = {"decision": "approve", "for": None, "at": "2026-11-21T10:05:00Z"}
_LOST = {**OPEN["votes"][0], "counts": False}
_OLD = {**APPROVAL, "outdated": "changed", "allowed_decisions": ["reject"]}
_SAYS = {**APPROVAL, "description": "in general", "says": "this call"}
_NOT_YET = "2999-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("approval", "shown", "hidden"),
    [
        (_SAYS, ["this call"], ["in general"]),
        ({**_SAYS, "says": ""}, ["in general"], []),
        (
            {**OPEN, "votes": [], "assignee": "una", "fallback": _GONE},
            ["2020-01-01 00:00:09 UTC"],
            [_PAST[:4] + " ago"],
        ),
        (
            {**OPEN, "votes": [], "assignee": "una", "fallback": {**_GONE, "fell_back_at": None}},
            ["2020-01-01 00:00:00"],
            [],
        ),
        ({**OPEN, "votes": [], "fallback": {"reviewer": "una", "at": _PAST}}, ["2020-01-01 00:00:00"], []),
        ({**OPEN, "votes": [], "assignee": None, "fallback": _GONE}, [], ["2020-01-01"]),
        ({**OPEN, "votes": [_LOST]}, [r"\b0\b\D{1,6}\b2\b", "tom"], []),
        (
            {**OPEN, "votes": [{**_VOTE, "by": "ann"}, {**_VOTE, "by": "bob", "counts": False}]},
            [r"\b1\b\D{1,6}\b2\b", "bob"],
            [],
        ),
        ({**OPEN, "claimed_until": _PAST, "assignee": None}, [], [r"rita \("]),
        (_OLD, ["changed", "approvals reject a-1"], ["approvals approve a-1"]),
        ({**_OLD, "status": "approved"}, ["changed"], ["approvals reject a-1"]),
        ({**APPROVAL, "status": "approved", "ready_at": "2999-01-01T00:00:00Z"}, [_NOT_YET, "withdraw a-1"], []),
        ({**APPROVAL, "status": "approved", "ready_at": _PAST}, [], ["withdraw a-1"]),
        (APPROVAL, ["turn:t", "approvals reject a-1"], ["\u202e", "\x1b"]),
    ],
)
def test_an_approval_is_shown_with_what_is_true_of_it_now(
    perdure: Perdure, stack: ApiDouble, approval: dict[str, Any], shown: list[str], hidden: list[str]
) -> None:
    stack.will(said(approval))
    ended = perdure("approvals", "show", "a-1")
    assert ended.code == 0
    assert [each for each in shown if not re.search(each, ended.out)] == []
    assert [each for each in hidden if re.search(each, ended.out)] == []
