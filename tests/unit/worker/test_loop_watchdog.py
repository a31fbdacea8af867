"""perdure/worker/loop_watchdog.py: the tool that blocks the event loop is named."""

import asyncio
import time

from structlog.testing import capture_logs

from perdure import tool
from perdure.worker.loop_watchdog import LoopWatchdog
from tests.eventually import until
from tests.unit.apps.tool_contexts import context


@tool(effect="read")
async def sleepy(seconds: float) -> None:
    """Block the loop, instead of awaiting."""
    time.sleep(seconds)  # noqa: ASYNC251


@tool(effect="read")
async def patient(seconds: float) -> None:
    """Await."""
    await asyncio.sleep(seconds)


async def test_a_tool_that_blocks_the_loop_is_named_with_the_time() -> None:
    watchdog = LoopWatchdog([sleepy, patient], blocked_seconds=0.5)
    with capture_logs() as logs:
        watchdog.start()
        await patient.run({"seconds": 0.8}, context(patient.card))
        assert logs == []
        await sleepy.run({"seconds": 1.5}, context(sleepy.card))
        await until(lambda: any(each["event"] == "event_loop_blocked" for each in logs))
        watchdog.stop()
    assert {each["tool"] for each in logs} == {"sleepy"}
    assert [each["event"] for each in logs] == ["event_loop_is_blocked", "event_loop_is_blocked", "event_loop_blocked"]
    assert 0.5 <= logs[0]["seconds"] < logs[1]["seconds"] < logs[2]["seconds"] < 10
