"""The setup code: its form, what counts as the same, and what a caller learns of one that does not let them in."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import CODE_BYTES, MAX_TRIES, SetupCode, code_refusal, code_sha256, format_code

GOOD = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
WRONG = GOOD.replace("A", "B")


def setup_code(*, is_expired: bool = False, wrong_tries: int = 0) -> SetupCode:
    return SetupCode(code_sha256(GOOD), is_expired, wrong_tries)


VOID = (
    setup_code(is_expired=True),
    setup_code(wrong_tries=MAX_TRIES),
    setup_code(is_expired=True, wrong_tries=MAX_TRIES),
)


@pytest.mark.parametrize(("expected", "tries"), [
    (None, [(code, setup_code()) for code in (GOOD.lower(), GOOD.replace("-", " "), f"  {GOOD.replace('-', '')}\n")]),
    (None, [(GOOD, setup_code()), (GOOD, setup_code(wrong_tries=MAX_TRIES - 1))]),
    ("setup_code_needed", [("", setup_code()), ("  ", setup_code()), ("", None)]),
    ("setup_code_invalid", [(WRONG, setup_code()), (GOOD[:-1], setup_code()), (GOOD, None)]),
    ("setup_code_invalid", [(code, void) for code in (GOOD, WRONG) for void in VOID]),
])  # fmt: skip
def test_a_setup_code_counts_until_it_is_old_or_guessed_at(expected: str | None, tries: list[tuple[str, Any]]) -> None:
    http = 401 if expected == "setup_code_needed" else 403
    for code, found in tries:
        refused = code_refusal(code, found)
        assert (refused and (refused.code, refused.http)) == (expected and (expected, http))


def test_only_the_holder_of_a_code_learns_why_it_is_void() -> None:
    def told(code: str, found: SetupCode) -> str:
        refused = code_refusal(code, found)
        assert refused is not None
        return refused.message

    old, guessed, both = (told(GOOD, void) for void in VOID)
    wrong = {told(WRONG, found) for found in (setup_code(), *VOID)}
    assert len(wrong) == 1 and len({old, guessed, *wrong}) == 3 and guessed == both


@given(st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES), st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES))
def test_a_setup_code_has_eight_groups_of_four_and_encodes_all_its_bits(bits: bytes, others: bytes) -> None:
    assert re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", format_code(bits))
    assert (format_code(bits) == format_code(others)) is (bits == others)
