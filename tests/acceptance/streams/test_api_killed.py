"""The API is killed again and again under live streams: nobody misses a token or an event, and none comes twice."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from tests.acceptance.streams.conftest import SLOW, Speaking
from tests.acceptance.streams.following import Followed, answers, begin_all, follow
from tests.acceptance.streams.speakers import more_model_workers, no_model_worker, words
from tests.scale import PATIENCE_SECONDS, Clocked, sized

pytestmark = pytest.mark.soak

STREAMS = sized(300, 30)
KILLS = sized(5, 2)
WORDS = sized(165, 40)
"""At the slow agent's pace, 110 s and 27 s: a model call has 120 s."""
MORE_WORKERS = sized(2, 0)
BETWEEN_SECONDS = sized(4, 1)
LIVE_SECONDS = 90.0
LEAST_LIVE = sized(STREAMS * 9 // 10, 1)
"""Streams that are live at each kill: on a busy machine the sample's may have ended before the last."""


async def _all_live(followed: list[Followed]) -> None:
    """Until every reader has heard something."""
    deadline = time.monotonic() + LIVE_SECONDS
    while missing := sum(not each.words for each in followed):
        assert time.monotonic() < deadline, f"{missing} streams say nothing"
        await asyncio.sleep(0.2)


async def _killing(speakers: Speaking, followed: list[Followed]) -> list[int]:
    """SIGKILL the API, so often; how many streams were live at each kill."""
    live = []
    for _ in range(KILLS):
        live.append(sum(bool(each.words) and not each.settled for each in followed))
        await asyncio.to_thread(speakers.stack.wait_restarted, speakers.stack.kill("api"))
        await asyncio.sleep(BETWEEN_SECONDS)
    return live


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_readers_of_an_api_that_is_killed_miss_nothing_and_get_nothing_twice(speakers: Speaking) -> None:
    texts = [words(WORDS, f"s{number}") for number in range(STREAMS)]
    with ExitStack() as held, Clocked() as clocked:
        with no_model_worker(speakers.stack):
            ids = await begin_all(speakers.client, SLOW, texts)
        followed = [Followed(turn_id) for turn_id in ids]
        async with asyncio.TaskGroup() as readers:
            for each in followed:
                readers.create_task(follow(speakers.client, each.turn_id, each))
            await asyncio.to_thread(held.enter_context, more_model_workers(speakers.stack, MORE_WORKERS))
            await _all_live(followed)
            live = await _killing(speakers, followed)
        stored = await answers(speakers.client, ids)
    missing = sum(len(text.split()) - len(set(each.words)) for each, text in zip(followed, texts, strict=True))
    repeated = sum(len(each.words) - len(set(each.words)) for each in followed)
    print(f"\nAPI killed {KILLS} times under {live} live streams of {STREAMS}: {missing} tokens missing,")
    print(f"{repeated} repeated, {sum(each.resets for each in followed)} resets; {clocked}")
    assert min(live) >= LEAST_LIVE, "the kills came while streams were live"
    assert [stored[turn_id] for turn_id in ids] == [("completed", text) for text in texts]
    faults = [fault for each in followed for fault in each.faults(stored[each.turn_id][1])]
    assert not faults, "\n".join(faults[:20])
    assert (missing, repeated, sum(each.resets for each in followed)) == (0, 0, 0)
