"""Claims and runs tool calls. A claim decides whether this attempt runs the call and with which arguments, or returns
its outcome. The rules are in perdure/core/calls/ledger.py.

A call waits for a worker that has its tool in its version. On a worker with another version it waits for a limited
time, counted from the first attempt that saw the difference. On a worker without the tool it waits without a limit if
its version is the published one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import structlog
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from perdure.activities.author_code import NotStarted, Raised, run_author_code
from perdure.activities.dependencies import Deps, Stops
from perdure.activities.guard import WAITS, Heartbeats, cancelled_by_stop, current_attempt, to_temporal
from perdure.activities.providers.errors import store_error
from perdure.activities.tool_answers import denial, error_answer
from perdure.activities.tool_failures import FailureReport
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost, ServerToolChanged
from perdure.activities.toolbox.registry import BlockTool, block_tool
from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import CallState, EffectClass, KnownEnd, ToolCall, ToolOutcome
from perdure.contracts.errors import PerdureError, Problem, UpstreamUnavailable
from perdure.contracts.events import TOOL_ERROR, TOOL_EXECUTING
from perdure.core.approvals.validity import (
    GRANTED_STATUSES,
    NOT_PUBLISHED,
    WORKERS_CHANGED,
    ApprovalValidity,
    DiffersAt,
    InForce,
    PlannedVersion,
    Refusal,
    call_refusal,
    lapse,
)
from perdure.core.calls.failures import class_name, is_permanent, known, known_of_attempts
from perdure.core.calls.hangs import TOOL_HUNG, Doing, OpenCall, given_up
from perdure.core.calls.ledger import PROBLEM_OF_CLAIM, ActionEnd, Attempt, Claim, claim_tool, reservation_deadline
from perdure.core.calls.retries import ATTEMPTS
from perdure.egress import AnswerWithheld, EgressRefused
from perdure.sdk.json_reading import ArgumentsRefused
from perdure.sdk.outcomes import WITHHELD_ADVICE, Meaning, meaning_of_withheld, result_of
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolResult, ToolUnavailable
from perdure.store.approvals.reissue import cancel_outdated, reopen_outdated
from perdure.store.calls import tool_calls
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, write
from perdure.store.faults import StoreFault, raised_by_asyncpg, store_fault
from perdure.telemetry.hangs import OpenCalls

CallableTool = Tool | BlockTool | McpTool
NO_RESULT = ToolResult(None)
TOOL_NOT_HERE: Final = "tool_not_here"
MIN_VERSION_RETRY_SECONDS, VERSION_RETRIES = 2.0, 20
"""A call whose wait for its version is limited is tried this often meanwhile, at most every two seconds."""


@dataclass(slots=True)
class VersionWait:
    """The waits of one activity of a call. Its heartbeat has them for the next attempt."""

    attempts: int = 0
    """The earlier attempts that only waited."""
    changed_at: datetime | None = None
    """The time of the first attempt that met another version than the call's, by the database's clock. None if no limit
    applies."""

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


@dataclass(frozen=True, slots=True)
class ClaimedCall:
    """A call that this attempt can run."""

    tool: CallableTool
    locked: tool_calls.LockedCall
    epoch: int
    attempt: Attempt
    claimed_at: float
    """Monotonic time just before the claim was requested (perdure/activities/tools.py)."""
    report: FailureReport
    """Reports a failure of the call."""
    open_calls: OpenCalls

    @property
    def card(self) -> ToolCard:
        """The card of the tool that this worker runs."""
        return self.tool.card

    @property
    def args(self) -> dict[str, JsonValue]:
        """The arguments to run with: the approved ones if the call has an approval."""
        return self.locked.approval.args if self.locked.approval else self.locked.args

    @property
    def is_block(self) -> bool:
        """True if the tool runs in the sandbox; its result is then wrapped."""
        return isinstance(self.tool, BlockTool)

    @property
    def is_transactional(self) -> bool:
        """True if the tool acts in the transaction that records the call. Blocks have no database access, whatever
        their card declares."""
        return self.card.effect is EffectClass.LOCAL and not self.is_block

    async def run(self, context: ToolContext) -> ToolResult | Raised:
        doing = Doing.IN_THREAD if isinstance(self.tool, Tool) and not self.tool.is_coroutine else Doing.AWAITS
        call = OpenCall(context.tenant_id, context.turn_id, context.call_id, self.epoch, self.card.name, doing)
        with self.open_calls.marked(call, self.tool.run(self.args, context)) as work:
            return await run_author_code(work, self.card.timeout_seconds)


async def claim_call(
    deps: Deps, tx: Connection, call: ToolCall, attempt: Attempt, requested_at: float, wait: VersionWait
) -> ClaimedCall | ToolOutcome:
    """Reserves the call for this attempt, or returns its outcome if it must not run.

    Raises: UpstreamUnavailable `tool_not_here`, `on_hold`.
    """
    agent = await deps.agent_cache.read_pinned(tx, call.agent_id, call.agent_version)
    locked = await _lock_or_plan(tx, call, agent.card(call.ask.tool))
    if locked is None:
        return _not_run(call, Problem(code="call_not_planned", message="the model did not request this call"))
    agent = await _agent_of_version(deps, tx, call, agent, locked.tool_version)
    card = agent.card(call.ask.tool)
    block = await block_tool(tx, deps.tables, deps.sandbox, agent, card) if card else None
    tool: CallableTool | None = block or deps.toolbox.find(call.agent_id, call.ask.tool, card)
    is_same = tool is not None and tool.card.is_version(locked.tool_version)
    locked = locked.for_card(tool.card if tool is not None and is_same else None)
    refusal = await _refusal(deps, tx, call, locked, card, tool.card if tool else None)
    claim = claim_tool(locked.turn, locked.row, attempt, allowed=refusal is None, now=locked.now)
    if claim not in (Claim.ACT, Claim.STALE, Claim.ENDED) and call.events:
        await write(tx, call.address, [], pending=call.events)
    if claim is Claim.REPLAY:
        return ToolOutcome.model_validate(locked.outcome)
    if claim is Claim.UNKNOWN and refusal and refusal.by_version and locked.may_be_resumed(attempt, card):
        await wait_for_version(deps, tx, call, locked, wait, has_other=tool is not None)
    if claim in (Claim.UNKNOWN, Claim.LOST):
        return await (_settle_unknown if claim is Claim.UNKNOWN else _settle_lost)(tx, call, locked)
    if claim not in (Claim.ACT, Claim.DENIED):
        return _not_run(call, PROBLEM_OF_CLAIM[claim])
    if claim is Claim.DENIED or tool is None or card is None:
        return await _wait_or_deny(deps, tx, call, locked, refusal, wait, has_other=tool is not None)
    if not is_same and await _is_published(deps, tx, call.agent_id, card.name, locked.tool_version):
        await wait_for_version(deps, tx, call, locked, wait, has_other=True)
    _refuse_while_on_hold(locked)
    deadline = reservation_deadline(locked.now)
    event = NewEvent(TOOL_EXECUTING, {"tool": card.name, "attempt": attempt.number}, call.ask.call_id)
    tool = _within(tool, call.ask.timeout_seconds)
    epoch = await tool_calls.reserve(tx, call, locked, attempt, deadline, tool.card, event)
    report = FailureReport.of(deps, tool, card, call.address.turn_id, call.ask.call_id)
    return ClaimedCall(tool, locked, epoch, attempt, requested_at, report, deps.open_calls)


def _within(tool: CallableTool, seconds: float) -> CallableTool:
    """Returns the tool with a time limit of at most `seconds`, which the activity has. The version of a tool does not
    cover its own limit, so this worker's may be longer."""
    if tool.card.timeout_seconds <= seconds:
        return tool
    return replace(tool, card=tool.card.model_copy(update={"timeout_seconds": seconds}))


async def _agent_of_version(
    deps: Deps, tx: Connection, call: ToolCall, pinned: PublishedAgent, version: str
) -> PublishedAgent:
    """Returns the agent whose card is that of the call: the one that the turn pinned, or, after its request was
    reissued, the published one."""
    card = pinned.card(call.ask.tool)
    if card is None or card.is_version(version):
        return pinned
    published = await deps.agent_cache.read_published(tx, call.agent_id)
    new_card = published.card(call.ask.tool) if published else None
    return published if published and new_card and new_card.is_version(version) else pinned


async def _refusal(
    deps: Deps,
    tx: Connection,
    call: ToolCall,
    locked: tool_calls.LockedCall,
    card: ToolCard | None,
    worker_card: ToolCard | None,
) -> Refusal | None:
    """Returns why the call must not run as it is, or None."""
    is_reserved = locked.row.state is CallState.RESERVED
    planned = PlannedVersion(locked.tool_version, locked.args, is_reserved)
    refusal = call_refusal(card, worker_card, planned, locked.approval, locked.exempt_tools)
    if worker_card is None and not locked.published_version:
        return Refusal(NOT_PUBLISHED, by_policy=True)
    if refusal is not None or locked.approval is None:
        return refusal
    in_force = await _in_force(deps, tx, call, locked.published_version, locked.approval.risk)
    return lapse(locked.approval, in_force, worker_card.version if worker_card else "")


async def _wait_or_deny(
    deps: Deps,
    tx: Connection,
    call: ToolCall,
    locked: tool_calls.LockedCall,
    refusal: Refusal | None,
    wait: VersionWait,
    *,
    has_other: bool,
) -> ToolOutcome:
    """Ends an attempt that must not run the call. A call whose approval is outdated or was reissued waits for its
    reviewers again. `has_other` as for `wait_for_version`.

    Raises: UpstreamUnavailable `tool_not_here` while another worker may have the tool in the call's version.
    """
    approval = locked.approval
    if approval is not None and approval.kind == RequestKind.APPROVAL and approval.status == "pending":
        return _not_run(call, None)
    if refusal is not None and refusal.by_version:
        await wait_for_version(deps, tx, call, locked, wait, has_other=has_other)
    if refusal is not None and approval is not None and refusal.outdates(approval, locked.row.effect):
        is_current = refusal.by_version and await _is_published(
            deps, tx, call.agent_id, call.ask.tool, locked.tool_version
        )
        differs_at = DiffersAt.WORKER if is_current else DiffersAt.NOWHERE
        reason = WORKERS_CHANGED if is_current else refusal.reason
        await reopen_outdated(tx, call.address, call.ask, approval.approval_id, reason, differs_at=differs_at)
        return _not_run(call, None)
    return await _settle_denied(tx, call, locked, refusal.reason if refusal else None)


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
        _log.warning("tool_version_awaited", **about, is_limited=wait.changed_at is not None)
    async with deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
        await tool_calls.await_worker(tx, call.address.turn_id, [call.ask.call_id])


def _not_retried(error: Exception) -> ApplicationError:
    if not isinstance(error, ApplicationError):
        error = to_temporal(error if isinstance(error, PerdureError) else store_error(error))
    return ApplicationError(error.message, *error.details, type=error.type, non_retryable=True)


async def _is_published(deps: Deps, tx: Connection, agent_id: str, name: str, version: str) -> bool:
    agent = await deps.agent_cache.read_published(tx, agent_id)
    published = agent.card(name) if agent is not None else None
    return published is not None and published.is_version(version)


async def need_current_tool(deps: Deps, tx: Connection, agent_id: str, name: str, version: str) -> None:
    """Raises if another worker may have the tool in the version that a call needs.

    If the published agent still has that version, this worker is behind or ahead of a deploy, and another attempt may
    reach the right one. Otherwise the tool or its agent has changed permanently, and the call is void.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    if await _is_published(deps, tx, agent_id, name, version):
        raise _tool_not_here(name)


def _tool_not_here(name: str, *, retry_after_seconds: float | None = None) -> UpstreamUnavailable:
    message = f"this worker does not have {name} in the required version"
    return UpstreamUnavailable(TOOL_NOT_HERE, message, retry_after_seconds=retry_after_seconds)


async def wait_for_version(
    deps: Deps, tx: Connection, call: ToolCall, locked: tool_calls.LockedCall, wait: VersionWait, *, has_other: bool
) -> None:
    """Returns if the call has waited long enough for a worker that has the tool in its version. With `has_other`, this
    worker has the tool in another one. Without the tool here, a call of the published version waits without a limit.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    name = call.ask.tool
    if not has_other:
        await need_current_tool(deps, tx, call.agent_id, name, locked.tool_version)
    seconds = seconds_of_wait(deps, locked, wait)
    if seconds is not None:
        raise _tool_not_here(name, retry_after_seconds=seconds)


def seconds_of_wait(deps: Deps, locked: tool_calls.LockedCall, wait: VersionWait) -> float | None:
    """Returns the time until the next attempt of a call that met another version. None if it has waited long enough:
    since the difference was seen, and since the end of its hold."""
    wait.changed_at = since = wait.changed_at or locked.now
    if locked.approval is not None and locked.approval.ready_at is not None:
        since = max(since, locked.approval.ready_at)
    if (locked.now - since).total_seconds() >= deps.version_wait_seconds:
        return None
    return max(MIN_VERSION_RETRY_SECONDS, deps.version_wait_seconds / VERSION_RETRIES)


async def reopen_if_changed(
    deps: Deps, call: ToolCall, claimed: ClaimedCall, reason: str, wait: VersionWait
) -> ToolOutcome | None:
    """Gives back an approved call that was not sent, because its MCP server lists another version of the tool. After it
    has waited for its version, its reviewers are asked again. Returns None if the call has no such approval, or if the
    attempt no longer owns it.

    Raises: UpstreamUnavailable `tool_not_here` while it waits.
    """
    approval = claimed.locked.approval
    if approval is None or approval.kind != RequestKind.APPROVAL:
        return None
    async with deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
        locked = await tool_calls.lock(tx, call)
        if locked is None or not locked.is_held_by(claimed.epoch):
            return None
        await tool_calls.give_back(tx, call, claimed.epoch)
        waits = seconds_of_wait(deps, locked, wait)
        if waits is None:
            about = (call.address, call.ask, approval.approval_id, reason)
            await reopen_outdated(tx, *about, differs_at=DiffersAt.SERVER)
            return _not_run(call, None)
    raise UpstreamUnavailable(TOOL_NOT_HERE, reason, retry_after_seconds=waits)


def _refuse_while_on_hold(locked: tool_calls.LockedCall) -> None:
    """Raises: UpstreamUnavailable `on_hold` if the call is approved but must not start yet."""
    approval = locked.approval
    if approval is not None and approval.ready_at is not None and approval.holds(locked.now):
        wait = (approval.ready_at - locked.now).total_seconds()
        raise UpstreamUnavailable("on_hold", "the call is approved but may not start yet", retry_after_seconds=wait)


async def _lock_or_plan(tx: Connection, call: ToolCall, card: ToolCard | None) -> tool_calls.LockedCall | None:
    """Locks the call's row. A call that the graph itself makes and that needs no approval is planned here."""
    locked = await tool_calls.lock(tx, call)
    if locked is None and call.ask.args is not None and card is not None and not card.needs_approval:
        await tool_calls.plan(tx, call, card)
        locked = await tool_calls.lock(tx, call)
    return locked


async def _settle_lost(tx: Connection, call: ToolCall, locked: tool_calls.LockedCall) -> ToolOutcome:
    """Settles a call without an effect, none of whose attempts ended."""
    row = locked.row
    _log.error("tool_call_given_up", tool=call.ask.tool, turn_id=call.address.turn_id, lost=row.lost, hung=row.hung)
    problem = given_up(call.ask.tool, lost=row.lost, hung=row.hung)
    answer = error_answer(call, problem.message)
    if problem.code == TOOL_HUNG:
        answer = answer.ending_turn(problem)
    await tool_calls.settle(tx, call, locked.row.held.epoch if locked.row.held else 0, *answer.row, list(answer.events))
    return answer.outcome


async def _settle_denied(
    tx: Connection, call: ToolCall, locked: tool_calls.LockedCall, void_reason: str | None
) -> ToolOutcome:
    """Settles a call that is not allowed to run."""
    void_reason = await _void_given_approval(tx, call, locked.approval, void_reason)
    answer = denial(call, locked.approval, void_reason)
    epoch = locked.row.held.epoch if locked.row.held else 0
    await tool_calls.settle(tx, call, epoch, *answer.row, list(answer.events))
    return answer.outcome


async def _in_force(deps: Deps, tx: Connection, call: ToolCall, version: str, risk: str) -> InForce | None:
    """Returns what the currently published agent says about this tool, for a request of this risk; None if no agent is
    published."""
    if not version:
        return None
    return InForce.of(await deps.agent_cache.read_pinned(tx, call.agent_id, version), call.ask.tool, risk)


async def _void_given_approval(
    tx: Connection, call: ToolCall, approval: ApprovalValidity | None, reason: str | None
) -> str | None:
    """Voids a given approval that no longer covers its call. Returns the message for the model."""
    if approval is None or reason is None or approval.status not in GRANTED_STATUSES:
        return reason
    await cancel_outdated(tx, approval.approval_id, reason, call.address.turn_id)
    return f"{reason}; a new approval is needed"


async def _settle_unknown(tx: Connection, call: ToolCall, locked: tool_calls.LockedCall) -> ToolOutcome:
    """Records an unknown outcome, which a person must settle: an earlier attempt may have sent the call."""
    outcome = ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
    if locked.row.state is not CallState.OUTCOME_UNKNOWN and locked.row.held is not None:
        unknown: dict[str, JsonValue] = {
            "tool": call.ask.tool,
            "code": "outcome_unknown",
            "effect": locked.key,
            **known_of_attempts(locked.ends, lost=locked.row.lost, hung=locked.row.hung),
        }
        event = NewEvent(TOOL_ERROR, unknown, call.ask.call_id)
        await tool_calls.settle(tx, call, locked.row.held.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
    return outcome


def _not_run(call: ToolCall, problem: Problem | None) -> ToolOutcome:
    return ToolOutcome(call_id=call.ask.call_id, state=CallState.PLANNED, problem=problem)


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolAttempt:
    """The end of an attempt, as far as its caller knows. For a target, the result is what the caller knows of the
    effect (perdure/core/calls/ledger.py). For a local tool, it is the result or the reason for the rollback."""

    end: ActionEnd
    message: str = ""
    """Message for the model if the call did not return. It may quote the target, so it is not written to Temporal's
    history."""
    result: ToolResult = NO_RESULT
    retry_after_seconds: float | None = None
    timed_out: bool = False
    permanent: bool = False
    """True if another attempt would end in the same way."""
    is_outdated: bool = False
    """True if the target has the tool only in another version, so that nothing was sent."""
    stopped: bool = False
    """True if the turn was stopped during the attempt."""
    failure: str = ""
    """The line for people about what the tool raised. It can contain data, so the model does not receive it."""
    known: dict[str, JsonValue] = field(default_factory=dict)
    """The code and sentence of an effect whose outcome is unknown (`known`)."""


def _stopped(context: ToolContext) -> ToolAttempt:
    message = "the turn was stopped while the call was running"
    end = known(KnownEnd.STOPPED, str(context.sent))
    return ToolAttempt(ActionEnd.AMBIGUOUS, message, stopped=True, known=end)


async def attempt_call(claimed: ClaimedCall, context: ToolContext, stops: Stops) -> ToolAttempt:
    """Runs the tool once, within its time limit. If the turn is stopped, the attempt is interrupted.

    Raises: CancelledError when this worker drains; the ledger decides what the next attempt can do.
    """
    async with stops.interruptible(context.turn_id):
        return await _run_within_limit(claimed, context)
    return _stopped(context)


async def _run_within_limit(claimed: ClaimedCall, context: ToolContext) -> ToolAttempt:
    """Runs the tool once, within its time limit.

    Raises: CancelledError when this worker drains.
    """
    try:
        result = await claimed.run(context)
    except NotStarted:
        return ToolAttempt(ActionEnd.NOT_SENT, "the call ended before the tool was called")
    except asyncio.CancelledError:
        if cancelled_by_stop():
            return _stopped(context)
        raise
    if not isinstance(result, Raised):
        return ToolAttempt(ActionEnd.RETURNED, result=result)
    if result.answer is not None:
        return _not_done(claimed, result.answer, result.error, context)
    if isinstance(result.error, AnswerWithheld):
        return _withheld(claimed, result.error, context)
    return _raised(claimed, result, context)


def _limit_message(claimed: ClaimedCall) -> str:
    return f"no response within {claimed.card.timeout_seconds:g} s (the tool's timeout_seconds)"


def _not_done(
    claimed: ClaimedCall, error: ToolRefused | ToolUnavailable, raised: Exception, context: ToolContext
) -> ToolAttempt:
    """Returns the end of an attempt for which nothing happened, unless another of its requests did something. `raised`
    is the error, or the group with it."""
    message = claimed.report.own_message(error)
    if claimed.card.effect in (EffectClass.KEYED, EffectClass.OPAQUE) and context.sent.may_have_changed_before(raised):
        known_end = claimed.report.known(error, context.sent)
        return ToolAttempt(ActionEnd.AMBIGUOUS, message, known=known_end)
    if isinstance(error, ToolRefused):
        failure, is_outdated = _check_failure(claimed, error), isinstance(error, ServerToolChanged)
        return ToolAttempt(ActionEnd.REFUSED, message, failure=failure, is_outdated=is_outdated)
    return ToolAttempt(ActionEnd.NOT_SENT, message, retry_after_seconds=error.retry_after_seconds)


def _check_failure(claimed: ClaimedCall, error: ToolRefused | ToolUnavailable) -> str:
    """Returns the line about a validator that crashed; empty for any other refusal."""
    crash = error.crash if isinstance(error, ArgumentsRefused) else None
    return claimed.report.log("tool_check_raised", crash) if crash is not None else ""


def _raised(claimed: ClaimedCall, raised: Raised, context: ToolContext) -> ToolAttempt:
    """Returns the end of an attempt that raised something other than the tool's own answer."""
    error, timed_out = raised.error, raised.timed_out
    retried = claimed.tool.retry_errors if isinstance(claimed.tool, Tool) else ()
    message, permanent = f"the call failed ({class_name(error)})", False
    failure = claimed.report.log("tool_call_failed", error)
    if timed_out:
        message = _limit_message(claimed)
    elif isinstance(error, EgressRefused):
        # raised by a tool that does not use `context.send`, so it may have sent something before
        message, permanent = claimed.report.own_message(error), True
    elif isinstance(error, ServerLost):
        message, failure = str(error), ""  # the server's error has no place in the app
    else:
        permanent = is_permanent(error, retried, has_answer=context.sent.has_answer)
    return ToolAttempt(
        ActionEnd.AMBIGUOUS,
        message,
        timed_out=timed_out,
        permanent=permanent,
        failure=failure,
        known=claimed.report.known(error, context.sent, timed_out=timed_out),
    )


def _withheld(claimed: ClaimedCall, error: AnswerWithheld, context: ToolContext) -> ToolAttempt:
    """Returns the result of a success whose body was not read, by the table in perdure/sdk/outcomes.py."""
    card = claimed.card
    meaning, message = meaning_of_withheld(card.effect, error.method), f"{error.code}: {error}"
    if meaning is Meaning.REFUSED:
        return ToolAttempt(ActionEnd.REFUSED, f"{message}; {WITHHELD_ADVICE}")
    if meaning is Meaning.AMBIGUOUS:
        return ToolAttempt(ActionEnd.AMBIGUOUS, message, known=claimed.report.known(error, context.sent))
    note = f"the target accepted the {error.method} request, so it was executed; {error} and was not read"
    _log.warning("tool_answer_withheld", tool=card.name, code=error.code, limit=error.limit)
    return ToolAttempt(
        ActionEnd.RETURNED, result=result_of({"status": error.code, "message": note, "limit": error.limit})
    )


class LocalToolFailed(Exception):
    """A local tool failed. The exception leaves the transaction, which is rolled back. `message` is for the model, and
    `failure` for people."""

    def __init__(self, message: str, failure: str = "") -> None:
        super().__init__(message)
        self.message, self.failure = message, failure


async def run_local_tool(claimed: ClaimedCall, context: ToolContext) -> ToolResult:
    """Runs a local tool once, within its time limit, in the transaction of its context.

    Raises: LocalToolFailed if the tool failed. Errors that show that Postgres is unavailable or that a transaction
    conflicts pass unchanged: they are not the tool's answer, and another attempt may succeed. A missing table is the
    tool's own mistake.
    """
    result = await claimed.run(context)
    if not isinstance(result, Raised):
        return result
    error, answer = result.error, result.answer
    if answer is not None:
        raise LocalToolFailed(claimed.report.own_message(answer), _check_failure(claimed, answer))
    if isinstance(error, AnswerWithheld | EgressRefused):
        raise LocalToolFailed(claimed.report.own_message(error))
    # The type is not enough: a hanging command ends in a bare TimeoutError, as does the tool's time limit.
    is_lost = raised_by_asyncpg(error) and store_fault(error) in (StoreFault.UNAVAILABLE, StoreFault.CONFLICT)
    if is_lost or isinstance(error, PerdureError):
        raise error
    failure = claimed.report.log("tool_call_failed", error)
    message = f"the tool failed ({class_name(error)})"
    raise LocalToolFailed(_limit_message(claimed) if result.timed_out else message, failure)
