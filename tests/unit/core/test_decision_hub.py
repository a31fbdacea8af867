"""The decision hub: its commands, and answers of its model."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.providers import errors as vendors
from perdure.contracts.errors import Problem
from perdure.core.calls.ledger import PROBLEM_OF_CLAIM
from perdure.graph.topologies.decision_hub import backend
from perdure.graph.topologies.decision_hub.backend import (
    TIMEOUT_CODES,
    AnswerStatus,
    ErrorType,
    classify_answer,
    fallback_text,
)
from perdure.graph.topologies.decision_hub.spec import (
    COMMANDS_IN_ORDER,
    NEEDS_PERMISSION,
    Command,
    TurnProgress,
    next_command,
)

Commands = frozenset[Command]
COMMANDS = st.frozensets(st.sampled_from(Command))


@given(COMMANDS, COMMANDS)
def test_a_turn_repeats_no_command_and_a_failure_ends_it_immediately(done: Commands, allowed: Commands) -> None:
    assert next_command(TurnProgress(True, done, allowed)) is Command.FORMAT
    given_so_far: list[Command] = []
    while (command := next_command(TurnProgress(False, done, allowed))) is not Command.FORMAT:
        given_so_far.append(command)
        done |= {command}
    assert len(set(given_so_far)) == len(given_so_far) <= len(COMMANDS_IN_ORDER)
    assert not [command for command in given_so_far if command in NEEDS_PERMISSION and command not in allowed]


S, E = AnswerStatus, ErrorType
INVALID, AWAY = (S.RECOVERABLE_ERROR, E.INVALID_OUTPUT), (S.FATAL_ERROR, E.BACKEND_UNAVAILABLE)
CODES = {
    (S.RECOVERABLE_ERROR, E.TIMEOUT): "model_timeout activity_timeout",
    INVALID: "model_unreadable model_empty_answer output_limit answer_too_large",
    AWAY: "model_cut_off model_unavailable model_rate_limited nobody_knows_this_one",
    (S.FATAL_ERROR, E.UNKNOWN): "stopped token_budget_spent answer_over_budget",
}


def test_each_provider_error_code_has_its_error_type() -> None:
    assert classify_answer(None, "words") == (S.SUCCESS, None)
    assert classify_answer(None, "") == classify_answer(None, " \n\t") == INVALID
    for means, codes in CODES.items():
        for problem in (Problem(code=code, message="no") for code in codes.split()):
            assert classify_answer(problem, "") == classify_answer(problem, "half an answer") == means, problem.code


def test_every_error_code_of_a_model_call_is_in_exactly_one_row() -> None:
    codes = codes_of_model_calls()
    rows = [TIMEOUT_CODES, backend.UNUSABLE_ANSWER_CODES, backend.UNAVAILABLE_CODES, backend.ENGINE_ENDS]
    assert {code: sum(code in row for row in rows) for code in codes} == dict.fromkeys(codes, 1)


def codes_of_model_calls() -> set[str]:
    """Those of the tables of vendors, of refused claims, and what a provider or its worker raises by name."""
    tables = (vars(vendors), vendors.PROVIDER, vendors.PROVIDER_STATUS, vendors.STORE)
    vendor = {each.code for table in tables for each in table.values() if isinstance(each, vendors.Meaning)}
    raised = re.compile(r"(?:UpstreamUnavailable|UpstreamRejected|LimitReached|InvariantBroken)\(\s*\"([a-z_]+)\"")
    activities = Path(__file__).parents[3] / "perdure" / "activities"
    files = [*(activities / "providers").glob("*.py"), activities / "model_request.py"]
    named = {code for file in files for code in raised.findall(file.read_text())}
    claims = {problem.code for problem in PROBLEM_OF_CLAIM.values()}
    return vendor | named | claims | {"activity_timeout", "activity_failed"}


@given(st.none() | st.builds(Problem, code=st.text(), message=st.text()), st.text())
def test_only_an_error_has_a_type_and_only_a_success_needs_text(problem: Problem | None, text: str) -> None:
    status, error_type = classify_answer(problem, text)
    assert (status is S.SUCCESS) == (error_type is None)
    assert status is not S.SUCCESS or text.strip()


@pytest.mark.parametrize("error_type", ErrorType)
def test_a_fallback_is_marked_with_its_type(error_type: ErrorType) -> None:
    assert fallback_text(error_type).startswith(f"[{error_type.value}] ")
