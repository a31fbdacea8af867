"""Claiming, handing over, taking back: what is sent, what is told, and with which exit code a refusal ends."""

from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
from tests.unit.cli.approval import APPROVAL
from tests.unit.cli.conftest import Perdure

CLAIMED = {**APPROVAL, "claimed_by": "rita", "claimed_until": "2999-01-01T00:00:00Z"}


def refused(status: int, code: str, details: dict[str, Any] | None = None) -> Reply:
    """A refusal of the API."""
    return said({"error": {"code": code, "message": "no", "details": details or {}, "request_id": "r"}}, status)


@pytest.mark.parametrize(
    ("words", "path", "body", "answer", "named"),
    [
        (("claim", "a-1"), "claim", {}, CLAIMED, "2999-01-01 00:00:00 UTC"),
        (("claim", "a-1", "--seconds", "60"), "claim", {"seconds": 60}, CLAIMED, "rita"),
        (("release", "a-1"), "release", {}, APPROVAL, "a-1"),
        (("reassign", "a-1", "tom"), "reassign", {"to": "tom"}, {**APPROVAL, "assignee": "tom"}, "tom"),
        (
            ("reassign", "a-1", "tom", "--comment", "away"),
            "reassign",
            {"to": "tom", "comment": "away"},
            {**APPROVAL, "assignee": "tom"},
            "tom",
        ),
        (("escalate", "a-1"), "escalate", {}, {**APPROVAL, "reviewer_role": "admin"}, "admin"),
    ],
)
def test_each_verb_sends_its_request_and_names_who_has_the_approval_now(
    perdure: Perdure,
    stack: ApiDouble,
    words: tuple[str, ...],
    path: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    named: str,
) -> None:
    stack.will(said(answer), said(answer))
    ended = perdure("approvals", *words)
    assert ended.code == 0 and named in ended.out and "a-1" in ended.out
    asked = stack.asked[0]
    assert (asked.method, asked.path, asked.body) == ("POST", f"/v1/approvals/a-1/{path}", body)
    assert asked.headers["authorization"] == "Bearer t-reviewer" and asked.headers["idempotency-key"]
    as_json = perdure("approvals", *words, "--json").json
    assert {name: value for name, value in as_json.items() if name in answer} == answer


@pytest.mark.parametrize(
    ("status", "words", "token"),
    [
        ("pending", (), "t-requester"),
        ("approved", (), "t-reviewer"),
        ("pending", ("--as", "admin"), "t-admin"),
    ],
)
def test_what_is_undecided_is_withdrawn_as_the_requester_and_what_is_decided_as_the_reviewer(
    perdure: Perdure, stack: ApiDouble, status: str, words: tuple[str, ...], token: str
) -> None:
    stack.will(said({**APPROVAL, "status": status}), said({**APPROVAL, "status": "withdrawn"}))
    ended = perdure("approvals", "withdraw", "a-1", "--comment", "not needed", *words)
    assert ended.code == 0 and '"order": "1042"' in ended.out
    asked = stack.asked[-1]
    assert (asked.path, asked.body) == ("/v1/approvals/a-1/withdraw", {"comment": "not needed"})
    assert asked.headers["authorization"] == f"Bearer {token}"


@pytest.mark.parametrize(("answer", "words", "sent"), [(True, (), 2), (False, (), 1), (False, ("--yes",), 2)])
def test_a_person_at_a_terminal_is_asked_before_it_is_withdrawn(
    perdure: Perdure,
    stack: ApiDouble,
    monkeypatch: pytest.MonkeyPatch,
    answer: bool,
    words: tuple[str, ...],
    sent: int,
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: answer)
    stack.will(said(APPROVAL), said({**APPROVAL, "status": "withdrawn"}))
    ended = perdure("approvals", "withdraw", "a-1", *words)
    assert (ended.code, len(stack.asked)) == (0 if sent == 2 else 1, sent)


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


@pytest.mark.parametrize("words", [("claim",), ("release",), ("reassign", "tom"), ("escalate",)])
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (404, "approval_not_found", 4),
        (403, "role_required", 1),
        (409, "already_decided", 5),
        (409, "already_escalated", 5),
        (410, "approval_expired", 6),
        (409, "claimed", 1),
        (422, "cannot_decide", 2),
    ],
)
def test_each_refusal_has_its_exit_code(
    perdure: Perdure, stack: ApiDouble, words: tuple[str, ...], status: int, code: str, exit_code: int
) -> None:
    stack.will(refused(status, code))
    assert perdure("approvals", words[0], "a-1", *words[1:]).code == exit_code


def test_a_withdrawal_that_comes_after_the_start_is_too_late(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**APPROVAL, "status": "approved"}), refused(409, "already_running"))
    assert perdure("approvals", "withdraw", "a-1").code == 5


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
