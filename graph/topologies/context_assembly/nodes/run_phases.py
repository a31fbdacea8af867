"""context_assembly: phase after phase, each tool run or its earlier output used again (S1-25 to S1-37)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.events import STAGE
from contracts.messages import Patch
from contracts.pipeline import AssembleAsk, Assembled, Bundle, PlannedAssembly, PlannedTool, Source
from graph.nodes.call_model import ended_by
from graph.nodes.reading import bundles_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.context_assembly.nodes.asking import assembly_of
from policy.refusals import STOPPED
from policy.skip import Gate, Now, gate, upstream_of

FAILED = "assembly_failed"
"""The code of a turn whose context could not be put together."""


@dataclass(frozen=True, slots=True)
class RunPhases:
    """Put the context together. What a tool has found stays outside; here are references."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The bundles, and the sections that are missing; or the error of a required tool, after which no later phase
        begins."""
        plan = assembly_of(state)
        put = Putting(plan, {tool.name: tool for tool in plan.tools}, bundles_of(state, "kept_bundles"))
        grouped, slice_hash = state["phases"], str(state["slice_hash"])
        for number, names in enumerate(grouped if isinstance(grouped, list) else [], 1):
            phase = [put.tools[str(name)] for name in names] if isinstance(names, list) else []
            gates = {tool.name: put.gate_of(tool, slice_hash) for tool in phase}
            asks = [put.ask(tool, slice_hash) for tool in phase if gates[tool.name] is Gate.RUN]
            outcomes = await ports.tools.assemble(asks) if asks else []
            put.take(phase, gates, outcomes)
            ports.events.emit(STAGE, _told(number, gates, outcomes))
            problem = _ending(put.tools, outcomes)
            if problem is not None:
                ended: Patch = {"error": problem.model_dump(mode="json"), "status": ended_by(problem)}
                return {"completed_stages": ["context_assembly"], **put.patch(), **ended}
        return {"completed_stages": ["context_assembly"], **put.patch()}


@dataclass(slots=True)
class Putting:
    """A context being put together."""

    plan: PlannedAssembly
    tools: Mapping[str, PlannedTool]
    kept: Mapping[str, Bundle]
    bundles: dict[str, Bundle] = field(default_factory=dict)
    """What is there by now, in the order of the phases."""
    degraded: list[JsonValue] = field(default_factory=list)

    def gate_of(self, tool: PlannedTool, slice_hash: str) -> Gate:
        """Asked when all earlier phases have ended: what they brought feeds the tool."""
        return gate(self.kept.get(tool.name), Now(slice_hash, self._upstream(tool, slice_hash)), self.plan.threshold)

    def ask(self, tool: PlannedTool, slice_hash: str) -> AssembleAsk:
        """The tool, with all that earlier phases brought."""
        return AssembleAsk(
            tool=tool.name,
            timeout_seconds=tool.timeout_seconds,
            slice_hash=slice_hash,
            upstream=self._upstream(tool, slice_hash),
            sources=tuple(Source(tool=each.tool, turn_id=each.turn_id) for each in self.bundles.values()),
        )

    def take(self, phase: Sequence[PlannedTool], gates: Mapping[str, Gate], outcomes: Sequence[Assembled]) -> None:
        """What the phase came to, in its own order, whichever ended first."""
        came = {outcome.tool: outcome.bundle for outcome in outcomes}
        for tool in phase:
            bundle = came.get(tool.name) if gates[tool.name] is Gate.RUN else self.kept[tool.name]
            if bundle is not None:
                self.bundles[tool.name] = bundle
            else:
                self.degraded.append(tool.name)

    def patch(self) -> Patch:
        """The references and what is missing."""
        return {
            "bundles": [bundle.model_dump(mode="json") for bundle in self.bundles.values()],
            "degraded_sections": self.degraded,
        }

    def _upstream(self, tool: PlannedTool, slice_hash: str) -> str:
        """Of what it depends on, and of whatever else has a key that is injected, from any earlier phase."""
        outputs = {
            name: bundle.digest
            for name, bundle in self.bundles.items()
            if name in tool.dependencies or not {*tool.injects}.isdisjoint(bundle.gives)
        }
        return upstream_of(tool.basis, slice_hash if tool.hears else None, outputs)


def _ending(tools: Mapping[str, PlannedTool], outcomes: Sequence[Assembled]) -> Problem | None:
    """A stop, or the first required tool that failed."""
    failed = [(each.tool, each.problem) for each in outcomes if each.problem is not None]
    for _, problem in failed:
        if problem.code == STOPPED.code:
            return problem
    for name, problem in failed:
        if not tools[name].optional:
            return Problem(code=FAILED, message=f"the context could not be put together: {problem.message}")
    return None


def _told(number: int, gates: Mapping[str, Gate], outcomes: Sequence[Assembled]) -> dict[str, JsonValue]:
    failed = {outcome.tool: outcome.problem for outcome in outcomes if outcome.problem is not None}
    return {
        "stage": "context_assembly",
        "phase": number,
        "ran": [name for name, each in gates.items() if each is Gate.RUN and name not in failed],
        "skipped": [{"tool": name, "why": each.value} for name, each in gates.items() if each is not Gate.RUN],
        "failed": [
            {"tool": name, "code": problem.code, "message": problem.message} for name, problem in failed.items()
        ],
    }
