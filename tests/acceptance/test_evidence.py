"""The evidence of the kill matrix is no formality: every way to be wrong is found."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.evidence import Target, Wanted, of_provider, of_requests_without_key, of_target, of_transcript
from tests.acceptance.turns import Happened
from tests.doubles.provider import Seen

pytestmark = pytest.mark.soak

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WANTED = Wanted("Please do the refund for order 7", "Done.", "refund", "7")
TURN: dict[str, Any] = {"turn_id": "t", "attempts": 2, "status": "completed", "answer": "Done.", "error": None}
EVENTS = [
    Happened("generation.start", BEGAN, "m1"),
    Happened("generation.start", BEGAN + timedelta(seconds=2), "m1"),
    Happened("generation.complete", BEGAN + timedelta(seconds=4), "m1"),
    Happened("tool.executing", BEGAN + timedelta(seconds=5), "c1"),
]
EFFECT = {"kind": "refund", "order": "7", "key": "k"}
REQUEST = {"path": "/refunds", "key": "k"}
MESSAGES = [
    {"role": "user", "content": WANTED.message},
    {"role": "assistant", "content": "I ask for it."},
    {"role": "tool", "content": "{}"},
    {"role": "assistant", "content": "Done."},
]


def asked(seconds: float, outcome: str = "answered", call_id: str = "m1") -> Seen:
    """A request to the provider."""
    return Seen(1, f"t.{call_id}", "gpt", "", [], {}, BEGAN.timestamp() + seconds, True, None, outcome)


def test_a_turn_that_is_right_has_no_fault() -> None:
    assert list(of_provider(TURN, EVENTS, [asked(0.1), asked(2.1)])) == []
    assert list(of_target(WANTED, EVENTS, Target([EFFECT], [REQUEST]))) == []
    assert list(of_transcript(TURN, WANTED, MESSAGES)) == []


def test_a_request_more_than_attempts_is_found() -> None:
    assert "3 requests" in " ".join(of_provider(TURN, EVENTS, [asked(0.1), asked(2.1), asked(2.2)]))


def test_a_request_after_the_settle_is_found_even_within_the_attempts() -> None:
    assert "after it was settled" in " ".join(of_provider(TURN, EVENTS, [asked(0.1), asked(4.1)]))


def test_a_request_that_no_step_was_for_and_one_that_nobody_began_are_found() -> None:
    assert "once more" in " ".join(of_provider(TURN, EVENTS, [asked(0.1, "no_step")]))
    assert "never begun" in " ".join(of_provider(TURN, EVENTS, [asked(0.1, call_id="m9")]))
    assert "never asked" in " ".join(of_provider(TURN, EVENTS, []))


def test_a_call_settled_twice_or_never_is_found() -> None:
    assert "settled" in " ".join(of_provider(TURN, [*EVENTS, EVENTS[2]], [asked(0.1)]))
    assert "settled" in " ".join(of_provider(TURN, EVENTS[:2], [asked(0.1)]))


def test_two_effects_none_and_a_request_more_than_tries_are_found() -> None:
    assert "2 effects" in " ".join(of_target(WANTED, EVENTS, Target([EFFECT, EFFECT], [REQUEST])))
    assert "0 effects" in " ".join(of_target(WANTED, EVENTS, Target([], [REQUEST])))
    assert "2 requests" in " ".join(of_target(WANTED, EVENTS, Target([EFFECT], [REQUEST, REQUEST])))
    assert "no key" in " ".join(of_target(WANTED, EVENTS, Target([{**EFFECT, "key": None}], [])))


def test_a_second_request_without_a_key_is_found() -> None:
    wanted = replace(WANTED, kind="note")
    note, request = {"kind": "note", "order": "7", "key": None}, {"path": "/notes", "key": None}
    assert list(of_requests_without_key([wanted], Target([note], [request]))) == []
    assert "2 requests" in " ".join(of_requests_without_key([wanted], Target([note], [request, request])))


def test_a_transcript_with_a_message_twice_or_another_answer_is_found() -> None:
    assert "transcript" in " ".join(of_transcript(TURN, WANTED, [*MESSAGES, MESSAGES[-1]]))
    assert "once" in " ".join(of_transcript(TURN, WANTED, [*MESSAGES[:3], {**MESSAGES[3], "content": "Else."}]))
    assert "failed" in " ".join(of_transcript({**TURN, "status": "failed"}, WANTED, MESSAGES))
    assert "answer" in " ".join(of_transcript({**TURN, "answer": "Else."}, WANTED, MESSAGES))
