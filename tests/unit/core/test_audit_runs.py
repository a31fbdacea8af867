"""A gated call that has begun had been given: by the last that the audit says of its approval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.audit import DECIDED, GIVEN, OUTCOMES, Fault, FaultKind, Run, undecided


@pytest.mark.parametrize(
    ("outcome", "said", "allowed"),
    [
        (DECIDED, "approve", True),
        (DECIDED, "edit", True),
        (DECIDED, None, True),  # erased with its person: that somebody decided is still known
        (DECIDED, "reject", False),
        (DECIDED, "respond", False),
        (DECIDED, "", False),
        ("approval.withdrawn", None, False),
        ("approval.voided", None, False),
        ("approval.expired", None, False),
        ("approval.cancelled", None, False),
        ("approval.withdrawn", "approve", False),
        (None, None, False),
    ],
)
def test_a_call_that_ran_was_allowed_by_exactly_these(outcome: str | None, said: str | None, allowed: bool) -> None:
    assert Run("a1", outcome, said).was_allowed is allowed


RUNS = st.builds(
    Run,
    st.uuids().map(str),
    st.sampled_from([*OUTCOMES, None]),
    st.sampled_from([*GIVEN, "reject", "respond", None]),
    st.integers(1, 99) | st.none(),
    st.integers(1, 99) | st.none(),
)


@given(st.lists(RUNS))
def test_each_that_was_not_allowed_is_one_fault_at_its_approvals_first_row(runs: list[Run]) -> None:
    assert undecided(runs) == [
        Fault(run.seq or 0, FaultKind.RAN_UNDECIDED, run.audit_id, run.approval_id)
        for run in runs
        if not run.was_allowed
    ]
