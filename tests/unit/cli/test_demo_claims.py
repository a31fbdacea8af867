"""The demo's claims fail where what they claim is not so."""

from perdure.cli.demo.stories import attempts, equal, one_transcript, paid_once
from perdure.client import Event, Message

START, COMPLETE = "generation.start", "generation.complete"


def log(*kinds_and_calls: tuple[str, str]) -> list[Event]:
    return [Event(kind, {"call_id": call_id}, str(place)) for place, (kind, call_id) in enumerate(kinds_and_calls)]


def test_a_call_asked_twice_and_settled_once_was_paid_once() -> None:
    events = log((START, "m1"), (START, "m1"), (COMPLETE, "m1"), (START, "m2"), (COMPLETE, "m2"))
    assert paid_once("its", events).held
    assert attempts(events, START) == {"m1": 2, "m2": 1}


def test_a_call_asked_again_after_it_was_settled_was_paid_twice() -> None:
    assert not paid_once("its", log((START, "m1"), (COMPLETE, "m1"), (START, "m1"))).held


def test_two_settles_of_one_call_or_none_at_all_do_not_hold() -> None:
    assert not paid_once("its", log((START, "m1"), (COMPLETE, "m1"), (COMPLETE, "m1"))).held
    assert not paid_once("its", log((START, "m1"))).held
    assert not paid_once("its", []).held


def test_a_doubled_message_or_other_words_in_the_readers_hands_do_not_hold() -> None:
    said = [Message(id="1", role="user", content="q"), Message(id="2", role="assistant", content="a")]
    assert one_transcript(said, {"m1": "a", "m0": ""}, ("user", "assistant")).held
    assert not one_transcript([*said, said[1]], {"m1": "a"}, ("user", "assistant")).held
    assert not one_transcript(said, {"m1": "aa"}, ("user", "assistant")).held


def test_a_claim_of_equality_holds_only_for_equal_values() -> None:
    assert equal("refunds", 1, 1, "ledger").held and not equal("refunds", 2, 1, "ledger").held
