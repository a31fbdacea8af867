"""Valkey is wiped and killed while turns speak: none fails, and each reader ends with the stored answer."""

import asyncio
import time

import pytest

from tests.acceptance.streams.conftest import SLOW, Speaking
from tests.acceptance.streams.following import Followed, answers, begin_all, follow
from tests.acceptance.streams.speakers import words
from tests.scale import PATIENCE_SECONDS, Clocked, sized

pytestmark = pytest.mark.soak

TURNS = sized(90, 9)
MEANWHILE = sized(10, 3)
"""Turns that begin while it is away."""
AWAY_SECONDS = sized(60, 6)
WORDS = sized(150, 30)
"""At the slow agent's pace, 100 s and 20 s: a model call has 120 s."""
SHORT = 20
LIVE_SECONDS = 90.0


async def _all_live(followed: list[Followed]) -> None:
    deadline = time.monotonic() + LIVE_SECONDS
    while not all(each.words for each in followed):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_no_turn_fails_where_valkey_is_wiped_and_away(speakers: Speaking) -> None:
    texts = [words(WORDS, f"v{number}") for number in range(TURNS)]
    short = [words(SHORT, f"w{number}") for number in range(MEANWHILE)]
    with Clocked() as clocked:
        ids = await begin_all(speakers.client, SLOW, texts)
        followed = [Followed(turn_id) for turn_id in ids]
        async with asyncio.TaskGroup() as readers:
            for each in followed:
                readers.create_task(follow(speakers.client, each.turn_id, each))
            await _all_live(followed)
            await asyncio.to_thread(speakers.valkey.wipe)
            live = sum(not each.settled for each in followed)
            speakers.valkey.kill()
            began = time.monotonic()
            try:
                more = await begin_all(speakers.client, SLOW, short)
                for turn_id in more:
                    followed.append(Followed(turn_id))
                    readers.create_task(follow(speakers.client, turn_id, followed[-1]))
                await asyncio.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
                still = sum(not each.settled for each in followed)
            finally:
                await asyncio.to_thread(speakers.valkey.start)
        stored = await answers(speakers.client, [*ids, *more])
    failed = [turn_id for turn_id, (status, _) in stored.items() if status != "completed"]
    print(f"\nValkey wiped, and away for {AWAY_SECONDS} s, under {live} turns that spoke, {still} of them still when")
    print(f"it was back, and {MEANWHILE} that began meanwhile: {len(failed)} failed; {clocked}")
    assert live == TURNS and not failed
    assert [stored[turn_id][1] for turn_id in [*ids, *more]] == [*texts, *short]
    faults = [fault for each in followed for fault in each.faults(stored[each.turn_id][1])]
    assert not faults, "\n".join(faults[:20])
