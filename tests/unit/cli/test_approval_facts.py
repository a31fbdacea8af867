"""What `approvals show` tells beside the call: the digest in force, whose it is by now, votes that are lost."""

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.approval import APPROVAL, OPEN
from tests.unit.cli.conftest import Perdure


def test_of_an_edited_call_the_digest_in_force_and_the_one_asked_for_are_told_apart(
    perdure: Perdure, stack: ApiDouble
) -> None:
    decision = {"type": "edit", "by": "una", "args": {"order": "7"}, "digest": "e" * 64}
    stack.will(said({**APPROVAL, "status": "done", "decision": decision}))
    lines = perdure("approvals", "show", "a-1").out.splitlines()
    told = [line.split() for line in lines if line.startswith("digest")]
    assert told == [["digest", "in", "force", "e" * 16 + "…"], ["digest", "asked", "for", "d" * 16 + "…"]]


def test_what_the_call_does_is_told_by_its_arguments_where_the_tool_has_a_sentence(
    perdure: Perdure, stack: ApiDouble
) -> None:
    told = {**APPROVAL, "description": "Pay money back.", "says": 'Pays back the order "1042".'}
    stack.will(said(told), said({**told, "says": ""}))
    shown = [perdure("approvals", "show", "a-1").out for _ in range(2)]
    assert 'Pays back the order "1042".' in shown[0] and "Pay money back." not in shown[0]
    assert "Pay money back." in shown[1]


_PAST, _THEN = "2020-01-01T00:00:00Z", "2020-01-01T00:00:09Z"


@pytest.mark.parametrize(
    ("fallback", "assignee", "told"),
    [
        ({"at": _PAST, "fell_back_at": _THEN}, "una", "fell back    since 2020-01-01 00:00:09 UTC, with una"),
        ({"at": _PAST}, "una", "fell back    since 2020-01-01 00:00:00 UTC, with una"),
        ({"at": _PAST}, "rita", "then goes to    una, due since 2020-01-01 00:00:00 UTC"),
    ],
)
def test_a_fallback_whose_date_has_passed_is_no_future(
    perdure: Perdure, stack: ApiDouble, fallback: dict[str, str], assignee: str, told: str
) -> None:
    stack.will(said({**OPEN, "assignee": assignee, "fallback": {"reviewer": "una", **fallback}}))
    out = perdure("approvals", "show", "a-1").out
    assert " ".join(told.split()) in " ".join(out.split()) and "in over" not in out


def test_a_fallback_that_went_to_somebody_else_is_not_told_as_one(perdure: Perdure, stack: ApiDouble) -> None:
    gone = {"reviewer": "una", "at": _PAST, "fell_back_at": _THEN}
    stack.will(said({**OPEN, "assignee": None, "fallback": gone}))
    out = perdure("approvals", "show", "a-1").out
    assert "fell back" not in out and "then goes to" not in out


def test_ageing_says_since_when_a_fallback_is_due(perdure: Perdure, stack: ApiDouble) -> None:
    fallback = {"reviewer": "una", "at": _PAST}
    stack.will(said({"items": [{"role": "reviewer", "waiting": 1, "fallback": fallback}]}))
    assert "una, due since 2020-01-01 00:00:00 UTC" in perdure("approvals", "ageing").out


def test_a_vote_whose_seat_has_lost_the_role_does_not_count(perdure: Perdure, stack: ApiDouble) -> None:
    lost = {**OPEN, "votes": [{**OPEN["votes"][0], "counts": False}]}
    stack.will(said(lost), said({**lost, "reviewer_role": "admin", "escalated_at": "2026-11-21T10:06:00Z"}))
    shown = perdure("approvals", "show", "a-1").out
    assert "0 of 2 that are needed" in shown
    assert "; does not count: tom has not the role reviewer any more: looks right" in shown
    escalated = perdure("approvals", "show", "a-1").out
    assert "does not count: tom has not the role that it was given by any more" in escalated


def test_a_second_vote_from_beside_the_named_reviewers_says_why_it_does_not_count(
    perdure: Perdure, stack: ApiDouble
) -> None:
    vote = {"decision": "approve", "for": None, "at": "2026-11-21T10:05:00Z"}
    votes = [{**vote, "by": "ann", "counts": True}, {**vote, "by": "bob", "counts": False}]
    stack.will(said({**OPEN, "votes": votes}))
    shown = perdure("approvals", "show", "a-1").out
    assert "does not count: bob is none of the named reviewers, and ann counts already" in shown
    assert shown.count("does not count") == 1


def test_an_outdated_request_says_so_in_the_list_and_by_itself(perdure: Perdure, stack: ApiDouble) -> None:
    old = {**APPROVAL, "outdated": "the tool has changed since", "allowed_decisions": ["reject", "respond"]}
    stack.will(said(old), said({"items": [old, APPROVAL]}), said({**old, "status": "approved"}))
    shown = perdure("approvals", "show", "a-1").out
    assert "the tool has changed since, so its call will not run; reject it, and the agent can ask anew" in shown
    assert "approvals reject a-1" in shown and "approvals approve a-1" not in shown
    listed = perdure("approvals", "list").out
    assert listed.count("pending, outdated") == 1 and listed.count("pending") == 2
    assert "so its call will not run; the agent must ask anew" in perdure("approvals", "show", "a-1").out
