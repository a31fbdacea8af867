"""Notices: signed for one time and one delivery, tried again for most of a day, silent about what matters."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.delivery import MOST_ATTEMPTS, VALID_SECONDS, chat_may_decide, refusal, says_args, sign, wait_after

SECRET, NOW = "s" * 64, 1_800_000_000
BODY = b'{"event": "approval.opened"}'
GOOD = sign(SECRET, str(NOW), "d-1", BODY)


@pytest.mark.parametrize(
    ("timestamp", "delivery", "signature", "body", "now", "said"),
    [
        (str(NOW), "d-1", GOOD, BODY, NOW, ""),
        (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS, ""),
        (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS, ""),
        (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS + 1, "too old"),
        (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS - 1, "too old"),
        (str(NOW + 1), "d-1", GOOD, BODY, NOW, "signature"),
        (str(NOW), "d-2", GOOD, BODY, NOW, "signature"),
        (str(NOW), "d-1", GOOD, BODY + b" ", NOW, "signature"),
        (str(NOW), "d-1", GOOD[3:], BODY, NOW, "signature"),
        (str(NOW), "d-1", "", BODY, NOW, "signature"),
        (str(NOW), "d-1", "é", BODY, NOW, "signature"),
        (str(NOW), "", sign(SECRET, str(NOW), "", BODY), BODY, NOW, "lacks"),
        ("soon", "d-1", sign(SECRET, "soon", "d-1", BODY), BODY, NOW, "lacks"),
        ("-1", "d-1", sign(SECRET, "-1", "d-1", BODY), BODY, NOW, "lacks"),
        ("", "d-1", GOOD, BODY, NOW, "lacks"),
    ],
)
def test_a_notice_is_taken_only_as_it_was_signed_and_only_then(
    timestamp: str, delivery: str, signature: str, body: bytes, now: int, said: str
) -> None:
    found = refusal(SECRET, timestamp, delivery, signature, body, now)
    assert (not found) if not said else said in found


@given(st.binary(max_size=60), st.text("0123456789abcdef-", min_size=1, max_size=40), st.binary(min_size=1, max_size=9))
def test_no_other_secret_and_no_other_body_fits(body: bytes, delivery: str, more: bytes) -> None:
    signature = sign(SECRET, str(NOW), delivery, body)
    assert refusal(SECRET, str(NOW), delivery, signature, body, NOW) == ""
    assert refusal(SECRET + "x", str(NOW), delivery, signature, body, NOW)
    assert refusal(SECRET, str(NOW), delivery, signature, body + more, NOW)


def test_the_waits_double_up_to_an_hour_and_end() -> None:
    waits = [wait_after(attempts) for attempts in range(1, MOST_ATTEMPTS + 2)]
    assert waits[:4] == [timedelta(seconds=seconds) for seconds in (5, 10, 20, 40)]
    assert waits[MOST_ATTEMPTS - 2] == timedelta(hours=1)
    assert waits[MOST_ATTEMPTS - 1 :] == [None, None]
    assert timedelta(hours=12) < sum((wait for wait in waits if wait), timedelta()) < timedelta(hours=24)


@pytest.mark.parametrize(
    ("risk", "with_args", "says", "decides"),
    [
        ("low", True, True, True),
        ("low", False, False, True),
        ("medium", True, False, False),
        ("high", True, False, False),
        ("", True, False, False),
    ],
)
def test_arguments_go_out_and_decisions_come_in_for_low_risk_alone(
    risk: str, with_args: bool, says: bool, decides: bool
) -> None:
    assert says_args(risk, with_args=with_args) is says
    assert chat_may_decide(risk) is decides
