"""The activity `tools.run`: claims, runs and settles one tool call. perdure/core/calls/ledger.py decides; this module
acts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard, stop_asked, this_attempt, uncancelled
from perdure.activities.memory import remembered
from perdure.activities.tool_execution import (
    Answer,
    Held,
    ToolAttempt,
    Undone,
    claimed,
    done_locally,
    error_answer,
    settled_answer,
    tried,
)
from perdure.contracts.calls import CallState, ToolCall, ToolOutcome
from perdure.contracts.errors import PerdureError, UpstreamUnavailable
from perdure.contracts.events import TOOL_ERROR
from perdure.contracts.ids import file_id
from perdure.contracts.turns import TurnAddress
from perdure.core.calls.ledger import ActionEnd, Attempt, SettleAction, after_act, may_have_happened
from perdure.core.calls.retries import TOOL_ERRORS, next_delay
from perdure.core.memory.files import safe_name
from perdure.sdk.context import GivenFile
from perdure.sdk.outcomes import MadeFile
from perdure.sdk.tools import ToolContext, ToolResult
from perdure.store import audit
from perdure.store.calls import tool_calls
from perdure.store.database import Connection, Database
from perdure.store.events.event_log import NewEvent
from perdure.store.memory import files

FRESH_SECONDS = 0.25
"""A call is sent without another check for this long after its claim. Afterwards the ledger is checked again. It is far
less than the time before another attempt can own the call (heartbeat timeout, 5 s). A stop within this time counts as
one that came after the call was sent."""


class ToolActivities:
    """The tool calls of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="tools.run")
    async def run(self, call: ToolCall) -> ToolOutcome:
        """Runs one tool call.

        Effects: those of the tool, by its class; the idempotency key derives from turn and call id. Retry: safe for
        read, local and keyed; an opaque call that may have been sent is never sent again.
        """
        async with activity_guard():
            outcome = await self._run(call)
        await self._deps.live.wake(call.address.conversation_id)
        return outcome

    async def _run(self, call: ToolCall) -> ToolOutcome:
        attempt, began = Attempt(*this_attempt()), uptime_seconds()
        async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
            held = await claimed(self._deps, tx, call, attempt, began)
        if isinstance(held, ToolOutcome):
            return held
        act = self._act_locally if held.changes_our_rows else self._act_outside
        return await act(call, held)

    async def _act_locally(self, call: ToolCall, held: Held) -> ToolOutcome:
        """The effect and the ledger row commit together, or neither does. Only the settle locks the turn."""
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                result = await done_locally(held, self._context(call, held, tx))
                answer = await _kept(tx, call, held, result)
            return answer.outcome
        except Undone as undone:
            return await self._settle(call, held, error_answer(call, undone.message))
        except _Lost:
            raise await self._lost(call) from None

    async def _act_outside(self, call: ToolCall, held: Held) -> ToolOutcome:
        mine = await self._still_owned(call, held)
        made = (
            await tried(held, self._context(call, held, None), self._deps.stops)
            if mine
            else ToolAttempt(ActionEnd.NOT_OWNED)
        )
        decided = after_act(
            held.card.effect,
            made.acted,
            last_attempt=held.locked.errors + 1 >= TOOL_ERRORS or made.stopped or stop_asked(),
            timed_out=made.timed_out,
            hopeless=made.hopeless,
            sent_before=may_have_happened(held.locked.row),
        )
        # What happened is recorded even if a stop arrives meanwhile.
        return await uncancelled(self._record(call, held, decided, made))

    async def _still_owned(self, call: ToolCall, held: Held) -> bool:
        """Checks just before the call is sent that this attempt still owns it, since a stalled attempt may have lost
        it. If the check fails, nothing is sent.

        A claim that is younger than `FRESH_SECONDS` has just made this check, so it is not repeated.
        """
        if uptime_seconds() - held.claimed_at < FRESH_SECONDS:
            return True
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                return await tool_calls.still_owned(tx, call, held.epoch)
        except (OSError, *self._deps.db.outages):
            return False

    async def _record(self, call: ToolCall, held: Held, decided: SettleAction, made: ToolAttempt) -> ToolOutcome:
        if decided in (SettleAction.RETRY, SettleAction.RELEASE):
            record = tool_calls.release if decided is SettleAction.RELEASE else tool_calls.count_error
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await record(tx, call, held.epoch)
            # The tool's message stays here: it may quote its target, and Temporal would store it.
            message = f"the tool {held.card.name} could not be called; it is retried"
            delay = next_delay(made.retry_after_seconds)
            raise ApplicationError(message, type="tool_unavailable", next_retry_delay=delay)
        if decided is SettleAction.OUTCOME_UNKNOWN:
            event = NewEvent(
                TOOL_ERROR,
                {"tool": held.card.name, "code": "outcome_unknown", "effect": held.locked.key, "message": made.message},
                call.ask.call_id,
            )
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await tool_calls.settle(tx, call, held.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
            return ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
        if decided is SettleAction.FAILED:
            return await self._settle(call, held, error_answer(call, made.message, wrapped=held.is_block))
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                answer = await _kept(tx, call, held, made.result)
        except _Lost:
            raise await self._lost(call) from None
        return answer.outcome

    async def _settle(self, call: ToolCall, held: Held, answer: Answer) -> ToolOutcome:
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            mine = await tool_calls.settle(tx, call, held.epoch, *answer.row, list(answer.events))
        if not mine:
            raise _refused()  # after the commit, which counts the lost settle
        return answer.outcome

    async def _lost(self, call: ToolCall) -> PerdureError:
        """Counts a lost settle. The settle's own count was rolled back with the effect and with what should be
        remembered."""
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            await tool_calls.count_lost(tx, call)
        return _refused()

    def _context(self, call: ToolCall, held: Held, tx: Connection | None) -> ToolContext:
        return ToolContext(
            card=held.card,
            tenant_id=call.address.tenant_id,
            turn_id=call.address.turn_id,
            conversation_id=call.address.conversation_id,
            call_id=call.ask.call_id,
            user_id=held.locked.user_id,
            idempotency_key=held.locked.key,
            # The tool compares it with this worker's clock; the reservation's deadline is by the database's clock.
            deadline=datetime.now(UTC) + timedelta(seconds=held.card.timeout_seconds),
            http=self._deps.toolbox.http_for(call.agent_id),
            state=call.ask.state,
            transaction=tx,
            files=ConversationFiles(self._deps.db, call.address),
            memory=self._deps.memory,
            secrets=self._deps.toolbox.secrets_for(held.card),
        )


async def _kept(tx: Connection, call: ToolCall, held: Held, result: ToolResult) -> Answer:
    """Records a call that returned, with what it wants remembered and audited, for every kind of tool. Its state
    updates are part of the outcome, because the graph holds the state.

    Raises: _Lost.
    """
    result, memory_events = await remembered(tx, call, result)
    answer = settled_answer(call, held.card, held.locked.approval, result)
    if not await tool_calls.settle(tx, call, held.epoch, *answer.row, [*answer.events, *memory_events]):
        raise _Lost
    if result.files:
        await keep_files(tx, call, held.locked.user_id, result.files)
    if result.audited is not None:
        body: dict[str, JsonValue] = {**result.audited.data, "call_id": call.ask.call_id}
        kind, turn_id = f"tool.{held.card.name}", call.address.turn_id
        await audit.record(tx, kind, result.audited.subject, body, actor=held.locked.user_id, turn_id=turn_id)
    return answer


class _Lost(Exception):
    """The settle of a call that returned was rejected. The exception leaves the transaction, which is rolled back."""


def _refused() -> PerdureError:
    """Returns the error of a rejected settle: a later attempt owns the call, or its turn has ended. The next attempt
    finds out which."""
    return UpstreamUnavailable("settle_refused", "another attempt has taken over this call")


@dataclass(frozen=True, slots=True)
class ConversationFiles:
    """Reads files for one call, each in a separate transaction."""

    db: Database
    address: TurnAddress

    async def read(self, file_id: str) -> GivenFile | None:
        """Returns the file, or None. Files of other conversations are not found."""
        try:
            UUID(file_id)
        except ValueError:
            return None
        async with self.db.transaction(self.address.tenant_id) as tx:
            found = await files.read_in(tx, self.address.conversation_id, file_id)
        return GivenFile(found.id, found.name, found.media_type, found.content) if found else None

    async def uploads(self, media_types: Sequence[str], limit: int) -> Sequence[str]:
        """Returns the last uploads of these types, newest first, one for each name."""
        async with self.db.transaction(self.address.tenant_id) as tx:
            return await files.last_uploaded(tx, self.address.conversation_id, media_types, limit)


async def keep_files(tx: Connection, call: ToolCall, user_id: str, made: Sequence[MadeFile]) -> None:
    """Stores the files that a call made, with ids that derive from the call."""
    turn_id, call_id = call.address.turn_id, call.ask.call_id
    kept = [
        files.NewFile.of(file_id(turn_id, call_id, file.name), safe_name(file.name), file.media_type, file.content)
        for file in made
    ]
    await files.store_files(tx, call.address.conversation_id, user_id, kept, turn_id=turn_id, call_id=call_id)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has CLOCK_BOOTTIME. Elsewhere CLOCK_MONOTONIC continues while the machine sleeps, which `time.monotonic()` may
not do."""


def uptime_seconds() -> float:
    """Returns seconds on this clock, for differences only. The clock counts seconds since the machine started,
    including those in which it was suspended. A lease that another machine counts must be measured this way. On Linux,
    `time.monotonic()` (CLOCK_MONOTONIC) stops while the machine sleeps, so that an old claim would still look fresh
    afterwards."""
    return time.clock_gettime(_CLOCK)
