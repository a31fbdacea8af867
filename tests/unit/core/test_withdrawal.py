"""Who may take back what, and until when."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.core.approvals.assignments import withdrawal_refusal
from perdure.core.approvals.decisions import Decider, Facts

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PENDING = Facts("pending", "digest", NOW + timedelta(days=7), NOW, "asker", "reviewer", False, {})
ASKER = Decider("asker", frozenset({"requester"}))
ANN = Decider("ann", frozenset({"reviewer"}), "Ann")
BOB = Decider("bob", frozenset({"reviewer"}), "Bob")
NOBODY = Decider("nobody", frozenset({"requester"}))
ADMIN = Decider("root", frozenset({"admin"}))
DECIDERS = frozenset({"ann"})


@pytest.mark.parametrize(
    ("status", "who", "expected"),
    [
        ("pending", ASKER, None),
        ("pending", ADMIN, None),
        ("pending", ANN, "role_required"),
        ("pending", NOBODY, "role_required"),
        ("approved", ANN, None),
        ("approved", BOB, None),
        ("approved", ADMIN, None),
        ("approved", ASKER, "role_required"),
        ("approved", NOBODY, "role_required"),
        ("edited", BOB, None),
        ("reserved", ANN, "already_running"),
        ("reserved", ASKER, "role_required"),
        ("done", ADMIN, "already_running"),
        ("outcome_unknown", BOB, "already_running"),
        ("rejected", ASKER, "already_decided"),
        ("rejected", ADMIN, "already_decided"),
        ("withdrawn", ASKER, "already_decided"),
        ("withdrawn", ANN, "already_decided"),
        ("expired", ASKER, "approval_expired"),
        ("cancelled", ADMIN, "already_decided"),
    ],
)
def test_who_may_take_back_what(status: str, who: Decider, expected: str | None) -> None:
    deciders = DECIDERS if status not in ("pending", "expired") else frozenset[str]()
    found = withdrawal_refusal(replace(PENDING, status=status), who, deciders, "approval")
    assert (found.code if found else None) == expected


def test_one_who_lost_the_role_may_still_take_back_the_own_decision() -> None:
    lost = Decider("ann", frozenset())
    assert withdrawal_refusal(replace(PENDING, status="approved"), lost, DECIDERS, "approval") is None


@pytest.mark.parametrize("kind", ["checkpoint", "limit"])
def test_what_has_no_call_that_could_still_be_kept_from_running_is_not_taken_back(kind: str) -> None:
    found = withdrawal_refusal(replace(PENDING, status="approved"), ANN, DECIDERS, kind)
    assert found is not None and (found.code, found.http) == ("already_running", 409)
    assert withdrawal_refusal(replace(PENDING, status="edited"), ANN, DECIDERS, kind) is None
    assert withdrawal_refusal(PENDING, ASKER, frozenset(), kind) is None


def test_past_its_deadline_a_request_is_gone() -> None:
    found = withdrawal_refusal(replace(PENDING, expires_at=NOW), ASKER, frozenset(), "approval")
    assert found is not None and (found.code, found.http) == ("approval_expired", 410)
