"""The decision hub: its commands, and answers of its model."""

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
from perdure.graph.topologies.decision_hub.spec import IN_ORDER, OPTIONAL, Command, Standing, next_command

C = Command
NONE: frozenset[Command] = frozenset()
CASES = [
    # name, failed, done, allowed, next
    ("nothing is done", False, NONE, NONE, C.PREPROCESS),
    ("the text is ready", False, {C.PREPROCESS}, NONE, C.CALL_MODEL),
    ("memory is allowed", False, {C.PREPROCESS}, OPTIONAL, C.MEMORY_READ),
    ("one memory was read", False, {C.PREPROCESS, C.MEMORY_READ}, OPTIONAL, C.LONG_TERM_MEMORY_READ),
    ("only the long one is allowed", False, {C.PREPROCESS}, {C.LONG_TERM_MEMORY_READ}, C.LONG_TERM_MEMORY_READ),
    ("the model has answered", False, {C.PREPROCESS, C.CALL_MODEL}, NONE, C.FORMAT),
    ("there is an answer to keep", False, set(IN_ORDER[:4]), OPTIONAL, C.MEMORY_WRITE),
    ("all is done", False, set(IN_ORDER), OPTIONAL, C.FORMAT),
    ("it has failed at once", True, NONE, OPTIONAL, C.FORMAT),
    ("it has failed later", True, {C.PREPROCESS}, OPTIONAL, C.FORMAT),
    ("a preprocessing is never left out", False, {C.CALL_MODEL}, NONE, C.PREPROCESS),
]


@pytest.mark.parametrize(
    ("failed", "done", "allowed", "expected"), [row[1:] for row in CASES], ids=[r[0] for r in CASES]
)
def test_the_table_of_commands(
    failed: bool, done: frozenset[Command], allowed: frozenset[Command], expected: Command
) -> None:
    assert next_command(Standing(failed, frozenset(done), frozenset(allowed))) is expected


@given(st.frozensets(st.sampled_from(Command)), st.frozensets(st.sampled_from(Command)))
def test_every_start_ends_in_the_response_with_no_command_given_twice(
    done: frozenset[Command], allowed: frozenset[Command]
) -> None:
    given_so_far: list[Command] = []
    while (command := next_command(Standing(False, done, allowed))) is not Command.FORMAT:
        given_so_far.append(command)
        done |= {command}
    assert len(set(given_so_far)) == len(given_so_far) <= len(IN_ORDER)
    assert not [command for command in given_so_far if command in OPTIONAL and command not in allowed]


@given(st.frozensets(st.sampled_from(Command)), st.frozensets(st.sampled_from(Command)))
def test_a_failure_has_nothing_left_but_its_response(done: frozenset[Command], allowed: frozenset[Command]) -> None:
    assert next_command(Standing(True, done, allowed)) is Command.FORMAT


ROOT = Path(__file__).parents[3]
S, E = AnswerStatus, ErrorType
MODEL_ANSWERS_CASES = [
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


@pytest.mark.parametrize(("code", "text", "status", "error_type"), MODEL_ANSWERS_CASES)
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
