"""Claiming a tool call: who may run it, with which arguments; else its outcome. policy/ledger.py decides."""

from dataclasses import dataclass

from pydantic import JsonValue

from activities.deps import Deps
from activities.results import denial
from activities.toolbox.blocks import BlockTool, block_tool
from activities.toolbox.mcp import McpTool
from contracts.agents import EffectClass, ToolCard
from contracts.errors import Problem, UpstreamUnavailable
from contracts.events import TOOL_ERROR, TOOL_EXECUTING
from contracts.tools import CallState, ToolCall, ToolOutcome
from perdure.tools import Tool
from policy.covering import GIVEN, Covering, why_lapsed, why_void
from policy.ledger import Attempt, Claim, claim_tool, reservation_deadline
from policy.outdated import InForce
from policy.refusals import REFUSED
from store import content, tool_calls
from store.database import Connection
from store.journal import NewEvent, write
from store.withdrawals import void as void_approval


@dataclass(frozen=True, slots=True)
class Held:
    """A call that this attempt may do."""

    tool: Tool | BlockTool | McpTool
    locked: tool_calls.Locked
    args: dict[str, JsonValue]
    epoch: int
    attempt: Attempt
    claimed_at: float
    """By activities/uptime.py, just before the claim was asked for."""

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
    locked = await tool_calls.lock(tx, call, card)
    if locked is None and call.ask.args is not None and card is not None and not card.needs_approval:
        await tool_calls.plan(tx, call, card)
        locked = await tool_calls.lock(tx, call, card)
    if locked is None:
        return _not_run(call, Problem(code="call_not_planned", message="no model asked for this call"))
    tool: Tool | BlockTool | McpTool | None = (
        await block_tool(tx, deps.tables, deps.sandbox, agent, card) if card else None
    )
    tool = tool or deps.toolbox.find(call.agent_id, call.ask.tool, card)
    void = why_void(card, tool.card if tool else None, locked.tool_version, locked.approval, locked.waived)
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
        await _need_current_card(tx, call, card)
    if verdict is Claim.DENIED or tool is None or card is None:
        void = await _voided(tx, call, locked.approval, void)
        answer = denial(call, locked.approval, void)
        epoch = locked.row.held.epoch if locked.row.held else 0
        await tool_calls.settle(tx, call, epoch, *answer.row, list(answer.events))
        return answer.outcome
    if locked.approval is not None and locked.approval.ready_at is not None and locked.approval.holds(locked.now):
        left = (locked.approval.ready_at - locked.now).total_seconds()
        raise UpstreamUnavailable("on_hold", "the call is approved and does not start yet", retry_after_seconds=left)
    deadline = reservation_deadline(locked.now)
    event = NewEvent(TOOL_EXECUTING, {"tool": card.name, "attempt": attempt.number}, call.ask.call_id)
    epoch = await tool_calls.reserve(tx, call, locked, attempt, deadline, card.timeout_seconds, event)
    args = locked.approval.args if locked.approval else locked.args
    return Held(tool, locked, args, epoch, attempt, began)


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


async def _need_current_card(tx: Connection, call: ToolCall, card: ToolCard) -> None:
    """This worker's tool is not the one that the call is for.

    Where the published agent still has that one, the worker is behind or ahead of a deploy, and another attempt
    may find the right one; else the tool has changed for good and the call is void.

    Raises: UpstreamUnavailable `tool_not_here`.
    """
    published = (await content.current(tx, call.agent_id)).card(card.name)
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
