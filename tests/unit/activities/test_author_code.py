"""What the end of an author's code becomes if a cancellation, its time limit or its own exit comes at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import tool
from perdure.activities.author_code import Raised, run_author_code
from perdure.activities.tool_execution import ClaimedCall, _run_within_limit
from perdure.activities.tool_failures import FailureReport
from perdure.contracts.calls import CallState, EffectClass
from perdure.core.calls.ledger import ActionEnd, Attempt, LockedTurn, Reservation
from perdure.sdk.outcomes import ToolRefused
from perdure.store.calls.tool_calls import LockedCall
from perdure.telemetry.hangs import OpenCalls
from tests.unit.apps.tool_contexts import context

Code = Callable[[asyncio.Event], Coroutine[Any, Any, Any]]


async def _returns(ready: asyncio.Event) -> str:
    await asyncio.sleep(0)
    ready.set()
    return "paid"


async def _waits(ready: asyncio.Event) -> None:
    ready.set()
    await asyncio.sleep(60)


def _replaces(error: BaseException) -> Code:
    async def code(ready: asyncio.Event) -> None:
        try:
            await _waits(ready)
        except asyncio.CancelledError:
            raise error from None

    return code


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (_returns, "paid"),
        (_waits, asyncio.CancelledError),
        (_replaces(ValueError("closed")), asyncio.CancelledError),
        (_replaces(SystemExit(3)), asyncio.CancelledError),
        (_replaces(ToolRefused("closed")), ToolRefused),
    ],
)
async def test_a_cancellation_stays_one_unless_the_code_has_an_answer(code: Code, end: Any) -> None:
    ready = asyncio.Event()
    task = asyncio.create_task(run_author_code(code(ready), 60))
    await ready.wait()
    task.cancel()
    ended: Any = (await asyncio.gather(task, return_exceptions=True))[0]
    assert ended == end or type(ended) is end or (isinstance(ended, Raised) and type(ended.answer) is end)


CALLED = asyncio.Event()


@tool(effect="read")
async def rest() -> None:
    """Rest."""
    await _waits(CALLED)


@pytest.mark.filterwarnings("error")
async def test_a_call_that_is_cancelled_before_its_first_step_was_not_sent() -> None:
    row, attempt = Reservation(CallState.RESERVED, None, EffectClass.READ), Attempt("run", 1)
    locked = LockedCall(
        LockedTurn(ended=False, stopped=False), row, rest.card.version, {}, "key", None, None, "user",
        datetime.now(UTC), 0, "1", (), False, [],
    )  # fmt: skip
    report = FailureReport("rest", "turn", "t1.0", None, (), shows_messages=True, can_send=False)
    claimed = ClaimedCall(rest, locked, 1, attempt, 0.0, report, OpenCalls())
    task = asyncio.create_task(_run_within_limit(claimed, context(rest.card)))
    await asyncio.sleep(0)
    task.cancel()
    assert (await task).end is ActionEnd.NOT_SENT and not CALLED.is_set()


@pytest.mark.parametrize(("code", "timed_out"), [(_waits, True), (_replaces(ValueError("closed")), False)])
async def test_the_time_limit_is_no_cancellation(code: Code, timed_out: bool) -> None:
    raised = await run_author_code(code(asyncio.Event()), 0.01)
    assert isinstance(raised, Raised) and raised.timed_out is timed_out


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_an_exit_of_the_code_is_its_mistake(kind: type[BaseException]) -> None:
    async def code() -> None:
        raise kind

    raised = await run_author_code(code(), 60)
    assert isinstance(raised, Raised) and type(raised.error.__cause__) is kind
