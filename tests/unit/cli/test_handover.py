"""Claiming, handing over, taking back: what is sent, what is told, and with which exit code a refusal ends."""

from typing import Any

import pytest

from tests.unit.cli.approval import APPROVAL
from tests.unit.cli.conftest import Perdure
from tests.unit.perdure.api_double import ApiDouble, Reply, said

CLAIMED = {**APPROVAL, "claimed_by": "rita", "claimed_until": "2999-01-01T00:00:00Z"}


def refused(status: int, code: str, details: dict[str, Any] | None = None) -> Reply:
    """A refusal of the API."""
    return said({"error": {"code": code, "message": "no", "details": details or {}, "request_id": "r"}}, status)


@pytest.mark.parametrize(
    ("words", "path", "body", "answer", "told"),
    [
        (("claim", "a-1"), "claim", {}, CLAIMED, "yours until 2999-01-01 00:00:00 UTC"),
        (("claim", "a-1", "--seconds", "60"), "claim", {"seconds": 60}, CLAIMED, "yours until"),
        (("release", "a-1"), "release", {}, APPROVAL, "free for all"),
        (("reassign", "a-1", "tom"), "reassign", {"to": "tom"}, {**APPROVAL, "assignee": "tom"}, "on the list of tom"),
        (
            ("reassign", "a-1", "tom", "--comment", "away"),
            "reassign",
            {"to": "tom", "comment": "away"},
            {**APPROVAL, "assignee": "tom"},
            "on the list of tom",
        ),
        (("escalate", "a-1"), "escalate", {}, {**APPROVAL, "reviewer_role": "admin"}, "now for the role admin"),
    ],
)
def test_each_verb_sends_what_it_must_and_tells_whose_it_is_now(
    perdure: Perdure,
    stack: ApiDouble,
    words: tuple[str, ...],
    path: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    told: str,
) -> None:
    stack.will(said(answer), said(answer))
    ended = perdure("approvals", *words)
    assert ended.code == 0 and ended.out.startswith(told) and "refund (a-1)" in ended.out
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
    replies = [said({**APPROVAL, "status": status})] if not words else []
    stack.will(*replies, said({**APPROVAL, "status": "withdrawn"}))
    ended = perdure("approvals", "withdraw", "a-1", "--comment", "not needed", *words)
    assert (ended.code, ended.out) == (0, "withdrawn: refund (a-1)\n")
    asked = stack.asked[-1]
    assert (asked.path, asked.body) == ("/v1/approvals/a-1/withdraw", {"comment": "not needed"})
    assert asked.headers["authorization"] == f"Bearer {token}"


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


def test_a_decision_on_what_somebody_else_claimed_says_who_and_until_when(perdure: Perdure, stack: ApiDouble) -> None:
    details = {"claimed_by": "rita", "claimed_until": "2026-11-21T10:15:00Z"}
    stack.will(said(APPROVAL), refused(409, "claimed", details))
    ended = perdure("approvals", "approve", "a-1")
    assert ended.code == 1 and "rita has claimed it until 2026-11-21T10:15:00Z" in ended.err


def test_who_decides_too_much_is_told_when_to_come_back(perdure: Perdure, stack: ApiDouble) -> None:
    body = {"error": {"code": "too_many_decisions", "message": "slow down", "details": {}}}
    stack.will(said(APPROVAL), said(body, 429, Retry_After="17"))
    ended = perdure("approvals", "approve", "a-1")
    assert ended.code == 1 and "Worth another try in 17 s." in ended.err
