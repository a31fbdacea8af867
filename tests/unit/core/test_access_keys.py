"""Keys of access tokens: told apart, strong, followed by another; what they derive is each for its purpose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.identity import AccessKey, AccessKeys, OperatorTokens

OLD, NEW = "o" * 40, "n" * 40
TEXT = st.text(max_size=40)


@pytest.mark.parametrize("text", ["", "  ", ",", "short", f"{OLD},short", "x" * 31])
def test_a_secret_that_could_be_guessed_is_refused(text: str) -> None:
    with pytest.raises(CallerError, match="access_secret_weak"):
        AccessKeys.of(text)


def test_the_first_key_signs_and_each_is_found_by_its_id() -> None:
    keys = AccessKeys.of(f"{NEW}, {OLD}\n")
    assert keys.newest == AccessKey.of(NEW)
    assert keys.named(AccessKey.of(OLD).id) == AccessKey.of(OLD)
    assert [keys.named(unknown) for unknown in ("", "00000000", None, 7, ["a"])] == [None] * 5
    assert NEW not in repr(keys)


def test_what_an_older_key_derived_is_still_known_and_that_of_a_key_taken_away_is_not() -> None:
    before = AccessKeys.of(OLD).newest.derived("form token", "s")
    assert AccessKeys.of(f"{NEW},{OLD}").knows(before, "form token", "s")
    assert not AccessKeys.of(NEW).knows(before, "form token", "s")


@given(TEXT, TEXT, TEXT)
def test_what_is_derived_for_one_thing_is_good_for_no_other(purpose: str, mine: str, others: str) -> None:
    keys = AccessKeys.of(NEW)
    derived = keys.newest.derived(purpose, mine)
    assert keys.knows(derived, purpose, mine)
    assert keys.knows(derived, purpose, others) is (mine == others)
    assert not keys.knows(derived, purpose + "x", mine)
    assert len(derived) == 43, "256 bits"


def test_an_operators_token_is_known_whole_and_never_kept() -> None:
    tokens = OperatorTokens.of(f"{NEW},{OLD}")
    assert tokens.know(NEW) and tokens.know(OLD)
    assert not any(tokens.know(each) for each in ("", NEW[:-1], NEW + "n", f"{NEW},{OLD}", "\udcff"))
    assert NEW not in repr(tokens) and not OperatorTokens().know("")


@pytest.mark.parametrize("text", ["", ",", "short", f"{OLD},short", "x" * 31])
def test_an_operators_token_that_could_be_guessed_is_refused(text: str) -> None:
    with pytest.raises(CallerError, match="operator_token_weak"):
        OperatorTokens.of(text)
