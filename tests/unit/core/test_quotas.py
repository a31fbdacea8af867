"""Which quota refuses what, and in which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.core.budgets import Quotas, Scope, Used, check_files, exceeded, quota_reached
from perdure.core.turns import Admission, Caps, Load, OnBusy, admit

QUOTAS = Quotas(conversation_bytes=100, user_bytes=200, tenant_bytes=300)


@pytest.mark.parametrize(
    ("used", "more", "expected"),
    [
        (Used(), 100, None),
        (Used(), 101, Scope.CONVERSATION),
        (Used(100, 200, 300), 0, None),
        (Used(0, 200, 200), 1, Scope.USER),
        (Used(0, 0, 300), 1, Scope.TENANT),
        (Used(101, 201, 301), 0, Scope.CONVERSATION),  # the narrowest says what to do
        (Used(0, 201, 301), 0, Scope.USER),
    ],
)
def test_a_quota_is_exceeded_by_its_first_byte_too_many(used: Used, more: int, expected: Scope | None) -> None:
    assert exceeded(used, QUOTAS, more) is expected


sizes = st.integers(0, 400)
uses = st.builds(Used, sizes, sizes, sizes)


@given(uses, sizes)
def test_without_a_quota_everything_fits(used: Used, more: int) -> None:
    assert exceeded(used, Quotas(), more) is None


@given(uses, st.builds(Quotas, sizes, sizes, sizes), sizes, sizes)
def test_what_fits_fits_with_less(used: Used, quotas: Quotas, more: int, less: int) -> None:
    if exceeded(used, quotas, more) is None:
        assert exceeded(used, quotas, min(less, more)) is None


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        (
            Scope.USER,
            "you keep 1 GB, and the quota is 1 GB: delete files or whole conversations with files; an operator can "
            "raise PERDURE_BYTES_PER_USER",
        ),
        (
            Scope.CONVERSATION,
            "this conversation keeps 256 MB, and the quota is 256 MB: begin another conversation, or delete files of "
            "this one; an operator can raise PERDURE_BYTES_PER_CONVERSATION",
        ),
    ],
)
def test_the_refusal_says_how_much_is_kept_and_what_to_do(scope: Scope, message: str) -> None:
    quotas = Quotas(conversation_bytes=2**28, user_bytes=2**30)
    refused = quota_reached(Used(2**28, 2**30, 2**31), quotas, scope)
    assert (refused.code, refused.http, refused.message) == ("quota_reached", 429, message)
    assert refused.details["retry_after_seconds"] is None and refused.details["limit_bytes"] == quotas.of(scope)


def test_files_of_a_conversation_are_counted_too() -> None:
    check_files(9, Quotas(conversation_files=10))
    check_files(10**6, Quotas())
    with pytest.raises(CallerError, match="has 10 files, the most") as refused:
        check_files(10, Quotas(conversation_files=10))
    assert (refused.value.code, refused.value.http) == ("quota_reached", 429)


@given(st.booleans(), st.integers(0, 3), st.sampled_from(OnBusy), uses, sizes)
def test_nothing_is_admitted_over_a_quota(busy: bool, queued: int, on_busy: OnBusy, used: Used, more: int) -> None:
    load = Load(busy, queued, 1, used=used, message_bytes=more)
    admission = admit(load, Caps(quotas=QUOTAS), on_busy)
    assert (admission is Admission.QUOTA) == (exceeded(used, QUOTAS, more) is not None)
