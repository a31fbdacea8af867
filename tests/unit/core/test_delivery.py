"""Delivery of webhooks."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import delivery
from perdure.core.delivery import MAX_ATTEMPTS, VALID_SECONDS, delivery_refusal, sign

SECRET, NOW = "s" * 64, 1_800_000_000
BODY = b'{"event": "approval.opened"}'
GOOD = sign(SECRET, str(NOW), "d-1", BODY)


@pytest.mark.parametrize(("timestamp", "number", "signature", "body", "now", "is_taken"), [
    (str(NOW), "d-1", GOOD, BODY, NOW, True), (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS, True),
    (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS, True),
    (str(NOW), "d-1", GOOD, BODY, NOW + VALID_SECONDS + 1, False),
    (str(NOW), "d-1", GOOD, BODY, NOW - VALID_SECONDS - 1, False),
    *((str(NOW + 1), "d-1", GOOD, BODY, NOW, False), (str(NOW), "d-2", GOOD, BODY, NOW, False)),
    *((str(NOW), "d-1", GOOD, BODY + b" ", NOW, False), (str(NOW), "d-1", GOOD[3:], BODY, NOW, False)),
    *((str(NOW), "d-1", "", BODY, NOW, False), (str(NOW), "d-1", "é", BODY, NOW, False)),
    (str(NOW), "", sign(SECRET, str(NOW), "", BODY), BODY, NOW, False),
    ("soon", "d-1", sign(SECRET, "soon", "d-1", BODY), BODY, NOW, False),
    ("-1", "d-1", sign(SECRET, "-1", "d-1", BODY), BODY, NOW, False), ("", "d-1", GOOD, BODY, NOW, False),
])  # fmt: skip
def test_a_webhook_needs_a_valid_signature_within_its_time(
    timestamp: str, number: str, signature: str, body: bytes, now: int, is_taken: bool
) -> None:
    assert (not delivery_refusal(SECRET, timestamp, number, signature, body, now)) is is_taken


@given(st.binary(max_size=60), st.text("0123456789abcdef-", min_size=1, max_size=40), st.binary(min_size=1, max_size=9))
def test_a_signature_is_valid_for_no_other_secret_or_body(body: bytes, number: str, more: bytes) -> None:
    signature = sign(SECRET, str(NOW), number, body)
    assert delivery_refusal(SECRET, str(NOW), number, signature, body, NOW) == ""
    assert delivery_refusal(SECRET + "x", str(NOW), number, signature, body, NOW)
    assert delivery_refusal(SECRET, str(NOW), number, signature, body + more, NOW)


def test_waits_between_deliveries_double_up_to_an_hour_and_end() -> None:
    waits = [delivery.wait_after(attempts) for attempts in range(1, MAX_ATTEMPTS + 2)]
    assert waits[:4] == [timedelta(seconds=seconds) for seconds in (5, 10, 20, 40)]
    assert waits[MAX_ATTEMPTS - 2] == timedelta(hours=1)
    assert waits[MAX_ATTEMPTS - 1 :] == [None, None]
    assert timedelta(hours=12) < sum((wait for wait in waits if wait), timedelta()) < timedelta(hours=24)


def test_only_low_risk_webhooks_contain_arguments_and_only_those_accept_decisions() -> None:
    risks = ("low", "medium", "high", "")
    assert [risk for risk in risks if delivery.says_args(risk, with_args=True)] == ["low"]
    assert [risk for risk in risks if delivery.chat_may_decide(risk)] == ["low"]
    assert not delivery.says_args("low", with_args=False)
