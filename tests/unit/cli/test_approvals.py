"""The reviewer tool: it shows the exact call, and decides on exactly what it has shown."""

import re
from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
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


def test_a_rejection_without_a_reason_is_not_even_asked_about(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("approvals", "reject", "a-1", "--comment", " ").code == 2
    assert stack.asked == []


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


def refused(status: int, code: str, details: dict[str, Any] | None = None) -> Reply:
    """A refusal of the API."""
    return said({"error": {"code": code, "message": "no", "details": details or {}, "request_id": "r"}}, status)


_WITHDRAWN = {"status": "withdrawn", "withdrawal": {"by": "ann", "at": "2026-11-21T10:00:00+00:00"}}
_BY_ANN = ("ann", "2026-11-21 10:00:00 UTC")


@pytest.mark.parametrize(
    ("now", "code", "named"),
    [
        (_WITHDRAWN, 5, _BY_ANN),
        ({**_WITHDRAWN, "decided_by": "una", "decision": {"type": "approve", "by": "una"}}, 5, _BY_ANN),
        ({"status": "expired"}, 6, ("2999-01-01 00:00:00 UTC",)),
        ({"status": "done"}, 5, ("done",)),
    ],
)
def test_a_settled_approval_is_not_withdrawn_and_its_end_is_named(
    perdure: Perdure, stack: ApiDouble, now: dict[str, Any], code: int, named: tuple[str, ...]
) -> None:
    stack.will(said({**APPROVAL, **now}))
    ended = perdure("approvals", "withdraw", "a-1")
    assert (ended.code, len(stack.asked)) == (code, 1)
    assert all(each in ended.err for each in named) and "una" not in ended.err


def test_what_was_withdrawn_meanwhile_is_not_said_to_be_decided_by_nobody(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(APPROVAL), refused(409, "already_decided", {"status": "withdrawn", "decision": {}}))
    ended = perdure("approvals", "withdraw", "a-1")
    assert ended.code == 5 and "already_decided" in ended.err and len(ended.err.splitlines()) == 1


def test_a_decision_on_what_somebody_else_claimed_says_until_when_once(perdure: Perdure, stack: ApiDouble) -> None:
    details = {"claimed_by": "rita", "claimed_until": "2026-11-21T10:15:00Z"}
    message = "rita is looking at it until 2026-11-21 10:15:00 UTC"
    stack.will(said(APPROVAL), said({"error": {"code": "claimed", "message": message, "details": details}}, 409))
    ended = perdure("approvals", "approve", "a-1")
    assert ended.code == 1 and ended.err.count("10:15:00") == 1


def test_too_many_decisions_are_answered_with_the_seconds_to_wait(perdure: Perdure, stack: ApiDouble) -> None:
    body = {"error": {"code": "too_many_decisions", "message": "slow down", "details": {}}}
    stack.will(said(APPROVAL), said(body, 429, Retry_After="17"))
    ended = perdure("approvals", "approve", "a-1")
    assert ended.code == 1 and "17 s" in ended.err
