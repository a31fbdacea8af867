"""A turn's story: every call one segment, in a state that its events led to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.turns import ENDED, KINDS, STATES, Told, segments_of


def told(kind: str, call_id: str | None = None, **data: JsonValue) -> Told:
    """An event."""
    return Told(kind, call_id, data)


PENDING = told("tools.pending", calls=[{"call_id": "t1.0", "tool": "pay", "requires_approval": True}])


@pytest.mark.parametrize(
    ("kinds", "states"),
    [
        ([], "pending"),
        (["tool.awaiting_approval"], "awaiting_approval"),
        (["tool.awaiting_approval", "tool.approved"], "approved"),
        (["tool.awaiting_approval", "tool.approved", "tool.executing"], "executing"),
        (["tool.executing", "tool.result"], "completed"),
        (["tool.executing", "tool.error"], "error"),
        (["tool.executing", "tool.error", "tool.result"], "completed"),  # a person settled what was unknown
        (["tool.awaiting_approval", "tool.denied"], "denied"),
        (["tool.awaiting_approval", "tool.denied", "tool.executing"], "denied"),
    ],
)
def test_a_call_is_in_the_state_that_its_events_led_to(kinds: list[str], states: str) -> None:
    (segment,) = segments_of([PENDING, *(told(kind, "t1.0", tool="pay") for kind in kinds)])
    assert (segment.kind, segment.call_id, segment.tool, segment.state) == ("tool", "t1.0", "pay", states)


def test_the_story_is_told_in_order_with_what_is_known_of_each_part() -> None:
    story = segments_of(
        [
            told("thinking.complete", "m1", duration=1.5, characters=3, text="Hm."),
            told("generation.complete", "m1", characters=5, message_id="a", partial=False),
            PENDING,
            told("tool.awaiting_approval", "t1.0", tool="pay", approval_id="x"),
            told("tool.result", "t1.0", tool="pay", message_id="b"),
            told("tool.error", "t1.1", tool="nope", message_id="c"),  # settled as it was planned
            told("generation.complete", "m2", characters=0, message_id=None),
            told("clarification.requested", request_id="q", question="Which?"),
            told("message.joined", message_id="e", heard=False),
            told("message.joined", "m3", message_ids=["e", "f"], heard=True),
            told("generation.complete", "m3", characters=4, message_id="d", partial=True),
        ]
    )
    assert [(each.kind, each.call_id, each.state, each.message_id) for each in story] == [
        ("thinking", "m1", "completed", ""),
        ("text", "m1", "completed", "a"),
        ("tool", "t1.0", "completed", "b"),
        ("tool", "t1.1", "error", "c"),
        ("question", "q", "pending", ""),
        ("message", "m3", "completed", "e"),
        ("message", "m3", "completed", "f"),
        ("text", "m3", "partial", "d"),
    ]
    assert story[0].facts == {"duration": 1.5, "characters": 3, "text": "Hm."} and story[2].facts == {
        "approval_id": "x"
    }


events = st.builds(
    told,
    st.sampled_from([*KINDS, "node_end", "token.usage"]),
    st.sampled_from(["t1.0", "t1.1", "t2.0", None]),
    tool=st.sampled_from(["pay", "look"]),
)


@given(st.lists(events, max_size=30))
def test_any_events_make_a_story_with_one_segment_a_call_and_no_end_undone(given_events: list[Told]) -> None:
    story = segments_of(given_events)
    calls = [segment.call_id for segment in story if segment.kind == "tool"]
    assert len(calls) == len(set(calls))
    for place in range(len(given_events)):
        for earlier in segments_of(given_events[:place]):
            if earlier.kind == "tool" and earlier.state in ENDED:
                (now,) = (each for each in story if each.kind == "tool" and each.call_id == earlier.call_id)
                assert now.state == earlier.state
    assert {segment.state for segment in story if segment.kind == "tool"} <= {"pending", *STATES.values()}
