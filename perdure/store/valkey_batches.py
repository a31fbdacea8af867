"""One connection to Valkey that all tasks of a process share."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

Command = tuple[str | int, ...]


class SharedConnection:
    """Sends the commands of all tasks over one connection.

    Commands that arrive during a round trip share the next one. Measured with uvloop, a script and a publish, against a
    pool of connections: 0.68 of the CPU for one task, 0.33 for 8 tasks, 0.28 for 64.

    A command is never repeated, because one whose response was lost may have been done. A canceled caller does not
    disturb the others. The connection's timeouts apply to each step.
    """

    def __init__(self, connect: Callable[[], AbstractConnection]) -> None:
        self._connect = connect
        self._connection: AbstractConnection | None = None
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    def execute(self, *command: str | int) -> "asyncio.Future[Any]":
        """Returns the future response to a command, in the types of the protocol: str, int, list or None.

        Errors of the response: ResponseError if Valkey rejects the command; RedisError, OSError or TimeoutError if the
        connection is lost.
        """
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, response))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return response

    async def close(self) -> None:
        """Sends the commands that still wait, then closes the connection."""
        if self._sending is not None:
            await asyncio.wait({self._sending})
        if self._connection is not None:
            await self._connection.disconnect()

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._round_trip(batch)
            except BaseException as error:
                unanswered = [*batch, *self._waiting]
                self._waiting = []
                await self._give_up(unanswered, error)
                if not isinstance(error, Exception):
                    raise

    async def _round_trip(self, batch: Sequence[tuple[Command, "asyncio.Future[Any]"]]) -> None:
        connection = self._connection = self._connection or self._connect()
        if connection.is_connected and await _is_unusable(connection):
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await connection.connect()  # type: ignore[no-untyped-call]
        packed = connection.pack_commands([command for command, _ in batch])
        await connection.send_packed_command(packed, check_health=False)
        for _, response in batch:
            try:
                answer = await connection.read_response()
            except ResponseError as error:
                if not response.done():
                    response.set_exception(error)
                continue
            if not response.done():
                response.set_result(answer)

    async def _give_up(self, unanswered: Sequence[tuple[Command, "asyncio.Future[Any]"]], error: BaseException) -> None:
        """Fails these commands. The connection ends, because a late response would be taken for the next one."""
        for _, response in unanswered:
            if response.done():
                continue
            if isinstance(error, Exception):
                response.set_exception(error)
            else:
                response.cancel()
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)


async def _is_unusable(connection: AbstractConnection) -> bool:
    """Returns whether the server has closed the connection, as after its idle timeout, or has sent unexpected data.

    All earlier commands have their responses, so a new connection repeats none.
    """
    try:
        return await connection.can_read()
    except (RedisError, OSError):
        return True
