"""The next command of a hub: each at most once, always an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
