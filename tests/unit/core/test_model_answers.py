"""What a model call came to: three statuses, four types."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.providers import errors as vendors
from perdure.contracts.errors import Problem
from perdure.core.calls.ledger import REFUSED
from perdure.graph.topologies.decision_hub.backend import (
    OURS,
    TIMEOUTS,
    UNAVAILABLE,
    UNUSABLE,
    AnswerStatus,
    ErrorType,
    classified,
    fallback_text,
)

ROOT = Path(__file__).parents[3]
S, E = AnswerStatus, ErrorType
CASES = [
    (None, "words", S.SUCCESS, None),
    (None, "", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    (None, " \n\t", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    ("model_timeout", "", S.RECOVERABLE_ERROR, E.TIMEOUT),
    ("model_timeout", "half an answer", S.RECOVERABLE_ERROR, E.TIMEOUT),
    ("activity_timeout", "", S.RECOVERABLE_ERROR, E.TIMEOUT),
    ("model_unreadable", "", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    ("model_empty_answer", "", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    ("output_limit", "", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    ("answer_too_large", "much", S.RECOVERABLE_ERROR, E.INVALID_OUTPUT),
    ("model_cut_off", "half", S.FATAL_ERROR, E.BACKEND_UNAVAILABLE),
    ("model_unavailable", "", S.FATAL_ERROR, E.BACKEND_UNAVAILABLE),
    ("model_rate_limited", "", S.FATAL_ERROR, E.BACKEND_UNAVAILABLE),
    ("nobody knows this one", "", S.FATAL_ERROR, E.BACKEND_UNAVAILABLE),
    ("stopped", "", S.FATAL_ERROR, E.UNKNOWN),
    ("token_budget_spent", "", S.FATAL_ERROR, E.UNKNOWN),
    ("answer_over_budget", "half", S.FATAL_ERROR, E.UNKNOWN),
]


@pytest.mark.parametrize(("code", "text", "status", "error_type"), CASES)
def test_the_table_of_answers(code: str | None, text: str, status: AnswerStatus, error_type: ErrorType | None) -> None:
    problem = Problem(code=code, message="no") if code else None
    assert classified(problem, text) == (status, error_type)


def test_every_error_that_a_model_call_may_come_to_has_one_row() -> None:
    told = codes_of_model_calls()
    rows = [TIMEOUTS, UNUSABLE, UNAVAILABLE, OURS]
    assert {code: sum(code in row for row in rows) for code in told} == dict.fromkeys(told, 1)


def codes_of_model_calls() -> set[str]:
    """Those of the tables of vendors, of refused claims, and what a provider or its worker raises by name."""
    vendor = [each for each in vars(vendors).values() if isinstance(each, vendors.Meaning)]
    for table in (vendors.PROVIDER, vendors.PROVIDER_STATUS, vendors.STORE):
        vendor += [each for each in table.values() if isinstance(each, vendors.Meaning)]
    raised = re.compile(r"(?:UpstreamUnavailable|UpstreamRejected|LimitReached|InvariantBroken)\(\s*\"([a-z_]+)\"")
    files = [
        *(ROOT / "perdure" / "activities" / "providers").glob("*.py"),
        ROOT / "perdure" / "activities" / "model_request.py",
    ]
    named = {code for file in files for code in raised.findall(file.read_text())}
    refused = {problem.code for problem in REFUSED.values()}
    return {each.code for each in vendor} | named | refused | {"activity_timeout", "activity_failed"}


@given(st.none() | st.builds(Problem, code=st.text(), message=st.text()), st.text())
def test_an_error_has_a_type_and_a_success_has_words(problem: Problem | None, text: str) -> None:
    status, error_type = classified(problem, text)
    assert (status is S.SUCCESS) == (error_type is None)
    assert status is not S.SUCCESS or text.strip()


@pytest.mark.parametrize("error_type", ErrorType)
def test_a_fallback_is_marked_with_its_type(error_type: ErrorType) -> None:
    assert fallback_text(error_type).startswith(f"[{error_type.value}] ")
