"""The activity `tools.check`: checks arguments by the types of their tool, before a person is asked about a call, and
before an edit is recorded."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from pydantic import JsonValue
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import Heartbeats, activity_guard, current_attempt
from perdure.activities.tool_answers import CallAnswer, error_answer
from perdure.activities.tool_execution import need_current_tool
from perdure.activities.tool_failures import FailureReport
from perdure.activities.toolbox.mcp.tools import McpTool, ServerToolChanged
from perdure.contracts.activities import Checked, CheckRequest, EditRef
from perdure.contracts.calls import ToolCall, ToolCallRequest, ToolOutcome
from perdure.contracts.errors import UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import TurnAddress
from perdure.sdk.json_reading import ArgumentsRefused
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from perdure.sdk.threads import NoThread
from perdure.sdk.tools import Tool
from perdure.store.approvals import tool_previews
from perdure.store.calls import tool_calls
from perdure.store.database import Connection
from perdure.store.events.event_log import write

_REFUSED = "the tool refuses the value"
_UNCHECKED = "the arguments could not be checked, because no worker finished it; the tool was not called"
_SLOW, _NO_THREAD = "tool_check_slow", "tool_check_unavailable"
_MAX_FIELD_CHARACTERS = 200
SERVER_CHECK_SECONDS = 10.0
"""The time limit of a question to an MCP server whether it lists a tool, as long as the API waits for a check."""
MAX_CHECKS = 6
"""The attempts that may begin to check the calls of a round. If none of them finished, the calls are refused: a
validator that keeps Python's lock ends the worker of every attempt."""
MAX_SLOW_CHECKS = 3
"""The attempts in which a check may take too long, for which a busy worker can be the cause. Then the call is refused.
"""
PARALLEL_CHECKS = 4
"""The calls of rounds that a worker checks at a time. Validators share Python's lock, and each has only seconds. From a
round's second attempt on, each of its calls is checked alone."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A planned call with its tool, or a call that was refused before."""

    row: tool_calls.PlannedCallRow
    tool: Tool | None
    """The tool in the call's version; None if no worker can have it. The approval of such a call is outdated."""

    @property
    def needs_check(self) -> bool:
        """True unless the call is settled, or its tool is gone."""
        return self.tool is not None and self.row.outcome is None


async def _refusal(tool: Tool, args: Mapping[str, JsonValue]) -> ArgumentsRefused | None:
    """Returns what the tool's types refuse of the arguments.

    Raises: UpstreamUnavailable if this worker has no thread for it; `tool_check_slow` if it took too long.
    """
    try:
        await tool.bind(args)
    except ArgumentsRefused as refused:
        return refused
    except NoThread as error:
        raise UpstreamUnavailable(_NO_THREAD, error.message) from None
    except ToolUnavailable as unavailable:
        _log.warning("tool_check_failed", tool=tool.card.name, problem=unavailable.message)
        raise UpstreamUnavailable(_SLOW, unavailable.message) from None
    return None


async def _server_check(tool: McpTool) -> Checked:
    """Returns whether the server lists the tool in the version of its card.

    Raises: UpstreamUnavailable if the server cannot be asked now.
    """
    try:
        await tool.check_listed(SERVER_CHECK_SECONDS)
    except ServerToolChanged as changed:
        return Checked(fault=changed.message, server_changed=True)
    except (ToolRefused, ToolUnavailable) as error:
        raise UpstreamUnavailable("tool_check_unavailable", error.message) from None
    return Checked()


def _answer(request: CheckRequest, call: CheckedCall, problem: str) -> CallAnswer:
    ask = ToolCallRequest(call_id=call.row.call_id, tool=call.row.tool)
    refused_call = ToolCall(address=request.address, agent_id=call.row.agent_id, agent_version="", ask=ask)
    return error_answer(refused_call, problem)


class _Attempt:
    """One attempt to check the calls of a round. Its heartbeat has the number of attempts that began, and of those in
    which a check was too slow, for the next one."""

    def __init__(self, heartbeats: Heartbeats, turn_id: str) -> None:
        self.turn_id = turn_id
        recorded = heartbeats.recorded
        numbers: list[int] = recorded if isinstance(recorded, list) else [0, 0]
        self.begun, self.slow = numbers
        self._heartbeats = heartbeats
        self._beginning = asyncio.Lock()
        self._has_begun = False

    @property
    def is_last_slow(self) -> bool:
        """True if a call that is too slow in this attempt is refused."""
        return self.slow + 1 >= MAX_SLOW_CHECKS

    async def begin(self) -> None:
        """Counts this attempt, once, before its first check starts. Until then it may only have waited for others."""
        async with self._beginning:
            if not self._has_begun:
                await self._heartbeats.record([self.begun + 1, self.slow])
                self._has_begun = True

    async def fail(self, code: str) -> None:
        """Counts a slow attempt. One that had no thread for a check is not counted."""
        if code == _SLOW:
            await self._heartbeats.record([self.begun + 1, self.slow + 1])
        elif code == _NO_THREAD:
            await self._heartbeats.record([self.begun, self.slow])


class ToolCheckActivities:
    """The checks of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._few = asyncio.Semaphore(PARALLEL_CHECKS)
        self._taking = asyncio.Lock()

    @activity.defn(name="tools.check")
    async def check(self, request: CheckRequest) -> Checked:
        """Checks calls of a round, or an edit. Refused calls are settled as failed.

        Effects: one transaction, and the author's validators. Retry: safe, a refused call keeps its answer.
        """
        async with activity_guard() as heartbeats:
            if request.edit is not None:
                return await self._check_edit(request.address, request.edit)
            checked = await self._check_calls(request, heartbeats)
        self._deps.live.wake(request.address.conversation_id)
        return checked

    async def _check_edit(self, address: TurnAddress, edit: EditRef) -> Checked:
        async with self._deps.db.transaction(address.tenant_id) as tx:
            proposed = await tool_previews.read_proposed_edit(tx, edit.approval_id, edit.key)
            if proposed is None:
                raise UpstreamRejected("edit_not_here", "the edit was checked already, or its request is decided")
            server_tool = await self._find_server_tool(tx, proposed)
            tool = await self._find_tool(tx, proposed, is_limited=False) if server_tool is None else None
        if server_tool is not None:
            return await _server_check(server_tool)
        refused = await _refusal(tool, proposed.args) if tool is not None else None
        if refused is None:
            return Checked()
        # The reason may quote a value, so it stays in Postgres.
        async with self._deps.db.transaction(address.tenant_id) as tx:
            await tool_previews.refuse_proposed_edit(tx, edit.approval_id, edit.key, refused.problem)
        return Checked(fault=_REFUSED, field=refused.field[:_MAX_FIELD_CHARACTERS])

    async def _check_calls(self, request: CheckRequest, heartbeats: Heartbeats) -> Checked:
        calls = await self._planned_calls(request)
        refused = await self._refuse(request, [call for call in calls if call.needs_check], heartbeats)
        known = [ToolOutcome.model_validate(call.row.outcome) for call in calls if call.row.outcome is not None]
        if refused or request.events:
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                settled = await tool_calls.fail_planned(
                    tx, request.address.turn_id, {call_id: answer.row[1] for call_id, answer in refused.items()}
                )
                answers = [answer for call_id, answer in refused.items() if call_id in settled]
                events = [event for answer in answers for event in answer.events]
                await write(tx, request.address, events, [answer.message for answer in answers], pending=request.events)
            known += [answer.outcome for answer in answers]
        return Checked(answers=tuple(outcome.message for outcome in known if outcome.message is not None))

    async def _planned_calls(self, request: CheckRequest) -> list[CheckedCall]:
        """Returns the calls with their tools. While one waits for a worker with its tool, the turn shows it.

        Raises: UpstreamUnavailable `tool_not_here`.
        """
        calls: list[CheckedCall] = []
        elsewhere: dict[str, UpstreamUnavailable] = {}
        async with self._deps.db.transaction(request.address.tenant_id) as tx:
            for row in await tool_calls.read_planned(tx, request.address.turn_id, request.calls):
                try:
                    calls.append(CheckedCall(row, await self._find_tool(tx, row, is_limited=True)))
                except UpstreamUnavailable as error:
                    elsewhere[row.call_id] = error
        if elsewhere or current_attempt()[1] > 1:
            async with self._deps.db.transaction(request.address.tenant_id, request.address.turn_id) as tx:
                await tool_calls.end_wait(tx, request.address.turn_id, [call.row.call_id for call in calls])
                await tool_calls.await_worker(tx, request.address.turn_id, elsewhere)
        if elsewhere:
            raise next(iter(elsewhere.values()))
        return calls

    async def _refuse(
        self, request: CheckRequest, calls: Sequence[CheckedCall], heartbeats: Heartbeats
    ) -> dict[str, CallAnswer]:
        """Returns the answers for those planned calls whose arguments are refused, by call id."""
        attempt = _Attempt(heartbeats, request.address.turn_id)
        problems = [_UNCHECKED] * len(calls)
        if attempt.begun < MAX_CHECKS:
            try:
                problems = await self._problems(calls, attempt)
            except UpstreamUnavailable as error:
                await attempt.fail(error.code)
                raise
        return {
            call.row.call_id: _answer(request, call, problem)
            for call, problem in zip(calls, problems, strict=True)
            if problem
        }

    async def _problems(self, calls: Sequence[CheckedCall], attempt: _Attempt) -> list[str]:
        """Returns for each call why it is refused; empty if it is not.

        Raises: UpstreamUnavailable, when no other check of these calls runs any more.
        """
        if attempt.begun:  # a check that was too slow among others may be in time alone
            return [await self._problem(call, attempt, slots=PARALLEL_CHECKS) for call in calls]
        checks = (self._problem(call, attempt, slots=1) for call in calls)
        problems = await asyncio.gather(*checks, return_exceptions=True)
        errors = [problem for problem in problems if isinstance(problem, BaseException)]
        if errors:  # a check that was too slow counts, even if another had no thread
            raise min(errors, key=lambda error: isinstance(error, UpstreamUnavailable) and error.code == _NO_THREAD)
        return [str(problem) for problem in problems]

    async def _problem(self, call: CheckedCall, attempt: _Attempt, *, slots: int) -> str:
        try:
            async with self._take(slots):
                await attempt.begin()
                refused = await _refusal(call.tool, call.row.args) if call.tool is not None else None
                if call.tool is not None and refused is not None and refused.crash is not None:
                    where = (call.tool.card, attempt.turn_id, call.row.call_id)
                    FailureReport.of(self._deps, call.tool, *where).log("tool_check_raised", refused.crash)
        except UpstreamUnavailable as error:
            if error.code != _SLOW or not attempt.is_last_slow:
                raise
            return f"the arguments could not be checked: {error.message}"
        return f"the arguments are invalid: {refused.message}" if refused is not None else ""

    @asynccontextmanager
    async def _take(self, slots: int) -> AsyncIterator[None]:
        """Waits for so many of the worker's slots, and keeps them during the block."""
        async with AsyncExitStack() as taken:
            async with self._taking:  # or two that want all slots could each wait for the other's
                for _ in range(slots):
                    await taken.enter_async_context(self._few)
            yield

    async def _find_server_tool(self, tx: Connection, proposed: tool_previews.ProposedEdit) -> McpTool | None:
        """Returns the tool of an MCP server, under the published card; None for any other tool or version."""
        agent = await self._deps.agent_cache.read_published(tx, proposed.agent_id)
        card = agent.card(proposed.tool) if agent is not None else None
        if card is None or not card.is_version(proposed.tool_version):
            return None
        tool = self._deps.toolbox.find(proposed.agent_id, proposed.tool, card)
        return tool if isinstance(tool, McpTool) else None

    async def _find_tool(
        self, tx: Connection, call: tool_calls.PlannedCallRow | tool_previews.ProposedEdit, *, is_limited: bool
    ) -> Tool | None:
        """Returns the tool in the call's version; None if no worker can have it. With `is_limited`, it is also None if
        this worker has another version and the check has waited for its time: `tools.run` compares it again.

        Raises: UpstreamUnavailable `tool_not_here` if another worker may have it.
        """
        tool = self._deps.toolbox.find(call.agent_id, call.tool)
        if isinstance(tool, Tool) and tool.card.is_version(call.tool_version):
            return tool
        waited = datetime.now(UTC) - activity.info().scheduled_time
        if is_limited and isinstance(tool, Tool) and waited.total_seconds() >= self._deps.version_wait_seconds:
            return None
        await need_current_tool(self._deps, tx, call.agent_id, call.tool, call.tool_version)
        return None
