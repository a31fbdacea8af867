"""Five tools of 100 ms in two phases, and a second turn that skips all of them; what the stream says of it."""

from statistics import median

import httpx
import pytest

from tests.acceptance.assembly.conftest import Talk, node_milliseconds
from tests.scale import FULL, sized

pytestmark = pytest.mark.soak

ROUNDS = sized(15, 5)
IDEAL_MILLISECONDS = 200
"""The longest tool of each phase."""
MOST = 1.35 if FULL else 2.4
"""Of the ideal. The suite shares its machine: there it only tells two phases from five calls in a row."""


@pytest.mark.timed
def test_five_tools_take_little_more_than_two_and_skipped_ones_next_to_nothing(client: httpx.Client) -> None:
    first, second = [], []
    talk = Talk(client)
    talk.events(talk.begin("warm"))
    for number in range(ROUNDS):
        talk = Talk(client)
        events = talk.events(talk.begin(f"hello {number}"))
        first.append(node_milliseconds(events, "context_assembly"))
        ran = [data["ran"] for kind, data in events if kind == "stage" and data["stage"] == "context_assembly"]
        assert ran == [["first", "second", "third"], ["fourth", "fifth"]]
        events = talk.events(talk.begin("Thanks"))
        second.append(node_milliseconds(events, "context_assembly"))
        stages = [data for kind, data in events if kind == "stage" and data["stage"] == "context_assembly"]
        assert [[each["tool"] for each in data["skipped"]] for data in stages] == ran
        assert [data["ran"] for data in stages] == [[], []]
    told = f"first p50 {median(first):.0f} ms (min {min(first):.0f}), second p50 {median(second):.1f} ms"
    print(f"\nassembly of five tools of 100 ms in two phases: {told}")
    assert median(first) < MOST * IDEAL_MILLISECONDS, told
    assert median(second) < 0.25 * median(first), told
