"""The ten nodes of `skill_pipeline`, by their ids."""

import re
from dataclasses import dataclass, replace

from pydantic import JsonValue

from perdure.contracts.approvals import GatedCall, RequestKind
from perdure.contracts.errors import Problem
from perdure.contracts.events import SKILL_INJECTED, SKILL_SELECTED
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.contracts.skills import SKILL_ID_PATTERN
from perdure.core.agents.toolsets import with_dependencies
from perdure.core.approvals.gates import RULE_FORCED_CHECKPOINT
from perdure.graph.nodes.await_verdict import AwaitVerdict
from perdure.graph.nodes.call_model import CallModel, end_status
from perdure.graph.nodes.fields import AWAITING_HITL, INITIAL, SYNTHESIS, error_of, messages_of, number_of, plan_of
from perdure.graph.nodes.pause import gate_patch, memory_patch, pause_at_checkpoint, plan_patch
from perdure.graph.nodes.run_tools import RunTools
from perdure.graph.nodes.skills import (
    carried_ids,
    carried_patch,
    current_entities,
    explained_patch,
    with_tiers,
    without_skills,
)
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State


# memory_node loads the user's message, working memory, and a gate that was opened before.
@dataclass(frozen=True, slots=True)
class LoadMemory:
    """A node that puts the loaded context into the state. A gate is the same from state (warm) and store (cold)."""

    keeps_skills: bool = False
    """True if the turn starts with the skills that its conversation has loaded."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the fields from the one load of this turn, without another activity."""
        context = await ports.memory.load()
        if context.problem is not None or context.user_message is None:
            return {}
        patch = memory_patch(context, context.user_message)
        if state["pending_mutation"] is None:
            patch |= gate_patch(context, context.user_message)
        return patch | carried_patch({**state, **patch}, plan_of(state)) if self.keeps_skills else patch


# system_prompt_node sets persona, user block and budget of this turn. The texts are stored elsewhere.
@dataclass(frozen=True, slots=True)
class SetSystemPrompt:
    """A node that starts a new turn from the plan that it pinned."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the fields of the plan. The prompt is named here and assembled for each model call."""
        patch: Patch = {
            "llm_phase": INITIAL,
            "skill_injection_done": False,
            "selected_skill_ids": [],
            "status": "running",
        }
        context = await ports.memory.load()
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": end_status(context.problem)}
        return patch | plan_patch(context)


# initial_llm_call and synthesis_llm_call: one call, two phases.
@dataclass(frozen=True, slots=True)
class CallPhase:
    """A node that calls the model in its phase. The synthesis calls it only if a skill was injected."""

    phase: str
    call: CallModel
    select: Node | None = None
    """Selects the skills that the answer names, if it has no calls."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the patch of the call, with the phase."""
        if self.phase == SYNTHESIS and not state["skill_injection_done"]:
            return {"llm_phase": self.phase, "pending_tool_calls": []}
        called = await self.call({**state, "llm_phase": self.phase}, ports)
        patch: Patch = {"llm_phase": self.phase, **called}
        after = {**state, **patch}
        if self.select is None or error_of(after) is not None or after["status"] == AWAITING_HITL:
            return patch
        return (
            patch if after["pending_tool_calls"] or after["continuation"] else patch | await self.select(after, ports)
        )


# skill_select_node selects the skills that the model named and that are not injected yet.
SKILL_PATTERN = r"SKILL_SELECT:([a-z][a-z0-9_]{0,63})"


@dataclass(frozen=True, slots=True)
class SelectSkills:
    """A node that keeps the marks of the latest answer that name a skill of this agent. A model may select a skill that
    an earlier turn loaded; it then gets its second call as for any other skill."""

    explains: bool = False
    """True if the model is called again, once, if its answer only names skills that cannot be loaded."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the matching marks. They were found in the whole answer when it was settled."""
        marks, injected = state["extracted"], state["injected_skill_ids"]
        known, carried = plan_of(state).skill_ids, carried_ids(messages_of(state))
        if not isinstance(marks, list) or not isinstance(injected, list):
            return {"selected_skill_ids": []}
        selected: list[JsonValue] = [
            mark for mark in marks if mark in known and (mark not in injected or mark in carried)
        ]
        if selected:
            ports.events.emit(SKILL_SELECTED, {"skill_ids": selected})
        elif self.explains and messages_of(state)[-1].role is not Role.ASSISTANT:
            explained = explained_patch(state, [*map(str, marks)])
            return {"selected_skill_ids": [], "skill_injection_done": True, **explained}
        return {"selected_skill_ids": selected}


# skill_inject_node adds one system message for each selected skill and each of its dependencies. The texts are stored
# with the agent. The model call inserts them, and marks them in the injection ledger when it is claimed. A skill is
# injected once per turn (`injected_skill_ids`). If the turn began with it, its text moves to the end instead, so that
# there is one copy. If an earlier turn injected it, its event has `again`.
@dataclass(frozen=True, slots=True)
class InjectSkills:
    """A node that adds messages with references to skills, dependencies first."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the messages; each skill is injected once per turn."""
        selected, injected = state["selected_skill_ids"], state["injected_skill_ids"]
        before, active = state["messages"], state["active_skills"]
        if not isinstance(selected, list) or not isinstance(injected, list) or not isinstance(before, list):
            return {}
        plan, memory, carried = plan_of(state), state["memory_context"], carried_ids(messages_of(state))
        injected_before = memory.get("injected") if isinstance(memory, dict) else None
        entities_now = current_entities(state, plan)
        again_ids = [each for each in map(str, selected) if each in carried]
        wanted = with_dependencies(plan, map(str, selected))
        new_ids = [each for each in wanted if each not in injected or each in again_ids]
        active_skills = with_tiers(active, plan, new_ids)
        messages: list[JsonValue] = without_skills(before, again_ids)
        for skill_id in new_ids:
            entities = entities_now if skill_id in selected else ()
            ref = MessageRef(role=Role.SYSTEM, skill_id=skill_id, entities=entities)
            messages.append(ref.model_dump(mode="json"))
            data: dict[str, JsonValue] = {"skill_id": skill_id, "tier": active_skills[skill_id]}
            again: dict[str, JsonValue] = (
                {"again": True} if isinstance(injected_before, list) and skill_id in injected_before else {}
            )
            ports.events.emit(SKILL_INJECTED, data | again)
        patch: Patch = {
            "messages": messages,
            "injected_skill_ids": [*injected, *(each for each in new_ids if each not in injected)],
            "active_skills": active_skills,
            "selected_skill_ids": [],
            "skill_injection_done": bool(new_ids),
        }
        if entities_now:
            patch["injected_entity_ids"] = [*entities_now]
        return patch


# approval_node opens a checkpoint that a request forces before the synthesis. Checkpoints of rules open in tool_node,
# in either phase.
@dataclass(frozen=True, slots=True)
class CheckApproval:
    """A node that opens the forced checkpoint; without one, it changes nothing."""

    once: bool = False
    """True if the checkpoint does not open again for a skill that the synthesis selects."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the pause, which skips the synthesis. An invalid name fails the turn, so that no checkpoint is
        skipped."""
        metadata = state["metadata"]
        forced = metadata.get("hitl_checkpoint_type") if isinstance(metadata, dict) else None
        if not forced or error_of(state) is not None or (self.once and state["llm_phase"] == SYNTHESIS):
            return {}
        if not isinstance(forced, str) or not re.fullmatch(SKILL_ID_PATTERN, forced):
            problem = Problem(
                code="bad_checkpoint",
                message="metadata.hitl_checkpoint_type must name a checkpoint: small letters, digits and _",
            )
            return {"error": problem.model_dump(mode="json"), "status": "failed", "skill_injection_done": False}
        gated = GatedCall(
            call_id="", tool="", rule=RULE_FORCED_CHECKPOINT, kind=RequestKind.CHECKPOINT, checkpoint=forced
        )
        return pause_at_checkpoint(state, ports, [gated])


@dataclass(frozen=True, slots=True)
class FormatOutput:
    """A node that sets the status. Pauses and errors remain; every other run is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the status. An end counts as an iteration. A pause does not, because each check of the records would
        use up the limit."""
        iteration: Patch = {"iteration": number_of(state, "iteration") + 1}
        error = error_of(state)
        if error is not None:
            return iteration if state["status"] == "limited" else iteration | {"status": end_status(error)}
        return {} if state["status"] == AWAITING_HITL else iteration | {"status": "completed"}


_CALL_3 = CallModel(extract_pattern=SKILL_PATTERN)
_CALL_6 = replace(_CALL_3, folds=True, continues=True)
_CALL = replace(_CALL_6, extract_pattern="", skill_marks=True, loads_skills=True)

NODES: dict[str, Node] = {
    "system_prompt_node": SetSystemPrompt(),
    "memory_node": LoadMemory(keeps_skills=True),
    "resume_guard": AwaitVerdict(refers=True, counts=True),
    "initial_llm_call": CallPhase(INITIAL, _CALL),
    "tool_node": RunTools(),
    "skill_select_node": SelectSkills(explains=True),
    "skill_inject_node": InjectSkills(),
    "approval_node": CheckApproval(once=True),
    "synthesis_llm_call": CallPhase(SYNTHESIS, _CALL, SelectSkills(explains=True)),
    "output_format": FormatOutput(),
}
NODES_6: dict[str, Node] = {
    **NODES,
    "memory_node": LoadMemory(),
    "initial_llm_call": CallPhase(INITIAL, _CALL_6),
    "skill_select_node": SelectSkills(),
    "approval_node": CheckApproval(),
    "synthesis_llm_call": CallPhase(SYNTHESIS, _CALL_6),
}
"""The nodes of version 6, whose turns start without the skills of their conversation and whose answers show markers."""
NODES_5: dict[str, Node] = {**NODES_6, "resume_guard": AwaitVerdict(refers=True)}
"""The nodes of version 5, which does not count refused rounds."""
NODES_4: dict[str, Node] = {**NODES_6, "resume_guard": AwaitVerdict()}
"""The nodes of version 4, whose notes about refused rounds carry the reviewers' words."""
NODES_3: dict[str, Node] = {
    **NODES_4,
    "initial_llm_call": CallPhase(INITIAL, _CALL_3),
    "synthesis_llm_call": CallPhase(SYNTHESIS, _CALL_3),
}
"""The nodes of version 3, whose state keeps every message and which continues no cut answer."""
