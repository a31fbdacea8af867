"""Runs a plain function of an author's in a thread, so that it does not block the calls of its worker."""

import asyncio
import contextvars
import ctypes
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread

import structlog

from perdure.core.calls.failures import replaced
from perdure.sdk.outcomes import ToolUnavailable

MAX_LEFT_THREADS = 100
"""The threads of a process that may still run after their calls have ended. With more, no new one starts."""
_left: set[Thread] = set()
_log = structlog.get_logger(__name__)


class NoThread(ToolUnavailable):
    """This worker cannot start another thread; another worker may."""


async def run_in_thread(
    function: Callable[..., object], arguments: Mapping[str, object], name: str, *, has_effects: bool = True
) -> object:
    """Calls the function in its own thread, named for the tool `name`, and returns its result. If the result is
    awaitable, such as that of a plain decorator around an `async def`, it is awaited in the loop.

    If the caller is cancelled, the function continues and its result is ignored, because it can be in the middle of an
    effect. A function without effects ends at its next step in Python. The thread does not keep the process from
    ending.

    Raises: whatever the function raises, with StopIteration and what is not an Exception `replaced`; ToolUnavailable if
    too many threads of earlier calls still run.
    """
    _refuse_many_left(name)
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    thread = _start(function, arguments, name, ended)
    try:
        result = await ended
    except asyncio.CancelledError:
        _left.add(thread)
        _log.warning("tool_thread_left", tool=name, left=len(_left))
        if not has_effects:
            _end(thread)
        raise
    return await result if inspect.isawaitable(result) else result


def _start(
    function: Callable[..., object], arguments: Mapping[str, object], name: str, ended: asyncio.Future[object]
) -> Thread:
    """Starts the function in a new thread, whose end settles `ended`. Raises: NoThread."""
    loop, context = ended.get_loop(), contextvars.copy_context()

    def settle(result: object, error: Exception | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    def work() -> None:
        result, error = _call(context, function, arguments)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    thread = Thread(target=work, name=f"tool {name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the process cannot have another thread
        raise NoThread(f"{name} was not started: {error}") from None
    return thread


def _end(thread: Thread) -> None:
    """Raises SystemExit in the thread, at its next step in Python. A call into C ends first."""
    if thread.is_alive():  # else another thread may have its number
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))


def _refuse_many_left(name: str) -> None:
    """Raises: ToolUnavailable."""
    _left.difference_update([thread for thread in _left if not thread.is_alive()])
    if len(_left) >= MAX_LEFT_THREADS:
        raise NoThread(
            f"{name} was not started, because {len(_left)} threads of calls that ran out of time still run on this "
            "worker; give the tools' requests time limits, and restart the worker"
        )


def _call(
    context: contextvars.Context, function: Callable[..., object], arguments: Mapping[str, object]
) -> tuple[object, Exception | None]:
    """Returns the function's result, or what it raised."""
    try:
        return context.run(function, **arguments), None
    except BaseException as error:  # also SystemExit, or the panic of an extension: the call must still end
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        return None, replaced(error)
