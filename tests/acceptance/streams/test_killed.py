"""The API, the model's worker and Valkey are killed under live streams: each reader ends with the stored answer."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.acceptance.machine import Others
from tests.acceptance.running import ROOT, RunningStack
from tests.acceptance.streams.conftest import BRISK, SLOW, Readers, Speaking, begin_all, words
from tests.eventually import wait_until
from tests.scale import PATIENCE_SECONDS, sized

pytestmark = [pytest.mark.soak, pytest.mark.timeout(PATIENCE_SECONDS)]

STREAMS = sized(300, 30)
API_KILLS = sized(5, 2)
API_WORDS = sized(165, 40)
"""The slow agent takes 110 s and 27 s: a model call has 120 s."""
LEAST_LIVE = sized(STREAMS * 9 // 10, 1)
"""Streams that are live at each kill: on a busy machine the sample's may have ended before the last."""
WORKER_KILLS = sized(50, 2)
WORKER_WORDS = 60
"""The brisk agent takes 3 s."""
VALKEY_TURNS = sized(90, 9)
MEANWHILE = sized(10, 3)
"""Turns that start while Valkey is unavailable."""
AWAY_SECONDS = sized(60, 6)
VALKEY_WORDS = sized(150, 30)
"""The slow agent takes 100 s and 20 s."""


@contextmanager
def more_model_workers(stack: RunningStack, count: int) -> Iterator[None]:
    """The number of model workers beside the stack's own, which runs at most a hundred calls together."""
    run = stack.read()
    environ = {
        **psutil.Process(stack.process.pid).environ(), "DATABASE_URL": run["postgres"], "REDIS_URL": run["redis"],
        "TEMPORAL_ADDRESS": run["temporal"], "TEMPORAL_CONFIG_FILE": os.devnull, "PERDURE_LOCAL": "1",
    }  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    ready = [stack.home / f"more-{number}.ready" for number in range(count)]
    try:
        for file in ready:
            started.append(
                subprocess.Popen(
                    [sys.executable, "worker.py", "--queues", "llm"],
                    cwd=ROOT,
                    env={**environ, "PERDURE_READY_FILE": str(file)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        wait_until(lambda: all(file.exists() for file in ready), 150.0, "the workers did not come up")
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_with_the_api_killed_readers_miss_nothing_and_get_nothing_twice(speakers: Speaking) -> None:
    client, stack = speakers.client, speakers.stack
    texts = [words(API_WORDS, f"s{number}") for number in range(STREAMS)]
    live = []
    with ExitStack() as held, Others() as clocked:
        with stack.alone():  # model calls wait, so that those of all turns begin at the same time
            stack.kill("worker-llm")
            ids = await begin_all(client, SLOW, texts)
        async with Readers(client) as readers:
            readers.follow(ids)
            await asyncio.to_thread(held.enter_context, more_model_workers(stack, sized(2, 0)))
            await readers.have_heard()
            for _ in range(API_KILLS):
                live.append(readers.mid_stream)
                await asyncio.to_thread(stack.wait_restarted, stack.kill("api"))
                await asyncio.sleep(sized(4, 1))
        faults = await readers.faults(texts)
    followed = readers.followed
    missing = sum(len(text.split()) - len(set(each.words)) for each, text in zip(followed, texts, strict=True))
    repeated = sum(len(each.words) - len(set(each.words)) for each in followed)
    resets = sum(each.resets for each in followed)
    print(f"\nAPI killed {API_KILLS} times under {live} live streams of {STREAMS}: {missing} tokens missing,")
    print(f"{repeated} repeated, {resets} resets; {clocked}")
    assert min(live) >= LEAST_LIVE, "the kills came while streams were live"
    assert not faults, "\n".join(faults[:20])
    assert (missing, repeated, resets) == (0, 0, 0)


async def test_a_reader_of_a_killed_model_worker_ends_with_the_answer(speakers: Speaking) -> None:
    resets: Counter[int] = Counter()
    broken_off: list[int] = []
    faults: list[str] = []
    with Others() as clocked:
        for kill in range(WORKER_KILLS):
            texts = [words(WORKER_WORDS, f"k{kill}n{number}") for number in range(4)]
            async with Readers(speakers.client) as readers:
                readers.follow(await begin_all(speakers.client, BRISK, texts))
                await readers.have_heard(5)
                killed = speakers.stack.kill("worker-llm")
                broken_off.append(readers.mid_stream)
                await asyncio.to_thread(speakers.stack.wait_restarted, killed)
            faults += await readers.faults(texts)
            resets.update(each.resets for each in readers.followed)
    print(f"\nthe model's worker killed {WORKER_KILLS} times, in the middle of {sum(broken_off)} new answers of ")
    print(f"{resets.total()}; resets by turn {dict(sorted(resets.items()))}; {clocked}")
    assert min(broken_off) >= 1, "each kill came in the middle of an answer"
    assert not faults, "\n".join(faults[:20])
    assert sum(resets.elements()) >= sum(broken_off), "what was broken off was taken back"


async def test_with_valkey_lost_no_turn_fails(speakers: Speaking) -> None:
    client, valkey = speakers.client, speakers.valkey
    texts = [words(VALKEY_WORDS, f"v{number}") for number in range(VALKEY_TURNS)]
    short = [words(20, f"w{number}") for number in range(MEANWHILE)]
    with Others() as clocked:
        ids = await begin_all(client, SLOW, texts)
        async with Readers(client) as readers:
            readers.follow(ids)
            await readers.have_heard()
            await asyncio.to_thread(valkey.wipe)
            live = readers.mid_stream
            valkey.kill()
            began = time.monotonic()
            try:
                readers.follow(await begin_all(client, SLOW, short))
                await asyncio.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
                still = readers.mid_stream
            finally:
                await asyncio.to_thread(valkey.start)
        faults = await readers.faults([*texts, *short])
    print(f"\nValkey wiped, and away for {AWAY_SECONDS} s, under {live} open streams, {still} of them still when")
    print(f"it was back, and {MEANWHILE} that began meanwhile: {len(faults)} faults; {clocked}")
    assert live == VALKEY_TURNS
    assert not faults, "\n".join(faults[:20])
