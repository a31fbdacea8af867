"""Runs a plain function of an author's in a thread, so that it does not block the calls of its worker."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread


async def run_in_thread(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Calls the function in its own thread and returns its result.

    A thread cannot be stopped: if the caller is cancelled, the function continues and its result is ignored. The thread
    does not keep the process from ending.

    Raises: whatever the function raises; TypeError if it returns an awaitable.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    ended: asyncio.Future[object] = loop.create_future()

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

    Thread(target=work, name=f"tool {function.__name__}", daemon=True).start()
    return await ended


def _call(
    context: contextvars.Context, function: Callable[..., object], arguments: Mapping[str, object]
) -> tuple[object, Exception | None]:
    """Returns the function's result, or what it raised."""
    try:
        result = context.run(function, **arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        return None, RuntimeError(f"the tool raised {type(error).__name__}")
    except Exception as error:
        return None, error
    if not inspect.isawaitable(result):
        return result, None
    if inspect.iscoroutine(result):
        result.close()
    return None, TypeError("the function returned an awaitable; define it with `async def`")
