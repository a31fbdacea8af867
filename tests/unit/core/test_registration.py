"""The setup code: its form, what counts as the same, and what a caller learns of one that does not let them in."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import CODE_BYTES, MOST_TRIES, SetupCode, code_of, code_refusal, sha256_of

GOOD = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
WRONG = GOOD.replace("A", "B")


def kept(*, is_expired: bool = False, wrong_tries: int = 0) -> SetupCode:
    return SetupCode(sha256_of(GOOD), is_expired, wrong_tries)


@pytest.mark.parametrize(
    ("given_code", "found", "expected"),
    [
        (GOOD, kept(), None),
        (GOOD, kept(wrong_tries=MOST_TRIES - 1), None),
        (GOOD.lower(), kept(), None),
        (GOOD.replace("-", " "), kept(), None),
        (f"  {GOOD.replace('-', '')}\n", kept(), None),
        ("", kept(), "setup_code_needed"),
        ("  ", kept(), "setup_code_needed"),
        ("", None, "setup_code_needed"),
        (WRONG, kept(), "setup_code_invalid"),
        (GOOD[:-1], kept(), "setup_code_invalid"),
        (GOOD, None, "setup_code_invalid"),
        (GOOD, kept(is_expired=True), "setup_code_invalid"),
        (GOOD, kept(wrong_tries=MOST_TRIES), "setup_code_invalid"),
        (GOOD, kept(is_expired=True, wrong_tries=MOST_TRIES), "setup_code_invalid"),
        (WRONG, kept(is_expired=True), "setup_code_invalid"),
        (WRONG, kept(wrong_tries=MOST_TRIES), "setup_code_invalid"),
    ],
)
def test_a_code_counts_until_it_is_old_or_guessed_at(
    given_code: str, found: SetupCode | None, expected: str | None
) -> None:
    refused = code_refusal(given_code, found)
    assert (refused.code if refused else None) == expected
    assert refused is None or refused.http == (401 if expected == "setup_code_needed" else 403)


def test_only_the_holder_of_a_code_learns_why_it_is_void() -> None:
    def told(code: str, **found: Any) -> str:
        refused = code_refusal(code, kept(**found))
        assert refused is not None
        return refused.message

    void = [told(GOOD, is_expired=True), told(GOOD, wrong_tries=MOST_TRIES)]
    wrong = {told(WRONG), told(WRONG, is_expired=True), told(WRONG, wrong_tries=MOST_TRIES)}
    assert len(wrong) == 1 and len({*void, *wrong}) == 3
    assert void[1] == told(GOOD, is_expired=True, wrong_tries=MOST_TRIES)


@given(st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES), st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES))
def test_a_code_has_eight_groups_of_four_and_all_of_its_bits(bits: bytes, others: bytes) -> None:
    assert re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", code_of(bits))
    assert (code_of(bits) == code_of(others)) is (bits == others)
