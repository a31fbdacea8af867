"""Delivery of webhooks and the health of an endpoint."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.delivery import (
    LATE_SECONDS,
    MOST_ATTEMPTS,
    VALID_SECONDS,
    chat_may_decide,
    disk_fault,
    queue_fault,
    refusal,
    relay_fault,
    says_args,
    sign,
    wait_after,
)

SECRET, NOW = "s" * 64, 1_800_000_000
BODY = b'{"event": "approval.opened"}'
GOOD = sign(SECRET, str(NOW), "d-1", BODY)


@pytest.mark.parametrize(
    ("timestamp", "delivery", "signature", "body", "now", "is_taken"),
    [
        (str(NOW), "d-1", GOOD, BODY, NOW, True),
        (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS, True),
        (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS, True),
        (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS + 1, False),
        (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS - 1, False),
        (str(NOW + 1), "d-1", GOOD, BODY, NOW, False),
        (str(NOW), "d-2", GOOD, BODY, NOW, False),
        (str(NOW), "d-1", GOOD, BODY + b" ", NOW, False),
        (str(NOW), "d-1", GOOD[3:], BODY, NOW, False),
        (str(NOW), "d-1", "", BODY, NOW, False),
        (str(NOW), "d-1", "é", BODY, NOW, False),
        (str(NOW), "", sign(SECRET, str(NOW), "", BODY), BODY, NOW, False),
        ("soon", "d-1", sign(SECRET, "soon", "d-1", BODY), BODY, NOW, False),
        ("-1", "d-1", sign(SECRET, "-1", "d-1", BODY), BODY, NOW, False),
        ("", "d-1", GOOD, BODY, NOW, False),
    ],
)
def test_a_notice_is_taken_only_as_it_was_signed_and_only_then(
    timestamp: str, delivery: str, signature: str, body: bytes, now: int, is_taken: bool
) -> None:
    assert (not refusal(SECRET, timestamp, delivery, signature, body, now)) is is_taken


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


@pytest.mark.parametrize(
    ("workers", "backlog", "oldest_seconds", "is_at_fault"),
    [
        (1, 0, 0.0, False),
        (1, 500, LATE_SECONDS, False),
        (1, 0, 900.0, False),
        (3, 1, 61.0, True),
        (0, 0, 0.0, True),
        (0, 9, 900.0, True),
    ],
)
def test_a_queue_is_at_fault_unserved_or_late(
    workers: int, backlog: int, oldest_seconds: float, is_at_fault: bool
) -> None:
    assert bool(queue_fault(workers, backlog, oldest_seconds)) is is_at_fault


@pytest.mark.parametrize(
    ("sessions", "overdue", "is_at_fault"), [(1, 0, False), (4, 0, False), (0, 0, True), (1, 2, True), (0, 2, True)]
)
def test_a_relay_is_at_fault_that_is_away_or_delivers_nothing(sessions: int, overdue: int, is_at_fault: bool) -> None:
    assert bool(relay_fault(sessions, overdue)) is is_at_fault


@pytest.mark.parametrize(
    ("free", "least", "is_at_fault"),
    [
        (200_000_000, 128 << 20, False),
        (128 << 20, 128 << 20, False),
        ((128 << 20) - 1, 128 << 20, True),
        (0, 128 << 20, True),
        (0, 0, False),
    ],
)
def test_a_disk_is_at_fault_with_less_room_than_there_must_be(free: int, least: int, is_at_fault: bool) -> None:
    assert bool(disk_fault(free, least)) is is_at_fault
