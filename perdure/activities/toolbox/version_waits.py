"""Waits of a tool call for a worker that has its tool in the version of the call, and the limit of its other attempts.

While the published agent has the version, the call waits without a limit, because a worker will have it. After another
version was published, it waits for a limited time, counted from the first attempt that saw the difference.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from temporalio.exceptions import ApplicationError

from perdure.activities.dependencies import Deps
from perdure.activities.guard import WAITS, Heartbeats, current_attempt, to_temporal
from perdure.activities.providers.errors import store_error
from perdure.contracts.calls import ToolCall
from perdure.contracts.errors import PerdureError, UpstreamUnavailable
from perdure.core.calls.retries import ATTEMPTS
from perdure.store.calls import tool_calls
from perdure.store.database import Connection

TOOL_NOT_HERE: Final = "tool_not_here"
MIN_RETRY_SECONDS, RETRIES = 2.0, 20
"""A call whose version is no longer published is tried this often while it waits, at most every two seconds."""


@dataclass(slots=True)
class VersionWait:
    """The waits of one activity of a call. Its heartbeat has them for the next attempt."""

    attempts: int = 0
    """The earlier attempts that only waited."""
    changed_at: datetime | None = None
    """The time of the first attempt that saw that the version of the call is no longer the current one, by the
    database's clock."""

    @classmethod
    def of(cls, recorded: object) -> "VersionWait":
        """Returns the waits that an earlier attempt recorded."""
        if not isinstance(recorded, list):
            return cls()
        attempts, changed_at = recorded
        return cls(attempts, datetime.fromisoformat(changed_at) if changed_at else None)

    def after(self, *, waited: bool) -> list[int | str]:
        """Returns the value for the heartbeat of an attempt that ends with an error. If it did not wait, its worker may
        have had the right version, so that the time starts again."""
        changed_at = self.changed_at.isoformat() if waited and self.changed_at else ""
        return [self.attempts + waited, changed_at]


@asynccontextmanager
async def limited_attempts(deps: Deps, call: ToolCall, heartbeats: Heartbeats) -> AsyncIterator[VersionWait]:
    """Limits the attempts of `tools.run` that do more than wait. Temporal's own limit also counts those that wait, so
    the activity has none there.

    Raises: ApplicationError that is not retried, in the last attempt and in those after it.
    """
    wait = VersionWait.of(heartbeats.recorded)
    earlier = current_attempt()[1] - 1 - wait.attempts
    if earlier >= ATTEMPTS:
        message = f"{earlier} attempts of the call did not end"
        raise ApplicationError(message, type="activity_timeout", non_retryable=True)
    try:
        yield wait
    except Exception as error:
        code = error.code if isinstance(error, UpstreamUnavailable) else ""
        waited = code in WAITS
        if waited or wait.changed_at is not None:
            await heartbeats.record(wait.after(waited=waited))
        if code == TOOL_NOT_HERE:
            await _show_wait(deps, call, wait)
        if waited or earlier + 1 < ATTEMPTS:
            raise
        raise _not_retried(error) from None


async def _show_wait(deps: Deps, call: ToolCall, wait: VersionWait) -> None:
    if not wait.attempts:
        about = {"tool": call.ask.tool, "turn_id": call.address.turn_id, "call_id": call.ask.call_id}
        _log.warning("tool_version_awaited", **about, is_published=wait.changed_at is None)
    async with deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
        await tool_calls.await_worker(tx, call)


def _not_retried(error: Exception) -> ApplicationError:
    if not isinstance(error, ApplicationError):
        error = to_temporal(error if isinstance(error, PerdureError) else store_error(error))
    return ApplicationError(error.message, *error.details, type=error.type, non_retryable=True)


async def need_current_tool(deps: Deps, tx: Connection, agent_id: str, name: str, version: str) -> None:
    """Raises if another worker may have the tool in the version that a call needs.

    If the published agent still has that version, this worker is behind or ahead of a deploy, and another attempt may
    reach the right one. Otherwise the tool or its agent has changed permanently, and the call is void.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    agent = await deps.agent_cache.read_published(tx, agent_id)
    published = agent.card(name) if agent is not None else None
    if published is not None and published.is_version(version):
        raise UpstreamUnavailable(TOOL_NOT_HERE, f"this worker does not have {name} in the required version")


async def wait_for_version(
    deps: Deps, tx: Connection, call: ToolCall, locked: tool_calls.LockedCall, wait: VersionWait
) -> None:
    """Returns if no worker will have the tool in the call's version.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    name, changed_at = call.ask.tool, wait.changed_at
    wait.changed_at = None
    await need_current_tool(deps, tx, call.agent_id, name, locked.tool_version)
    wait.changed_at = changed_at
    seconds = seconds_of_wait(deps, locked, wait)
    if seconds is not None:
        message = f"this worker does not have {name} in the required version"
        raise UpstreamUnavailable(TOOL_NOT_HERE, message, retry_after_seconds=seconds)


def seconds_of_wait(deps: Deps, locked: tool_calls.LockedCall, wait: VersionWait) -> float | None:
    """Returns the time until the next attempt of a call whose version is no longer the current one. None if it has
    waited long enough: since the difference was seen, and since the end of its hold."""
    wait.changed_at = since = wait.changed_at or locked.now
    if locked.approval is not None and locked.approval.ready_at is not None:
        since = max(since, locked.approval.ready_at)
    if (locked.now - since).total_seconds() >= deps.version_wait_seconds:
        return None
    return max(MIN_RETRY_SECONDS, deps.version_wait_seconds / RETRIES)


_log = structlog.get_logger(__name__)
