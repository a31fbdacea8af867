"""The setup code: its form, what counts as the same, and what a caller learns of one that does not let them in."""

import re

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
        (WRONG, kept(), "is wrong"),
        (GOOD[:-1], kept(), "is wrong"),
        (GOOD, None, "is wrong"),
        (GOOD, kept(is_expired=True), "has expired"),
        (GOOD, kept(wrong_tries=MOST_TRIES), "10 wrong tries"),
        (GOOD, kept(is_expired=True, wrong_tries=MOST_TRIES), "10 wrong tries"),
        (WRONG, kept(is_expired=True), "is wrong"),
        (WRONG, kept(wrong_tries=MOST_TRIES), "is wrong"),
    ],
)
def test_only_the_holder_of_a_code_learns_why_it_is_void(
    given_code: str, found: SetupCode | None, expected: str | None
) -> None:
    refused = code_refusal(given_code, found)
    if expected is None:
        assert refused is None
    elif expected == "setup_code_needed":
        assert refused is not None and (refused.code, refused.http) == (expected, 401)
    else:
        assert refused is not None and (refused.code, refused.http) == ("setup_code_invalid", 403)
        assert expected in refused.message
        assert "start the stack again as before, such as with `make up`" in refused.message
        assert "`python -m perdure.apps.bootstrap` with the same settings" in refused.message


@given(st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES), st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES))
def test_a_code_has_eight_groups_of_four_and_all_of_its_bits(bits: bytes, others: bytes) -> None:
    assert re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", code_of(bits))
    assert (code_of(bits) == code_of(others)) is (bits == others)
