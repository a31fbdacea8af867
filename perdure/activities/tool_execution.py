"""Claiming a tool call: who may run it, with which arguments; else its outcome. perdure/core/calls/ledger.py
decides."""

import asyncio
import traceback
from dataclasses import dataclass

import structlog
from pydantic import JsonValue

from perdure.activities.dependencies import Deps, Stops
from perdure.activities.guard import stop_asked
from perdure.activities.providers.errors import store_error
from perdure.activities.toolbox.mcp.tools import McpTool, ServerLost
from perdure.activities.toolbox.registry import BlockTool, block_tool
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import CallState, EffectClass, ToolCall, ToolOutcome
from perdure.contracts.errors import PerdureError, Problem, UpstreamUnavailable
from perdure.contracts.events import TOOL_DENIED, TOOL_ERROR, TOOL_EXECUTING, TOOL_RESULT
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.values import canonical_json
from perdure.core.agents.prompts import as_changed
from perdure.core.agents.rules import plain_facts
from perdure.core.approvals.validity import GIVEN, NOT_PUBLISHED, REASONED, Covering, InForce, why_lapsed, why_void
from perdure.core.calls.ledger import REFUSED, Acted, Attempt, Claim, claim_tool, reservation_deadline
from perdure.core.text import estimated_tokens, preview
from perdure.egress import AnswerWithheld, EgressRefused
from perdure.sdk.outcomes import WITHHELD_ADVICE, Meaning, meaning_of_withheld, result_of
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolResult, ToolUnavailable
from perdure.store.approvals.assignments import void as void_approval
from perdure.store.calls import tool_calls
from perdure.store.database import Connection, new_id
from perdure.store.events.event_log import NewEvent, NewMessage, write


@dataclass(frozen=True, slots=True)
class Held:
    """A call that this attempt may do."""

    tool: Tool | BlockTool | McpTool
    locked: tool_calls.Locked
    args: dict[str, JsonValue]
    epoch: int
    attempt: Attempt
    claimed_at: float
    """By perdure/activities/tools.py, just before the claim was asked for."""

    @property
    def card(self) -> ToolCard:
        """The card of the tool that this worker runs."""
        return self.tool.card

    @property
    def is_block(self) -> bool:
        """Whether it runs in the sandbox, and so is answered in a wrapper (S0-49)."""
        return isinstance(self.tool, BlockTool)

    @property
    def changes_our_rows(self) -> bool:
        """Whether it acts in the transaction that records it; a block reaches no database, whatever its card says."""
        return self.card.effect is EffectClass.LOCAL and not self.is_block


async def claimed(deps: Deps, tx: Connection, call: ToolCall, attempt: Attempt, began: float) -> Held | ToolOutcome:
    """The call reserved for this attempt, or its outcome where it is not to be run.

    Raises: UpstreamUnavailable `tool_not_here`, `on_hold`.
    """
    agent = await deps.shelf.at(tx, call.agent_id, call.agent_version)
    card = agent.card(call.ask.tool)
    locked = await _locked(tx, call, card)
    if locked is None:
        return _not_run(call, Problem(code="call_not_planned", message="no model asked for this call"))
    tool: Tool | BlockTool | McpTool | None = (
        await block_tool(tx, deps.tables, deps.sandbox, agent, card) if card else None
    )
    tool = tool or deps.toolbox.find(call.agent_id, call.ask.tool, card)
    void = why_void(card, tool.card if tool else None, locked.tool_version, locked.approval, locked.waived)
    if tool is None and not locked.published_version:
        void = NOT_PUBLISHED
    if void is None and locked.approval is not None:
        void = why_lapsed(locked.approval, await _in_force(deps, tx, call, locked.published_version))
    verdict = claim_tool(locked.gate, locked.row, attempt, allowed=void is None, now=locked.now)
    if verdict not in (Claim.ACT, Claim.STALE, Claim.ENDED) and call.events:
        await write(tx, call.address, [], pending=call.events)
    if verdict is Claim.REPLAY:
        return ToolOutcome.model_validate(locked.outcome)
    if verdict is Claim.UNKNOWN:
        return await _unknown(tx, call, locked)
    if verdict not in (Claim.ACT, Claim.DENIED):
        return _not_run(call, REFUSED[verdict])
    if card is not None and (tool is None or tool.card.version != card.version):
        await _need_current_card(deps, tx, call, card)
    if verdict is Claim.DENIED or tool is None or card is None:
        return await _denied(tx, call, locked, void)
    if locked.approval is not None and locked.approval.ready_at is not None and locked.approval.holds(locked.now):
        left = (locked.approval.ready_at - locked.now).total_seconds()
        raise UpstreamUnavailable("on_hold", "the call is approved and does not start yet", retry_after_seconds=left)
    deadline = reservation_deadline(locked.now)
    event = NewEvent(TOOL_EXECUTING, {"tool": card.name, "attempt": attempt.number}, call.ask.call_id)
    epoch = await tool_calls.reserve(tx, call, locked, attempt, deadline, card.timeout_seconds, event)
    args = locked.approval.args if locked.approval else locked.args
    return Held(tool, locked, args, epoch, attempt, began)


async def _locked(tx: Connection, call: ToolCall, card: ToolCard | None) -> tool_calls.Locked | None:
    """The call's row, locked; a call of the graph's own that needs no approval is planned here."""
    locked = await tool_calls.lock(tx, call, card)
    if locked is None and call.ask.args is not None and card is not None and not card.needs_approval:
        await tool_calls.plan(tx, call, card)
        locked = await tool_calls.lock(tx, call, card)
    return locked


async def _denied(tx: Connection, call: ToolCall, locked: tool_calls.Locked, void: str | None) -> ToolOutcome:
    """Settle a call that is not allowed to run."""
    void = await _voided(tx, call, locked.approval, void)
    answer = denial(call, locked.approval, void)
    epoch = locked.row.held.epoch if locked.row.held else 0
    await tool_calls.settle(tx, call, epoch, *answer.row, list(answer.events))
    return answer.outcome


async def _in_force(deps: Deps, tx: Connection, call: ToolCall, version: str) -> InForce | None:
    """What the agent as it is published now says about this tool."""
    if not version:
        return None
    agent = await deps.shelf.at(tx, call.agent_id, version)
    card = agent.card(call.ask.tool)
    return InForce(agent.definition.approvals.digest, card.version if card else "")


async def _voided(tx: Connection, call: ToolCall, approval: Covering | None, why: str | None) -> str | None:
    """Close an approval that is given and does not cover its call any more; what the model is told."""
    if approval is None or why is None or approval.status not in GIVEN:
        return why
    await void_approval(tx, approval.approval_id, why, call.address.turn_id)
    return f"{why}; a new approval is needed"


async def _need_current_card(deps: Deps, tx: Connection, call: ToolCall, card: ToolCard) -> None:
    """This worker's tool is not the one that the call is for.

    Where the published agent still has that one, the worker is behind or ahead of a deploy, and another attempt
    may find the right one; else the tool has changed for good, or is gone with its agent, and the call is void.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    agent = await deps.shelf.published(tx, call.agent_id)
    published = agent.card(card.name) if agent is not None else None
    if published is not None and published.version == card.version:
        raise UpstreamUnavailable("tool_not_here", f"this worker has no {card.name} of the version asked for")


async def _unknown(tx: Connection, call: ToolCall, locked: tool_calls.Locked) -> ToolOutcome:
    """An earlier attempt may have sent it: record that a person must look."""
    outcome = ToolOutcome(call_id=call.ask.call_id, state=CallState.OUTCOME_UNKNOWN)
    if locked.row.state is not CallState.OUTCOME_UNKNOWN and locked.row.held is not None:
        event = NewEvent(
            TOOL_ERROR, {"tool": call.ask.tool, "code": "outcome_unknown", "effect": locked.key}, call.ask.call_id
        )
        await tool_calls.settle(tx, call, locked.row.held.epoch, CallState.OUTCOME_UNKNOWN, None, None, [event])
    return outcome


def _not_run(call: ToolCall, problem: Problem) -> ToolOutcome:
    return ToolOutcome(call_id=call.ask.call_id, state=CallState.PLANNED, problem=problem)


# --- One try of a tool.
# Of a target outside: what came of it, in the words of perdure/core/calls/ledger.py; of a local
# one: its result, or why its transaction goes back.

NOTHING = ToolResult(None)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Try:
    """How a try ended, as its caller saw it."""

    acted: Acted
    told: str = ""
    """For the model, where the call did not return; may quote the target, so it goes into no history."""
    result: ToolResult = NOTHING
    retry_after_seconds: float | None = None
    timed_out: bool = False
    hopeless: bool = False
    """Another try would end in the same way."""
    stopped: bool = False
    """The turn was stopped while it was under way."""


MISTAKES: tuple[type[Exception], ...] = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    NotImplementedError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)
"""What only the tool's own code raises, so that trying again changes nothing. KeyError and ValueError are not here: an
answer of the target's that does not read may read the next time."""


STOPPED = Try(Acted.AMBIGUOUS, "the turn was stopped while the call was under way", stopped=True)


async def tried(held: Held, context: ToolContext, stops: Stops) -> Try:
    """Run the tool once, within its time; a stop of its turn breaks it off.

    Raises: CancelledError where this worker drains; the ledger decides what the next attempt may do.
    """
    async with stops.breaking(context.turn_id):
        return await _tried(held, context)
    return STOPPED


async def _tried(held: Held, context: ToolContext) -> Try:
    """Run the tool once, within its time.

    Raises: CancelledError where this worker drains; the ledger decides what the next attempt may do.
    """
    try:
        result = await asyncio.wait_for(held.tool.run(held.args, context), held.card.timeout_seconds)
    except ToolRefused as error:
        return Try(Acted.REFUSED, error.message)
    except ToolUnavailable as error:
        return Try(Acted.NOT_SENT, error.message, retry_after_seconds=error.retry_after_seconds)
    except AnswerWithheld as error:
        return _withheld(held.card, error)
    except EgressRefused as error:  # of a tool that sends past `context.send`, and may have sent something before
        return Try(Acted.AMBIGUOUS, str(error), hopeless=True)
    except asyncio.CancelledError:
        if not stop_asked():
            raise
        return STOPPED
    except TimeoutError:
        return Try(Acted.AMBIGUOUS, f"no answer within {held.card.timeout_seconds:g} s", timed_out=True)
    except Exception as error:
        _log.warning("tool_call_broke_off", tool=held.card.name, error=type(error).__name__)
        told = str(error) if isinstance(error, ServerLost) else f"the call broke off ({type(error).__name__})"
        return Try(Acted.AMBIGUOUS, told, hopeless=isinstance(error, MISTAKES))
    return Try(Acted.RETURNED, result=result)


def _withheld(card: ToolCard, error: AnswerWithheld) -> Try:
    """A success whose body was not read, by the table of perdure/sdk/outcomes.py."""
    meaning, told = meaning_of_withheld(card.effect, error.method), f"{error.code}: {error}"
    if meaning is Meaning.REFUSED:
        return Try(Acted.REFUSED, f"{told}; {WITHHELD_ADVICE}")
    if meaning is Meaning.AMBIGUOUS:
        return Try(Acted.AMBIGUOUS, told)
    note = f"the target accepted the {error.method} request, so it was carried out; {error} and was not read"
    _log.warning("tool_answer_withheld", tool=card.name, code=error.code, limit=error.limit)
    return Try(Acted.RETURNED, result=result_of({"status": error.code, "message": note, "limit": error.limit}))


class Undone(Exception):
    """A local tool failed. Raised through its transaction, which goes back; `told` is for the model."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


async def done_locally(held: Held, context: ToolContext) -> ToolResult:
    """Run a local tool once, within its time, in the transaction that it is given.

    Raises: Undone where the tool failed. What says that Postgres is away or in the way passes as it is: that is no
    answer of the tool's, and another attempt may well have one.
    """
    try:
        async with asyncio.timeout(held.card.timeout_seconds):
            return await held.tool.run(held.args, context)
    except (ToolRefused, ToolUnavailable) as error:
        raise Undone(error.message) from None
    except (AnswerWithheld, EgressRefused) as error:
        raise Undone(str(error)) from None
    except PerdureError:
        raise
    except Exception as error:
        if _says_the_driver(error) and store_error(error).retryable:
            raise
        if isinstance(error, TimeoutError):
            raise Undone("the tool took too long") from None
        _log.warning("local_tool_raised", tool=held.card.name, error=type(error).__name__)
        raise Undone(f"the tool failed ({type(error).__name__})") from None


def _says_the_driver(error: Exception) -> bool:
    """Whether asyncpg raised it. By its frames: a command that hangs ends in a bare TimeoutError, as a tool's time."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "asyncpg" for frame, _ in frames)


# --- What a tool call comes to: the tool message for the model, the ledger's outcome and the events, made together.

MOST_STATE_CHARACTERS = 8 * 1024
"""State updates beyond this are dropped, loudly."""
MOST_MADE_CHARACTERS = 32 * 1024
"""A call of the graph's own answers with no more: all of it rides in the turn's history."""
MOST_CHARACTERS = 64 * 1024
"""A tool message is cut here; the model is told so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A settled call in its three forms."""

    outcome: ToolOutcome
    message: NewMessage
    events: tuple[NewEvent, ...]

    @property
    def row(self) -> tuple[CallState, dict[str, JsonValue], NewMessage]:
        """State, outcome and message as the ledger takes them."""
        return self.outcome.state, self.outcome.model_dump(mode="json"), self.message


def settled_answer(call: ToolCall, card: ToolCard, approval: Covering | None, result: ToolResult) -> Answer:
    """A result. Where a reviewer changed the arguments, the model is told so (S0-39).

    Of its state updates those stay that its card names and that are small: a state rides through histories.
    """
    output: JsonValue = result.output
    if approval is not None and approval.edited:
        output = as_changed(approval.args, output)
    patch = {name: value for name, value in result.state.items() if name in card.wants_state}
    if len(canonical_json(patch)) > MOST_STATE_CHARACTERS:
        _log.warning("tool_state_dropped", tool=card.name, most=MOST_STATE_CHARACTERS)
        patch = {}
    if call.ask.args is not None and len(canonical_json(output)) > MOST_MADE_CHARACTERS:
        return error_answer(call, f"the answer has more than {MOST_MADE_CHARACTERS} characters")
    facts = plain_facts(
        result.output, call.ask.paths
    )  # rules ask about the tool's own answer, the note is no part of it
    return _answer(call, CallState.DONE, output, TOOL_RESULT, patch, facts)


def error_answer(call: ToolCall, told: str, *, wrapped: bool = False) -> Answer:
    """A failure that the model may react to; `wrapped` as a code block's results are (S0-49)."""
    body: dict[str, JsonValue] = {"status": "error", "message": told}
    return _answer(call, CallState.FAILED, body | ({"result": None} if wrapped else {}), TOOL_ERROR)


def denial(call: ToolCall, approval: Covering | None, why: str | None) -> Answer:
    """A call that a person or a rule did not allow; a person's reason is told, where one refused it."""
    body: dict[str, JsonValue] = {"status": "denied", "message": why or "the call was not allowed"}
    if approval is not None and approval.status in REASONED and approval.comment:
        body["reason"] = approval.comment
    return _answer(call, CallState.DENIED, body, TOOL_DENIED)


def _answer(
    call: ToolCall,
    state: CallState,
    output: JsonValue,
    event: str,
    patch: dict[str, JsonValue] | None = None,
    facts: dict[str, JsonValue] | None = None,
) -> Answer:
    content = canonical_json(output)
    if len(content) > MOST_CHARACTERS:
        content = content[:MOST_CHARACTERS] + f"… [cut: {len(content)} characters]"
    tokens = estimated_tokens(content)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call.ask.call_id, tokens=tokens)
    ref = MessageRef(id=message.id, role=Role.TOOL, text=preview(content), tokens=tokens, call_id=call.ask.call_id)
    outcome = ToolOutcome(
        call_id=call.ask.call_id,
        state=state,
        message=ref,
        patch=patch or {},
        facts=facts or {},
        output=output if call.ask.args is not None else None,
    )
    shown: dict[str, JsonValue] = {"tool": call.ask.tool, "result": preview(content), "message_id": message.id}
    return Answer(outcome, message, (NewEvent(event, shown, call.ask.call_id),))
