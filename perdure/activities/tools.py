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
from perdure.activities.guard import activity_guard, cancelled_by_stop, current_attempt, uncancelled
from perdure.activities.tool_answers import CallAnswer, error_answer, settled_answer
from perdure.activities.tool_execution import (
    ClaimedCall,
    LocalToolFailed,
    ToolAttempt,
    VersionWait,
    attempt_call,
    claim_call,
    limited_attempts,
    reopen_if_changed,
    run_local_tool,
)
from perdure.activities.working_memory import save_working_memory
from perdure.contracts.calls import CallState, EffectClass, KnownEnd, ToolCall, ToolOutcome
from perdure.contracts.errors import PerdureError, UpstreamUnavailable
from perdure.contracts.events import TOOL_ERROR
from perdure.contracts.ids import file_id
from perdure.contracts.turns import TurnAddress
from perdure.core.calls.failures import known, known_of_attempts
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
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has CLOCK_BOOTTIME. Elsewhere CLOCK_MONOTONIC continues while the machine sleeps, which `time.monotonic()` may
not do."""


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
        async with activity_guard() as heartbeats, limited_attempts(self._deps, call, heartbeats) as wait:
            outcome = await self._run(call, wait)
        self._deps.live.wake(call.address.conversation_id)
        return outcome

    async def _run(self, call: ToolCall, wait: VersionWait) -> ToolOutcome:
        attempt, requested_at = Attempt(*current_attempt()), uptime_seconds()
        async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
            claimed = await claim_call(self._deps, tx, call, attempt, requested_at, wait)
        if isinstance(claimed, ToolOutcome):
            return claimed
        if claimed.is_transactional:
            return await self._run_local(call, claimed)
        return await self._run_external(call, claimed, wait)

    async def _run_local(self, call: ToolCall, claimed: ClaimedCall) -> ToolOutcome:
        """The effect and the ledger row commit together, or neither does. Only the settle locks the turn."""
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                result = await run_local_tool(claimed, self._context(call, claimed, tx))
                answer = await _settle_returned(tx, call, claimed, result)
            return answer.outcome
        except LocalToolFailed as failure:
            return await self._settle(call, claimed, error_answer(call, failure.message, failure=failure.failure))
        except _SettleRejected:
            raise await self._count_lost(call) from None

    async def _run_external(self, call: ToolCall, claimed: ClaimedCall, wait: VersionWait) -> ToolOutcome:
        owned = await self._still_owned(call, claimed)
        result = (
            await attempt_call(claimed, self._context(call, claimed, None), self._deps.stops)
            if owned
            else ToolAttempt(ActionEnd.NOT_OWNED)
        )
        action = after_act(
            claimed.card.effect,
            result.end,
            last_attempt=claimed.locked.errors + 1 >= TOOL_ERRORS or result.stopped or cancelled_by_stop(),
            timed_out=result.timed_out,
            permanent=result.permanent,
            sent_before=may_have_happened(claimed.locked.row),
        )
        if result.is_outdated and action is SettleAction.FAILED:
            reopened = await uncancelled(reopen_if_changed(self._deps, call, claimed, result.message, wait))
            if reopened is not None:
                return reopened
        # The outcome is recorded even if a stop arrives in the meantime.
        return await uncancelled(self._record(call, claimed, action, result))

    async def _still_owned(self, call: ToolCall, claimed: ClaimedCall) -> bool:
        """Checks just before the call is sent that this attempt still owns it, since a stalled attempt may have lost
        it. If the check fails, nothing is sent.

        A claim that is younger than `FRESH_SECONDS` has just made this check, so it is not repeated.
        """
        if uptime_seconds() - claimed.claimed_at < FRESH_SECONDS:
            return True
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                return await tool_calls.still_owned(tx, call, claimed.epoch)
        except (OSError, *self._deps.db.outages):
            return False

    async def _record(
        self, call: ToolCall, claimed: ClaimedCall, action: SettleAction, result: ToolAttempt
    ) -> ToolOutcome:
        if action in (SettleAction.RETRY, SettleAction.RELEASE):
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                if action is SettleAction.RELEASE:
                    await tool_calls.release(tx, call, claimed.epoch)
                else:
                    await tool_calls.count_error(tx, call, claimed.epoch, _ends(claimed, result))
            # The tool's message stays here: it may quote its target, and Temporal would store it.
            message = f"the tool {claimed.card.name} could not be called; it is retried"
            delay = next_delay(result.retry_after_seconds)
            raise ApplicationError(message, type="tool_unavailable", next_retry_delay=delay)
        if action is SettleAction.OUTCOME_UNKNOWN:
            unknown: dict[str, JsonValue] = {
                "tool": claimed.card.name,
                "code": "outcome_unknown",
                "effect": claimed.locked.key,
                "message": result.message if claimed.report.shows_messages else "",
                **_known_of(claimed, result),
            }
            event = NewEvent(TOOL_ERROR, unknown, call.ask.call_id)
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await tool_calls.settle(tx, call, claimed.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
            return ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
        if action is SettleAction.FAILED:
            answer = error_answer(call, result.message, wrapped=claimed.is_block, failure=result.failure)
            return await self._settle(call, claimed, answer)
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                answer = await _settle_returned(tx, call, claimed, result.result)
        except _SettleRejected:
            raise await self._count_lost(call) from None
        return answer.outcome

    async def _settle(self, call: ToolCall, claimed: ClaimedCall, answer: CallAnswer) -> ToolOutcome:
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            accepted = await tool_calls.settle(tx, call, claimed.epoch, *answer.row, list(answer.events))
        if not accepted:
            raise _settle_rejected()  # after the commit, which counts the lost settle
        return answer.outcome

    async def _count_lost(self, call: ToolCall) -> PerdureError:
        """Counts a lost settle. The settle's own count was rolled back with the effect and with what should be
        remembered."""
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            await tool_calls.count_lost(tx, call)
        return _settle_rejected()

    def _context(self, call: ToolCall, claimed: ClaimedCall, tx: Connection | None) -> ToolContext:
        return ToolContext(
            card=claimed.card,
            tenant_id=call.address.tenant_id,
            turn_id=call.address.turn_id,
            conversation_id=call.address.conversation_id,
            call_id=call.ask.call_id,
            user_id=claimed.locked.user_id,
            idempotency_key=claimed.locked.key,
            # The tool compares it with this worker's clock; the reservation's deadline is by the database's clock.
            deadline=datetime.now(UTC) + timedelta(seconds=claimed.card.timeout_seconds),
            http=self._deps.toolbox.http_for(call.agent_id),
            state=call.ask.state,
            transaction=tx,
            files=ConversationFiles(self._deps.db, call.address),
            memory=self._deps.memory,
            secrets=self._deps.toolbox.secrets_for(claimed.card),
        )


def _known_of(claimed: ClaimedCall, result: ToolAttempt) -> dict[str, JsonValue]:
    """Returns `known` and `failure` of an unknown outcome, of this attempt and of earlier ones."""
    nothing = known(KnownEnd.EARLIER_ATTEMPT, words=claimed.report.words_of(result.message))
    ends = _ends(claimed, result) if result.known else [nothing, *claimed.locked.ends]
    return known_of_attempts(ends, lost=claimed.locked.row.lost, hung=claimed.locked.row.hung)


def _ends(claimed: ClaimedCall, result: ToolAttempt) -> list[dict[str, JsonValue]]:
    """Returns what is known of those attempts of a call that may have reached its target, newest first."""
    earlier = claimed.locked.ends
    if not result.known or claimed.card.effect not in (EffectClass.KEYED, EffectClass.OPAQUE):
        return earlier
    return [{**result.known, **({"failure": result.failure} if result.failure else {})}, *earlier]


async def _settle_returned(tx: Connection, call: ToolCall, claimed: ClaimedCall, result: ToolResult) -> CallAnswer:
    """Records a call that returned, with what it wants remembered and audited, for every kind of tool. Its state
    updates are part of the outcome, because the graph holds the state.

    Raises: _SettleRejected.
    """
    result, memory_events = await save_working_memory(tx, call, result)
    answer = settled_answer(call, claimed.card, claimed.locked.approval, result)
    if not await tool_calls.settle(tx, call, claimed.epoch, *answer.row, [*answer.events, *memory_events]):
        raise _SettleRejected
    if result.files:
        await keep_files(tx, call, claimed.locked.user_id, result.files)
    if result.audited is not None:
        body: dict[str, JsonValue] = {**result.audited.data, "call_id": call.ask.call_id}
        kind, turn_id = f"tool.{claimed.card.name}", call.address.turn_id
        await audit.record(tx, kind, result.audited.subject, body, actor=claimed.locked.user_id, turn_id=turn_id)
    return answer


class _SettleRejected(Exception):
    """The settle of a call that returned was rejected. The exception leaves the transaction, which is rolled back."""


def _settle_rejected() -> PerdureError:
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
    """Stores the files that a call made. Their ids derive from the call, so that a repeated attempt stores them
    once."""
    turn_id, call_id = call.address.turn_id, call.ask.call_id
    kept = [
        files.NewFile.of(file_id(turn_id, call_id, file.name), safe_name(file.name), file.media_type, file.content)
        for file in made
    ]
    await files.store_files(tx, call.address.conversation_id, user_id, kept, turn_id=turn_id, call_id=call_id)


def uptime_seconds() -> float:
    """Returns seconds on this clock, for differences only. The clock counts seconds since the machine started,
    including those in which it was suspended. A lease that another machine counts must be measured this way. On Linux,
    `time.monotonic()` (CLOCK_MONOTONIC) stops while the machine sleeps, so that an old claim would still look fresh
    afterwards."""
    return time.clock_gettime(_CLOCK)
