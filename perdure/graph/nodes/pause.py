"""Pauses of a round: the requests that it opens, and the state that it leaves."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.approvals import GatedCall, RequestKind, RequestRef
from perdure.contracts.calls import ToolOutcome
from perdure.contracts.errors import Problem
from perdure.contracts.events import HITL_RULE_FIRE
from perdure.contracts.messages import CallRef, MessageRef, Patch
from perdure.contracts.values import canonical_json
from perdure.core.agents.rule_matching import MatchedRules
from perdure.core.approvals.gates import RULE_LIMIT_SPENT, exemption_event
from perdure.core.calls.rounds import rounds_in
from perdure.graph.nodes.fields import (
    AWAITING_HITL,
    NAMED_INDIVIDUAL,
    ROLE_BASED,
    messages_of,
    requests_of,
    reviewers_of,
)
from perdure.graph.ports import Ports
from perdure.graph.spec import State

MAX_CARRIED_CHARACTERS = 16 * 1024
"""The size up to which a pause carries the outcomes of a partly run round. A state is copied into workflow histories.
"""


def record_matches(ports: Ports, matches: Sequence[MatchedRules]) -> None:
    """Records every rule that fired, with its origin."""
    for each in matches:
        ports.events.emit(HITL_RULE_FIRE, each.match.event_data(), each.call_id)


def record_exemptions(ports: Ports, calls: Sequence[CallRef]) -> None:
    """Records the calls that the tenant has exempted from approval, in the same event as rules that stop a call."""
    for each in calls:
        ports.events.emit(HITL_RULE_FIRE, exemption_event(each.tool), each.call_id)


def pause_round(
    state: State,
    ports: Ports,
    gated: Sequence[GatedCall],
    unknown: Sequence[GatedCall],
    done: Sequence[ToolOutcome] = (),
    *,
    continues: bool = False,
) -> Patch:
    """Opens all requests together and removes the round from the messages. Keeps the outcomes of the calls that are
    `done`.

    The pause waits for these requests only. Decided requests are not opened again.
    """
    messages = messages_of(state)
    opened = ports.people.open_requests(gated, unknown, snapshot(state, messages[:-1]), continues=continues)
    # The checkpoints of calls that a reviewer made again stay, because passing them rebuilds their round.
    reviewed = [each for each in requests_of(state, "pending_mutation") if each.kind is RequestKind.CHECKPOINT]
    checkpoint = next((each.checkpoint for each in gated if each.checkpoint), "before_tool_call")
    return _pause_patch(state, opened, checkpoint if gated else "outcome_unknown") | {
        "pending_mutation": [*_dump_requests(reviewed), *_dump_requests(opened)],
        "pending_round": messages[-1].model_dump(mode="json"),
        "pending_tool_calls": [],
        "settled_calls": outcomes_to_carry(done),
        "messages": [message.model_dump(mode="json") for message in messages[:-1]],
    }


def outcomes_to_carry(outcomes: Sequence[ToolOutcome]) -> list[JsonValue]:
    """Returns the outcomes that a pause carries: whole while they fit, then only as settled. The ledger has all."""
    carried: list[JsonValue] = []
    remaining_characters = MAX_CARRIED_CHARACTERS
    for outcome in outcomes:
        whole = outcome.model_dump(mode="json", exclude_defaults=True)
        size = len(canonical_json(whole))
        state_only: JsonValue = {"call_id": outcome.call_id, "state": outcome.state.value}
        carried.append(whole if size <= remaining_characters else state_only)
        remaining_characters -= size if size <= remaining_characters else 0
    return carried


def pause_at_checkpoint(state: State, ports: Ports, gated: Sequence[GatedCall]) -> Patch:
    """Opens requests to review the round's results. Nothing is removed, because every call has its answer."""
    opened = ports.people.open_requests(gated, [], snapshot(state, messages_of(state), complete=True))
    return _pause_patch(state, opened, gated[0].checkpoint) | {
        "pending_mutation": _dump_requests(opened),
        "pending_round": None,
    }


def pause_at_limit(state: State, ports: Ports, problem: Problem) -> Patch:
    """Opens a request to raise the spent limit. Nothing is removed, because every call has its answer."""
    opened = ports.people.open_requests(
        [GatedCall(call_id="", tool="", rule=RULE_LIMIT_SPENT, kind=RequestKind.LIMIT, message=problem.message)],
        [],
        snapshot(state, messages_of(state), complete=True),
    )
    return _pause_patch(state, opened, RequestKind.LIMIT) | {
        "pending_mutation": _dump_requests(opened),
        "pending_round": None,
        "pending_tool_calls": [],
    }


def _pause_patch(state: State, requests: Sequence[RequestRef], checkpoint: str) -> Patch:
    reviewers = reviewers_of(state)
    return {
        "status": AWAITING_HITL,
        "hitl_required": True,
        "hitl_checkpoint_type": checkpoint,
        "hitl_approval_id": requests[0].request_id if requests else None,
        # With several named reviewers, no single one is set. The request's record has its current assignee.
        "hitl_reviewer_id": reviewers[0] if len(reviewers) == 1 else None,
        "hitl_reviewer_strategy": NAMED_INDIVIDUAL if reviewers else ROLE_BASED,
        "pending_requests": _dump_requests(requests),
    }


def _dump_requests(requests: Sequence[RequestRef]) -> list[JsonValue]:
    return [request.model_dump(mode="json") for request in requests]


# A snapshot is for the reviewer of a pause, and for a turn that starts again from its records.
RESTORED_FIELDS: Final = (
    "messages",
    "llm_phase",
    "injected_skill_ids",
    "injected_entity_ids",
    "active_skills",
    "skill_injection_done",
    "iteration",
    "consecutive_failed_resolves",
    "recent_entity_context",
    "continuation",
)
"""Fields of a whole snapshot from which a cold resume restores its state. The rest is in the records."""


def snapshot(state: State, messages: Sequence[MessageRef], *, complete: bool = False) -> dict[str, JsonValue]:
    """Returns usage, skills and entities; if `complete`, also everything that a cold resume needs.

    Messages are stored by id, because their texts are in Postgres. The ledger has everything else that a gate of a turn
    without a loaded skill needs.
    """
    fields: dict[str, JsonValue] = {
        "tokens_used": state["tokens_used"],
        "cost_microusd": state["cost_microusd"],
        "injected_skill_ids": state.get("injected_skill_ids", []),
        "recent_entity_context": state["recent_entity_context"],
    }
    if complete or fields["injected_skill_ids"] or state["consecutive_failed_resolves"]:
        fields |= {name: state[name] for name in RESTORED_FIELDS if name in state}
        fields["messages"] = [_reference_by_id(message) for message in messages]
    return fields


def restored_fields(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the state that a snapshot contains; empty if the snapshot is not whole."""
    if "messages" not in fields:
        return {}
    return {name: fields[name] for name in RESTORED_FIELDS if name in fields}


def _reference_by_id(message: MessageRef) -> JsonValue:
    reference = MessageRef(id=message.id, role=message.role) if message.id else message
    return reference.model_dump(mode="json", exclude_defaults=True)


def plan_patch(context: TurnContext) -> Patch:
    """Returns the fields that the turn pinned. The prompt is named here and assembled for each model call."""
    plan = context.plan
    if plan is None:
        return {}
    patch: Patch = {
        "plan": plan.model_dump(mode="json"),
        "agent_id": plan.agent_id,
        "agent_type": plan.agent_id,
        "system_prompt": plan.persona_key,
        "user": {"name": context.user_name or "user", "role": context.user_role},
        "metadata": context.metadata,
        "max_tokens": plan.limits.max_tokens,
        "max_cost_microusd": plan.limits.max_cost_microusd,
        "max_iterations": plan.limits.max_iterations,
    }
    return patch | {"model": plan.model} if plan.model else patch


def memory_patch(context: TurnContext, user_message: MessageRef) -> Patch:
    """Returns the patch of a new turn: its message, its working memory and the memory in its prompt."""
    memory: Patch = {"fields": context.injected_fields}
    if context.injected:
        memory["injected"] = [*context.injected]
    patch: Patch = {
        "messages": [user_message.model_dump(mode="json")],
        "memory_context": memory,
        "working": context.working,
    }
    recent = context.working.get("recent_entity_context")
    if isinstance(recent, list):
        patch["recent_entity_context"] = recent
    failed = context.working.get("consecutive_failed_resolves")
    if isinstance(failed, int):
        patch["consecutive_failed_resolves"] = failed
    return patch


def gate_patch(context: TurnContext, user_message: MessageRef) -> Patch:
    """Returns the open requests of the turn and its position: from a whole snapshot, or else from its rounds. Empty if
    the turn waits for nothing."""
    if not context.pending:
        return {}
    messages = [user_message, *context.earlier]
    gate: Patch = {
        "pending_mutation": [request.model_dump(mode="json") for request in context.pending],
        "pending_round": context.pending_round.model_dump(mode="json") if context.pending_round else None,
        "messages": [message.model_dump(mode="json") for message in messages],
        "tokens_used": context.used.tokens,
        "cost_microusd": context.used.cost_microusd,
        "iteration": sum(map(rounds_in, context.earlier)),
    }
    return gate | restored_fields(context.restored)
