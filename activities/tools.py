"""`tools.run`: one tool call, reserved, done, settled. policy/ledger.py decides; this file acts."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import structlog
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.deps import Deps
from activities.edge import edge, stop_asked, this_attempt, uncancelled
from activities.results import Answer, denial, error_answer, settled_answer
from contracts.agents import EffectClass, ToolCard
from contracts.errors import PerdureError, Problem, UpstreamUnavailable
from contracts.events import TOOL_ERROR, TOOL_EXECUTING
from contracts.tools import CallState, ToolCall, ToolOutcome
from perdure.tools import Tool, ToolContext, ToolRefused, ToolResult, ToolUnavailable
from policy.arguments import schema_fault
from policy.ledger import (
    Acted,
    Attempt,
    Claim,
    Settle,
    after_act,
    claim_tool,
    may_have_happened,
    reservation_deadline,
)
from policy.retries import TOOL_ERRORS
from store import content, tool_calls, working_memory
from store.database import Connection
from store.journal import NewEvent, write

_REFUSED = {
    Claim.STOPPED: Problem(code="stopped", message="the turn was stopped"),
    Claim.ENDED: Problem(code="turn_ended", message="the turn has ended"),
    Claim.STALE: Problem(code="stale_attempt", message="a later attempt has claimed this call"),
}

FRESH_SECONDS = 0.25
"""A call is sent on its claim's word for this long; then the ledger is asked again. Far below what it takes before
another attempt may own the call (heartbeat time-out, 5 s); a stop that arrives within it is as one that comes after."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """A call that this attempt may do."""

    tool: Tool
    locked: tool_calls.Locked
    args: dict[str, JsonValue]
    epoch: int
    attempt: Attempt
    claimed_at: float
    """By this process's monotonic clock, just before the claim was asked for."""

    @property
    def card(self) -> ToolCard:
        return self.tool.card


class ToolActivities:
    """The tool calls of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="tools.run")
    async def run(self, call: ToolCall) -> ToolOutcome:
        """One tool call.

        Effects: what the tool does, by its class; the key sent out derives from turn and call id.
        Retry: safe for read, local and keyed; an opaque call that may have been sent is never sent again.
        """
        async with edge():
            outcome = await self._run(call)
        await self._deps.live.wake(call.address.conversation_id)
        return outcome

    async def _run(self, call: ToolCall) -> ToolOutcome:
        attempt, began = Attempt(*this_attempt()), time.monotonic()
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            held = await self._claim(tx, call, attempt, began)
        if isinstance(held, ToolOutcome):
            return held
        act = self._act_locally if held.card.effect is EffectClass.LOCAL else self._act_outside
        return await act(call, held)

    async def _claim(self, tx: Connection, call: ToolCall, attempt: Attempt, began: float) -> _Held | ToolOutcome:
        agent = await self._deps.shelf.at(tx, call.agent_id, call.agent_version)
        card = agent.card(call.ask.tool)
        locked = await tool_calls.lock(tx, call, card)
        if locked is None:
            return _problem(call, Problem(code="call_not_planned", message="no model asked for this call"))
        tool = self._deps.toolbox.find(call.agent_id, call.ask.tool)
        void = _why_void(locked, card, tool)
        verdict = claim_tool(locked.gate, locked.row, attempt, allowed=void is None, now=locked.now)
        if verdict not in (Claim.ACT, Claim.STALE, Claim.ENDED) and call.events:
            await write(tx, call.address, [], pending=call.events)
        if verdict is Claim.REPLAY:
            return ToolOutcome.model_validate(locked.outcome)
        if verdict is Claim.UNKNOWN:
            return await self._unknown(tx, call, locked)
        if verdict not in (Claim.ACT, Claim.DENIED):
            return _problem(call, _REFUSED[verdict])
        if card is not None and (tool is None or tool.card.version != card.version):
            await self._need_current_card(tx, call, card)
        if verdict is Claim.DENIED or tool is None or card is None:
            answer = denial(call, locked.approval, void)
            await tool_calls.settle(
                tx, call, locked.row.held.epoch if locked.row.held else 0, *answer.row, list(answer.events)
            )
            return answer.outcome
        deadline = reservation_deadline(locked.now)
        event = NewEvent(TOOL_EXECUTING, {"tool": card.name, "attempt": attempt.number}, call.ask.call_id)
        epoch = await tool_calls.reserve(tx, call, locked, attempt, deadline, card.timeout_seconds, event)
        args = locked.approval.args if locked.approval else locked.args
        return _Held(tool, locked, args, epoch, attempt, began)

    async def _need_current_card(self, tx: Connection, call: ToolCall, card: ToolCard) -> None:
        """This worker's tool is not the one that the call is for.

        Where the published agent still has that one, the worker is behind or ahead of a deploy, and another attempt
        may find the right one; else the tool has changed for good and the call is void.

        Raises: UpstreamUnavailable `tool_not_here`.
        """
        published = (await content.current(tx, call.agent_id)).card(card.name)
        if published is not None and published.version == card.version:
            raise UpstreamUnavailable("tool_not_here", f"this worker has no {card.name} of the version asked for")

    async def _unknown(self, tx: Connection, call: ToolCall, locked: tool_calls.Locked) -> ToolOutcome:
        """An earlier attempt may have sent it: record that a person must look."""
        outcome = ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
        if locked.row.state is not CallState.OUTCOME_UNKNOWN and locked.row.held is not None:
            event = NewEvent(
                TOOL_ERROR, {"tool": call.ask.tool, "code": "outcome_unknown", "effect": locked.key}, call.ask.call_id
            )
            await tool_calls.settle(tx, call, locked.row.held.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
        return outcome

    async def _act_locally(self, call: ToolCall, held: _Held) -> ToolOutcome:
        """Effect and ledger row commit together, or neither does. The turn is locked only by the settle."""
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                result = await asyncio.wait_for(
                    held.tool.run(held.args, self._context(call, held, tx)), held.card.timeout_seconds
                )
                answer = settled_answer(call, held.card, held.locked.approval, result)
                if not await tool_calls.settle(tx, call, held.epoch, *answer.row, list(answer.events)):
                    raise _lost()  # rolls the effect back
                await working_memory.merge(tx, call.address, dict(result.working))  # the turn's lock comes first
            return answer.outcome
        except PerdureError:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await tool_calls.count_lost(tx, call)  # the settle's own count went back with the effect
            raise
        except (ToolRefused, ToolUnavailable, TimeoutError) as error:
            failed = error_answer(call, _told(error))
        except Exception as error:
            _log.warning("local_tool_raised", tool=held.card.name, error=type(error).__name__)
            failed = error_answer(call, f"the tool failed ({type(error).__name__})")
        return await self._settle(call, held, failed)

    async def _act_outside(self, call: ToolCall, held: _Held) -> ToolOutcome:
        if not await self._still_owned(call, held):
            told = "the call was not sent: the turn was stopped, or its time had passed"
            return await uncancelled(self._record(call, held, Settle.RELEASE, ToolResult(None), told, None))
        acted, result, told, retry_after = Acted.RETURNED, ToolResult(None), "", None
        timed_out = False
        try:
            result = await asyncio.wait_for(
                held.tool.run(held.args, self._context(call, held, None)), held.card.timeout_seconds
            )
        except ToolRefused as error:
            acted, told = Acted.REFUSED, error.message
        except ToolUnavailable as error:
            acted, told, retry_after = Acted.NOT_SENT, error.message, error.retry_after_seconds
        except asyncio.CancelledError:
            if not stop_asked():
                raise  # this worker drains; the ledger decides what the next attempt may do
            acted, told = Acted.AMBIGUOUS, "the turn was stopped while the call was under way"
        except TimeoutError:
            acted, told, timed_out = Acted.AMBIGUOUS, f"no answer within {held.card.timeout_seconds:g} s", True
        except Exception as error:
            acted, told = Acted.AMBIGUOUS, f"the call broke off ({type(error).__name__})"
            _log.warning("tool_call_broke_off", tool=held.card.name, error=type(error).__name__)
        last = held.locked.errors + 1 >= TOOL_ERRORS or stop_asked()
        sent_before = may_have_happened(held.locked.row)
        decided = after_act(held.card.effect, acted, last_attempt=last, timed_out=timed_out, sent_before=sent_before)
        # What happened is recorded even if a stop arrives meanwhile.
        return await uncancelled(self._record(call, held, decided, result, told, retry_after))

    async def _still_owned(self, call: ToolCall, held: _Held) -> bool:
        """Asked just before the call is sent (design section 4, zombies); an unreadable answer sends nothing.

        A claim that is younger than `FRESH_SECONDS` has just given that answer, and is not asked for it again.
        """
        if time.monotonic() - held.claimed_at < FRESH_SECONDS:
            return True
        try:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                return await tool_calls.still_owned(tx, call, held.epoch)
        except (OSError, *self._deps.db.outages):
            return False

    async def _record(
        self, call: ToolCall, held: _Held, decided: Settle, result: ToolResult, told: str, retry_after: float | None
    ) -> ToolOutcome:
        if decided in (Settle.RETRY, Settle.RELEASE):
            record = tool_calls.release if decided is Settle.RELEASE else tool_calls.count_error
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await record(tx, call, held.epoch)
            delay = timedelta(seconds=min(retry_after, 60.0)) if retry_after else None
            # The tool's own sentence stays here: it may quote its target, and Temporal would store it.
            message = f"the tool {held.card.name} could not be called; it is tried again"
            raise ApplicationError(message, type="tool_unavailable", next_retry_delay=delay)
        if decided is Settle.OUTCOME_UNKNOWN:
            event = NewEvent(
                TOOL_ERROR,
                {"tool": held.card.name, "code": "outcome_unknown", "effect": held.locked.key, "message": told},
                call.ask.call_id,
            )
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await tool_calls.settle(tx, call, held.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
            return ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
        if decided is Settle.FAILED:
            return await self._settle(call, held, error_answer(call, told))
        return await self._settle(
            call, held, settled_answer(call, held.card, held.locked.approval, result), result.working
        )

    async def _settle(
        self, call: ToolCall, held: _Held, answer: Answer, working: Mapping[str, JsonValue] = MappingProxyType({})
    ) -> ToolOutcome:
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            mine = await tool_calls.settle(tx, call, held.epoch, *answer.row, list(answer.events))
            if mine:
                await working_memory.merge(tx, call.address, dict(working))
        if not mine:
            raise _lost()  # after the commit, which counts it
        return answer.outcome

    def _context(self, call: ToolCall, held: _Held, tx: Connection | None) -> ToolContext:
        return ToolContext(
            card=held.card,
            tenant_id=call.address.tenant_id,
            turn_id=call.address.turn_id,
            conversation_id=call.address.conversation_id,
            call_id=call.ask.call_id,
            user_id=held.locked.user_id,
            idempotency_key=held.locked.key,
            # By this worker's own clock, which the tool compares it with; the reservation's is the database's.
            deadline=datetime.now(UTC) + timedelta(seconds=held.card.timeout_seconds),
            http=self._deps.toolbox.http,
            state=call.ask.state,
            transaction=tx,
            secrets=self._deps.toolbox.secrets_for(held.tool),
        )


def _why_void(locked: tool_calls.Locked, card: ToolCard | None, tool: Tool | None) -> str | None:
    """Why this call may not run as it stands, or None where it may: approval, version, digest and schema."""
    if card is None or tool is None:
        return "this worker has no such tool"
    if tool.card.version != locked.tool_version:
        return "the tool has changed since the call was made"
    if not card.needs_approval and locked.approval is None:
        return None
    approval = locked.approval
    if approval is None:
        return "the call needs an approval and has none"
    if approval.status not in ("approved", "edited", "reserved"):
        return f"the approval is {approval.status}"
    if not approval.intact or approval.tool_version != tool.card.version:
        return "the approval is for another call than this one"
    fault = schema_fault(approval.args, tool.card.parameters)
    return f"the approved arguments do not fit any more: {fault}" if fault else None


def _lost() -> PerdureError:
    """The settle was refused: a later attempt owns the call, or its turn has ended. The next attempt reads which."""
    return UpstreamUnavailable("settle_refused", "the call is no longer this attempt's")


def _told(error: Exception) -> str:
    return error.message if isinstance(error, ToolRefused | ToolUnavailable) else "the tool took too long"


def _problem(call: ToolCall, problem: Problem) -> ToolOutcome:
    return ToolOutcome(call_id=call.ask.call_id, state=CallState.PLANNED, problem=problem)
