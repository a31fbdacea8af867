"""The eight nodes of `context_assembly`, by their ids."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.contracts.activities import TurnContext
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.context_assembly import AssembleAsk, Assembled, Bundle, PlannedAssembly, PlannedTool, Source
from perdure.contracts.errors import InvariantBroken, Problem
from perdure.contracts.events import BUDGET, STAGE
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.core.agents.message_verdicts import Question, Safety, empathy_of, expected_output, intent_of, safety_of
from perdure.core.calls.context_assembly import Reuse, ToolInputs, context_guidance, group_phases, reuse_of, upstream_of
from perdure.core.calls.ledger import STOPPED
from perdure.core.text import estimated_tokens
from perdure.graph.nodes.await_verdict import AwaitVerdict
from perdure.graph.nodes.call_model import BUDGET_CODES, STOP_CODES, CallModel, add_costs, end_status, reached_limit
from perdure.graph.nodes.fields import AWAITING_HITL, bundles_of, error_of, messages_of, plan_of
from perdure.graph.nodes.pause import gate_patch, memory_patch, plan_patch
from perdure.graph.nodes.run_tools import RunTools
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State


async def ask_model(state: State, ports: Ports, question: Question) -> ModelReply:
    """Returns the model's verdict, or its problem. The call takes no longer than the agent allows."""
    plan = assembly_of(state)
    return await ports.model.complete(
        ModelCallRequest(
            messages=tuple(messages_of(state)),
            tools=(),
            stage=question.value,
            output=expected_output(question, plan.intents),
            patience_seconds=plan.patience_seconds,
        )
    )


def assembly_of(state: State) -> PlannedAssembly:
    """Returns the assembly of the turn's plan. Preflight ends a turn whose plan has none.

    Raises: InvariantBroken `no_assembly`.
    """
    planned = plan_of(state).assembly
    if planned is None:
        raise InvariantBroken("no_assembly", "a turn whose agent has no assembly passed its preflight")
    return planned


def is_stop(reply: ModelReply) -> bool:
    """Returns whether the turn was stopped during the call."""
    return reply.problem is not None and reply.problem.code == STOPPED.code


# preflight classifies intent and safety in parallel, before any other work of the turn. Safety keywords take the turn
# over earlier. They are searched when the turn is loaded, because the whole message is available there.
NO_ASSEMBLY = Problem(code="no_assembly", message="the agent has no `assembly`, which its topology needs")


@dataclass(frozen=True, slots=True)
class Classify:
    """A node that starts the turn and classifies it. A missing or unreadable verdict clears nothing."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the verdicts and what the turn pinned. A turn that waits for a decision was cleared before it opened
        its request, so a cold resume does not classify it again."""
        context = await ports.memory.load()
        patch: Patch = {"completed_stages": ["preflight"], "status": "running"}
        if context.problem is not None:
            return patch | {"error": context.problem.model_dump(mode="json"), "status": end_status(context.problem)}
        if context.plan is None or context.plan.assembly is None:
            return patch | {"error": NO_ASSEMBLY.model_dump(mode="json"), "status": "failed"}
        patch |= plan_patch(context) | _context_patch(context)
        if context.user_message is not None:
            patch |= memory_patch(context, context.user_message) | gate_patch(context, context.user_message)
        after = {**state, **patch}
        if context.pending:
            ports.events.emit(STAGE, {"stage": "preflight", "resumed": True})
            return patch | {"safety_hijacked": False, "intent": assembly_of(after).default_intent}
        if context.context is not None and context.context.danger:
            return patch | _hijacked_patch(after, ports, context.context.danger)
        problem = reached_limit(after)
        if problem is not None:
            ports.events.emit(BUDGET, {"code": problem.code, "message": problem.message})
            return patch | {"error": problem.model_dump(mode="json"), "status": "limited"}
        return patch | await _read_verdicts(after, ports)


def _hijacked_patch(state: State, ports: Ports, category: str) -> Patch:
    """Returns the patch for a message with safety keywords. No model is called and no budget is checked."""
    intent = assembly_of(state).default_intent
    ports.events.emit(
        STAGE, {"stage": "preflight", "intent": intent, "safety_hijacked": True, "safety_category": category}
    )
    return {"safety_hijacked": True, "safety_category": category, "intent": intent}


async def _read_verdicts(state: State, ports: Ports) -> Patch:
    safety, intent = await asyncio.gather(
        ask_model(state, ports, Question.SAFETY), ask_model(state, ports, Question.INTENT)
    )
    patch = add_costs(state, safety, intent)
    verdict = safety_of(safety.value)
    problem = _safety_problem(safety, intent, verdict)
    if problem is not None:
        if problem.code in BUDGET_CODES:
            ports.events.emit(BUDGET, {"code": problem.code, "message": problem.message})
        return patch | {"error": problem.model_dump(mode="json"), "status": end_status(problem)}
    plan = assembly_of(state)
    chosen_intent = intent_of(intent.value, plan.intents, plan.default_intent)
    ports.events.emit(
        STAGE,
        {
            "stage": "preflight",
            "intent": chosen_intent,
            "safety_hijacked": verdict.hijacked,
            "safety_category": verdict.category,
        },
    )
    return patch | {"safety_hijacked": verdict.hijacked, "safety_category": verdict.category, "intent": chosen_intent}


def _safety_problem(safety: ModelReply, intent: ModelReply, verdict: Safety) -> Problem | None:
    """Returns the problem that ends the turn before it is classified: a stop or a spent budget. If only the call for
    the intent found its budget spent, a turn that is taken over continues, because the fixed text costs nothing."""
    problems = (reply.problem for reply in (safety, intent))
    problem = next((each for each in problems if each is not None and each.code in STOP_CODES), None)
    only_intent = safety.problem is None or safety.problem.code not in STOP_CODES
    spent = problem is not None and problem.code in BUDGET_CODES
    return None if spent and only_intent and verdict.hijacked else problem


def _context_patch(context: TurnContext) -> Patch:
    loaded = context.context
    if loaded is None:
        return {}
    return {"slice_hash": loaded.slice_hash, "kept_bundles": [each.model_dump(mode="json") for each in loaded.kept]}


# safety_intervention sends the agent's fixed text, word for word; no model is called from here on.
@dataclass(frozen=True, slots=True)
class Intervene:
    """A node that answers with the fixed text. The end of the turn stores the answer."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the answer, or none if the turn failed or was stopped before it was classified."""
        if error_of(state) is not None:
            return {"completed_stages": ["safety_intervention"]}
        text = assembly_of(state).intervention
        answer = MessageRef(role=Role.ASSISTANT, text=text, tokens=estimated_tokens(text))
        ports.events.emit(STAGE, {"stage": "safety_intervention", "category": state["safety_category"]})
        return {
            "completed_stages": ["safety_intervention"],
            "messages": [message.model_dump(mode="json") for message in [*messages_of(state), answer]],
        }


# assembly_gate lists the tools of this turn in phases, before both branches start.
@dataclass(frozen=True, slots=True)
class OpenGate:
    """A node that groups the tools. Apps with a cycle were rejected when they were loaded."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the phases as lists of tool names."""
        grouped: list[JsonValue] = [
            [*names] for names in group_phases({tool.name: tool.dependencies for tool in assembly_of(state).tools})
        ]
        ports.events.emit(STAGE, {"stage": "assembly_gate", "phases": grouped})
        return {"completed_stages": ["assembly_gate"], "phases": grouped}


# context_assembly: phase after phase, each tool runs, or its earlier output is used again.
ASSEMBLY_FAILED = "assembly_failed"
"""The error code of a turn whose context could not be assembled."""


@dataclass(frozen=True, slots=True)
class RunPhases:
    """A node that assembles the context. The outputs of tools are stored elsewhere; the state refers to them."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the bundles and the missing sections. If a required tool fails, returns its error, and no later phase
        starts."""
        plan = assembly_of(state)
        build = ContextBuild(plan, {tool.name: tool for tool in plan.tools}, bundles_of(state, "kept_bundles"))
        grouped, slice_hash = state["phases"], str(state["slice_hash"])
        for number, names in enumerate(grouped if isinstance(grouped, list) else [], 1):
            phase = [build.tools[str(name)] for name in names] if isinstance(names, list) else []
            reuses = {tool.name: build.reuse_for(tool, slice_hash) for tool in phase}
            calls = [build.call_of(tool, slice_hash) for tool in phase if reuses[tool.name] is Reuse.RUN]
            outcomes = await ports.tools.assemble(calls) if calls else []
            build.add_results(phase, reuses, outcomes)
            ports.events.emit(STAGE, _phase_event_data(number, reuses, outcomes))
            problem = _ending_problem(build.tools, outcomes)
            if problem is not None:
                ended: Patch = {"error": problem.model_dump(mode="json"), "status": end_status(problem)}
                return {"completed_stages": ["context_assembly"], **build.patch(), **ended}
        return {"completed_stages": ["context_assembly"], **build.patch()}


@dataclass(slots=True)
class ContextBuild:
    """A context during its assembly."""

    plan: PlannedAssembly
    tools: Mapping[str, PlannedTool]
    kept: Mapping[str, Bundle]
    bundles: dict[str, Bundle] = field(default_factory=dict)
    """The outputs so far, in the order of the phases."""
    degraded: list[JsonValue] = field(default_factory=list)

    def reuse_for(self, tool: PlannedTool, slice_hash: str) -> Reuse:
        """Returns whether the tool runs. All earlier phases must have ended, because their outputs are its input."""
        return reuse_of(
            self.kept.get(tool.name), ToolInputs(slice_hash, self._input_digest(tool, slice_hash)), self.plan.threshold
        )

    def call_of(self, tool: PlannedTool, slice_hash: str) -> AssembleAsk:
        """Returns the call of the tool, with the outputs of earlier phases."""
        return AssembleAsk(
            tool=tool.name,
            timeout_seconds=tool.timeout_seconds,
            slice_hash=slice_hash,
            upstream=self._input_digest(tool, slice_hash),
            sources=tuple(Source(tool=each.tool, turn_id=each.turn_id) for each in self.bundles.values()),
        )

    def add_results(
        self, phase: Sequence[PlannedTool], reuses: Mapping[str, Reuse], outcomes: Sequence[Assembled]
    ) -> None:
        """Adds the results of a phase in its order, whichever tool ended first."""
        returned = {outcome.tool: outcome.bundle for outcome in outcomes}
        for tool in phase:
            bundle = returned.get(tool.name) if reuses[tool.name] is Reuse.RUN else self.kept[tool.name]
            if bundle is not None:
                self.bundles[tool.name] = bundle
            else:
                self.degraded.append(tool.name)

    def patch(self) -> Patch:
        """Returns the patch with the references and the missing sections."""
        return {
            "bundles": [bundle.model_dump(mode="json") for bundle in self.bundles.values()],
            "degraded_sections": self.degraded,
        }

    def _input_digest(self, tool: PlannedTool, slice_hash: str) -> str:
        """Returns the digest of the tool's input: outputs that it depends on, and outputs of earlier phases with a key
        that is injected into it."""
        outputs = {
            name: bundle.digest
            for name, bundle in self.bundles.items()
            if name in tool.dependencies or not {*tool.injects}.isdisjoint(bundle.gives)
        }
        return upstream_of(tool.basis, slice_hash if tool.hears else None, outputs)


def _ending_problem(tools: Mapping[str, PlannedTool], outcomes: Sequence[Assembled]) -> Problem | None:
    """Returns a stop, or the problem of the first required tool that failed."""
    failed = [(each.tool, each.problem) for each in outcomes if each.problem is not None]
    for _, problem in failed:
        if problem.code == STOPPED.code:
            return problem
    for name, problem in failed:
        if not tools[name].optional:
            return Problem(code=ASSEMBLY_FAILED, message=f"the context could not be put together: {problem.message}")
    return None


def _phase_event_data(number: int, reuses: Mapping[str, Reuse], outcomes: Sequence[Assembled]) -> dict[str, JsonValue]:
    failed = {outcome.tool: outcome.problem for outcome in outcomes if outcome.problem is not None}
    return {
        "stage": "context_assembly",
        "phase": number,
        "ran": [name for name, each in reuses.items() if each is Reuse.RUN and name not in failed],
        "skipped": [{"tool": name, "why": each.value} for name, each in reuses.items() if each is not Reuse.RUN],
        "failed": [
            {"tool": name, "code": problem.code, "message": problem.message} for name, problem in failed.items()
        ],
    }


# empathy reads the tone that the answer needs, in parallel with the assembly; without it the turn continues.
@dataclass(frozen=True, slots=True)
class ReadTone:
    """A node that asks the model for tone and guidance."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the tone and the guidance; empty if the model gave none."""
        reply = await ask_model(state, ports, Question.EMPATHY)
        patch: Patch = {"completed_stages": ["empathy"], **add_costs(state, reply)}
        if is_stop(reply):
            return patch | {"error": STOPPED.model_dump(mode="json"), "status": "stopped"}
        tone_fields = empathy_of(reply.value)
        ports.events.emit(STAGE, {"stage": "empathy", "tone": tone_fields.get("tone", "")})
        return patch | {"empathy": tone_fields}


# context_format prepares the results of both branches for the prompt of the answer.
@dataclass(frozen=True, slots=True)
class FormatContext:
    """A node that lists the sections by reference. Missing sections and the guidance become text."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the sections and the guidance. A failed assembly is not formatted."""
        patch: Patch = {"completed_stages": ["context_format"]}
        if error_of(state) is not None:
            return patch
        bundles, missing, tone = bundles_of(state, "bundles"), state["degraded_sections"], state["empathy"]
        degraded = [str(name) for name in missing] if isinstance(missing, list) else []
        read = tone if isinstance(tone, dict) else {}
        notes = {
            "Intent": str(state["intent"]),
            "Tone": str(read.get("tone", "")),
            "Advice": str(read.get("guidance", "")),
        }
        sections: list[JsonValue] = [
            Source(tool=each.tool, turn_id=each.turn_id).model_dump(mode="json") for each in bundles.values()
        ]
        degraded_sections: list[JsonValue] = [*degraded]
        ports.events.emit(STAGE, {"stage": "context_format", "sections": [*bundles], "degraded": degraded_sections})
        return patch | {"context_sections": sections, "context_guidance": context_guidance(degraded, notes)}


# The model and its tools alternate in this node, with the usual gates and approvals. The topology comes back to it
# after each round, so that a long run can end there and a new one can continue. A pause leaves it for `finalize` and
# returns to it through its own entry.
@dataclass(frozen=True, slots=True)
class Navigate:
    """A node that calls the model and runs the calls of its answer, for one round at a time. A cut answer is continued
    in the next step."""

    call_model: CallModel
    all_rounds: bool = False
    """True if the node continues until an answer has no calls, a reviewer must decide, or a limit is reached."""
    await_verdict: AwaitVerdict = field(default_factory=lambda: AwaitVerdict(ungated_first=True))
    run_tools: RunTools = field(default_factory=lambda: RunTools(ungated_first=True))

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the patch of the round. After a pause it reads the records first; it never passes an unreadable
        record. The stage is completed by an answer without calls, or by an error."""
        patch: Patch = await self.await_verdict(state, ports) if state["pending_mutation"] else {}
        after = {**state, **patch}
        while _continues(after):
            answers = not after["pending_tool_calls"]
            patch |= await (self.call_model(after, ports) if answers else self.run_tools(after, ports))
            after = {**state, **patch}
            if answers and not after["pending_tool_calls"]:
                if _continues(after) and after.get("continuation"):
                    return patch
                break
            if not (answers or self.all_rounds) and _continues(after):
                return patch
        return patch if after["status"] == AWAITING_HITL else patch | {"completed_stages": ["navigator"]}


def _continues(state: State) -> bool:
    return state["error"] is None and state["status"] != AWAITING_HITL


# finalize sets the final status of the run, on every path.
@dataclass(frozen=True, slots=True)
class Finalize:
    """A node that sets the status. Pauses, errors, limits and stops remain; every other run is completed."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the status."""
        if state["status"] == AWAITING_HITL:
            return {}
        error = error_of(state)
        status = "completed" if error is None else end_status(error)
        return {"completed_stages": ["finalize"], "status": "limited" if state["status"] == "limited" else status}


NODES: dict[str, Node] = {
    "preflight": Classify(),
    "safety_intervention": Intervene(),
    "assembly_gate": OpenGate(),
    "context_assembly": RunPhases(),
    "empathy": ReadTone(),
    "context_format": FormatContext(),
    # Messages that are sent to the turn after its safety check are unchecked, so they must not reach the answer.
    "navigator": Navigate(CallModel(deaf=True, folds=True, continues=True)),
    "finalize": Finalize(),
}
NODES_2: dict[str, Node] = {**NODES, "navigator": Navigate(CallModel(deaf=True, folds=True))}
"""The nodes of version 2, whose navigator continues no cut answer."""
NODES_1: dict[str, Node] = {**NODES, "navigator": Navigate(CallModel(deaf=True), all_rounds=True)}
"""The nodes of version 1, whose navigator keeps every message and has all rounds in one step."""
