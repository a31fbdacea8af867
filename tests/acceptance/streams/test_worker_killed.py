"""The model's worker is killed again and again in the middle of answers: each reader ends with the stored one."""

import asyncio
import time
from collections import Counter

import pytest

from tests.acceptance.streams.conftest import BRISK, Speaking
from tests.acceptance.streams.following import Followed, answers, begin_all, follow
from tests.acceptance.streams.speakers import words
from tests.scale import PATIENCE_SECONDS, Clocked, sized

pytestmark = pytest.mark.soak

KILLS = sized(50, 2)
TURNS = 4
"""New ones for each kill."""
WORDS = 60
"""At the brisk agent's pace, 3 s."""
MID_STREAM_WORDS = 5
SPEAKING_SECONDS = 60.0


async def _mid_stream(followed: list[Followed]) -> None:
    """Until each of these readers is in the middle of its text."""
    deadline = time.monotonic() + SPEAKING_SECONDS
    while not all(len(each.words) >= MID_STREAM_WORDS for each in followed):
        assert time.monotonic() < deadline, [len(each.words) for each in followed]
        await asyncio.sleep(0.02)


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_a_reader_ends_with_the_stored_answer_however_often_the_models_worker_dies(speakers: Speaking) -> None:
    followed: list[Followed] = []
    broken_off: list[int] = []
    with Clocked() as clocked:
        for kill in range(KILLS):
            texts = [words(WORDS, f"k{kill}n{number}") for number in range(TURNS)]
            fresh = [Followed(turn_id) for turn_id in await begin_all(speakers.client, BRISK, texts)]
            followed += fresh
            async with asyncio.TaskGroup() as readers:
                for each in fresh:
                    readers.create_task(follow(speakers.client, each.turn_id, each))
                await _mid_stream(fresh)
                killed = speakers.stack.kill("worker-llm")
                broken_off.append(sum(not each.settled for each in fresh))
                await asyncio.to_thread(speakers.stack.wait_restarted, killed)
        stored = await answers(speakers.client, [each.turn_id for each in followed])
    resets = Counter(each.resets for each in followed)
    print(f"\nthe model's worker killed {KILLS} times, in the middle of {sum(broken_off)} new answers of ")
    print(f"{len(followed)}; resets by turn {dict(sorted(resets.items()))}; {clocked}")
    assert min(broken_off) >= 1, "each kill came in the middle of an answer"
    faults = [fault for each in followed for fault in each.faults(stored[each.turn_id][1])]
    assert not faults, "\n".join(faults[:20])
    assert {status for status, _ in stored.values()} == {"completed"}
    assert sum(each.resets for each in followed) >= sum(broken_off), "what was broken off was taken back"
