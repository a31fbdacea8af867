"""Compiles topologies for LangGraph, which only this module imports.

Compilation happens once, at import; all turns of a process share the result. This module follows three rules, each
based on a measurement. Everything is async, because LangGraph sends sync code to a thread pool that a workflow does not
have. There is no checkpointer, because the workflow's history is the saved state. Tracing is off, because it does I/O.

Determinism: LangGraph dispatches and merges in the order of its node names. So these names begin with the node's
position in the topology. LangGraph's task and checkpoint ids differ on every replay and never leave this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END as LG_END
from langgraph.graph import START as LG_START
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from langsmith import tracing_context
from pydantic import JsonValue

from perdure.contracts.activities import MODEL_COMPLETE, TOOLS_RUN
from perdure.contracts.errors import InvariantBroken
from perdure.contracts.messages import Patch
from perdure.graph.ports import Ports
from perdure.graph.registry import EARLIER, TOPOLOGIES, pinned
from perdure.graph.spec import (
    END,
    FRESH,
    START,
    Edge,
    Fork,
    Goto,
    Join,
    NodeSpec,
    Outcome,
    State,
    Sub,
    Switch,
    Topology,
)
from perdure.graph.step import Body, Run, Step, StepsExhausted, watch_ports, watch_state
from perdure.graph.validate import branches_of, check, targets_of

RUN: Final = "perdure_run"
"""The key of the run in LangGraph's config."""
NUMBERED: Final = (MODEL_COMPLETE, TOOLS_RUN)
"""Activities whose calls are named by the step that makes them."""


@dataclass(frozen=True, slots=True)
class CompiledTopology:
    """A compiled topology; one per process, shared by all turns."""

    topology: Topology
    _graph: "CompiledStateGraph[Any, Any, Any, Any]"
    _names: Mapping[str, str]
    """Node id -> LangGraph's name of the node."""

    async def run(self, state: State, entry: str, ports: Ports) -> dict[str, JsonValue]:
        """Runs from the entry `entry` to the end or to a pause, and returns the final state.

        If a run has too many steps, it ends with the status `limited` and the error `iteration_limit`, which names the
        setting.

        Raises: RunRenewed if a new run should continue this one; InvariantBroken
        `unknown_entry`, `unfinished_run`, `patch_refused`, `branches_collide`; any exception of a node, which breaks
        the node's contract.

        Determinism: the same state, entry and answers of the ports give the same steps in the same order.
        """
        if entry not in self.topology.entries:
            raise InvariantBroken("unknown_entry", f"Topology `{self.topology.name}` has no entry `{entry}`.")
        run = Run(entry, ports, self.topology.state.resume_state(state))
        try:
            with tracing_context(enabled=False, parent=False):
                final = dict(await self.drive(run))
        except StepsExhausted as stop:
            return dict(run.state) | {"status": Outcome.LIMITED.value, "error": stop.problem()}
        if self.topology.outcome(final) is Outcome.RUNNING:
            raise InvariantBroken("unfinished_run", f"A run of `{self.topology.name}` ended with the status `running`.")
        return final

    async def drive(self, run: Run) -> State:
        """Takes the steps of a run, including a nested one.

        Raises: StepsExhausted; any exception of a node.
        """
        config: RunnableConfig = {
            "recursion_limit": self.topology.limits.steps + 1,
            "configurable": {RUN: run},
            "callbacks": [],
        }
        try:
            async for seen in self._graph.astream({"state": run.state}, config, stream_mode="values"):
                run.state = seen["state"]
        except StepsExhausted:
            run.leave_fork(self.topology)
            raise
        run.leave_fork(self.topology)
        return run.state

    def wired_edges(self) -> tuple[tuple[str, str], ...]:
        """Returns every edge of the LangGraph graph, sorted, as source and target ids. START and END are included.

        It reads LangGraph's builder, because LangGraph's drawing of a deferred join is wrong (langgraph 1.2.22).
        """
        ids = {name: node for node, name in self._names.items()} | {LG_START: START, LG_END: END}
        built = self._graph.builder
        pairs: list[tuple[Any, Any]] = [
            *built.edges,
            *((source, target) for sources, target in built.waiting_edges for source in sources),
            *(
                (source, target)
                for source, branches in built.branches.items()
                for branch in branches.values()
                for target in branch.ends or ()
            ),
            *((source, target) for source, node in built.nodes.items() for target in node.ends or ()),
        ]
        return tuple(sorted((ids[source], ids[target]) for source, target in dict.fromkeys(pairs)))


def compile_topology(topology: Topology) -> CompiledTopology:
    """Checks and compiles a topology.

    Raises: InvariantBroken `topology_invalid`.
    """
    check(topology)
    return _compile(topology)


def _compile(topology: Topology) -> CompiledTopology:
    steps = _make_steps(topology)
    names = {node.id: f"{index:03d}.{node.id}" for index, node in enumerate(topology.nodes)}
    names_and_end = {**names, END: LG_END}
    choosing_edges = {
        edge.source: edge for edge in topology.edges if isinstance(edge, Switch | Fork) and _is_chosen_at_runtime(edge)
    }
    forks = {edge.source: edge.heads for edge in topology.edges if isinstance(edge, Fork)}
    calling = _calling_heads(topology)
    deferred = {edge.target for edge in topology.edges if isinstance(edge, Join) and edge.deferred}
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(_state_channel(topology))
    for step in steps.values():
        choice = choosing_edges.get(step.id)
        if choice:
            node, ends = _make_choosing_node(step, choice, names_and_end, calling), targets_of(choice)
        else:
            node, ends = _make_node(step, [head for head in forks.get(step.id, ()) if head in calling]), ()
        destinations = tuple(names_and_end[target] for target in ends) or None
        graph.add_node(names[step.id], node, defer=step.id in deferred, destinations=destinations)
    graph.add_conditional_edges(
        LG_START, _make_entrance(topology, names), [names[node] for node in topology.entries.values()]
    )
    for edge in topology.edges:
        _add_edge(graph, edge, names_and_end)
    return CompiledTopology(topology, graph.compile(checkpointer=None, name=topology.name), names)


def _is_chosen_at_runtime(edge: Fork | Switch) -> bool:
    return isinstance(edge, Switch) or bool(edge.optional)


def _calling_heads(topology: Topology) -> frozenset[str]:
    """Returns the heads of the branches in which calls are numbered."""
    bodies = {node.id: node for node in topology.nodes}
    branches = branches_of(topology)
    return frozenset(one.head for one in branches if any(_makes_numbered_calls(bodies[node]) for node in one.nodes))


def _makes_numbered_calls(node: NodeSpec) -> bool:
    if isinstance(node.run, Sub):
        return any(map(_makes_numbered_calls, node.run.topology.nodes))
    return any(ref in NUMBERED for ref in node.calls)


def _state_channel(topology: Topology) -> type:
    """Returns one channel for the whole state, so that the topology's reducers merge the patches, not LangGraph's."""

    def joined(before: dict[str, JsonValue], after: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return topology.state.apply(before, after) if before else after

    class Channels(TypedDict):
        state: Annotated[dict[str, Any], joined]

    return Channels


def _make_steps(topology: Topology) -> dict[str, Step]:
    branches = branches_of(topology)
    return {
        node.id: Step(
            node,
            _make_body(node, topology),
            topology,
            frozenset(branch.head for branch in branches if node.id in branch.nodes),
        )
        for node in topology.nodes
    }


def _make_body(node: NodeSpec, topology: Topology) -> Body:
    body = node.run
    if not isinstance(body, Sub):

        async def work(state: State, run: Run, ports: Ports) -> Patch:
            watched = state if node.advised else watch_state(state, topology, node.id, run.alarm)
            return await body(watched, watch_ports(ports, node, run.alarm))

        return work
    nested = _compile(body.topology)

    async def work_through(state: State, run: Run, ports: Ports) -> Patch:
        after = await nested.drive(Run(FRESH, ports, state, path=f"{run.path}{node.id}/"))
        return topology.state.delta(state, after)

    return work_through


def _make_node(step: Step, heads: Sequence[str]) -> Any:
    """Returns a node with a fixed next node, or with a fork into branches of which `heads` make calls."""

    async def node(channels: Any, config: RunnableConfig) -> dict[str, Any]:
        run = cast(Run, config["configurable"][RUN])
        patch = await step.take(channels["state"], run, config["metadata"]["langgraph_step"])
        run.enter_fork(heads)
        return {"state": patch}

    return node


def _make_choosing_node(step: Step, edge: Fork | Switch, names: Mapping[str, str], calling: frozenset[str]) -> Any:
    """Returns a node that chooses its successors itself. A conditional edge of LangGraph would cost as much as another
    node."""

    async def node(channels: Any, config: RunnableConfig) -> Command[str]:
        state, run = channels["state"], cast(Run, config["configurable"][RUN])
        patch = await step.take(state, run, config["metadata"]["langgraph_step"])
        try:
            after = step.topology.state.apply(state, patch)
            targets = await choose_targets(edge, watch_state(after, step.topology, step.id, run.alarm))
        except Exception as failure:
            step.hold_failure(failure, run)
            targets = ()
        run.enter_fork([target for target in targets if target in calling])
        return Command(update={"state": patch}, goto=[names[target] for target in targets])

    return node


def _make_entrance(topology: Topology, names: Mapping[str, str]) -> Any:
    async def enter(channels: Any, config: RunnableConfig) -> str:
        return names[topology.entries[config["configurable"][RUN].entry]]

    return enter


def _add_edge(graph: Any, edge: Edge, names: Mapping[str, str]) -> None:
    match edge:
        case Goto():
            graph.add_edge(names[edge.source], names[edge.target])
        case Join(deferred=True):
            for source in edge.sources:
                graph.add_edge(names[source], names[edge.target])
        case Join():
            graph.add_edge([names[source] for source in edge.sources], names[edge.target])
        case Fork() if not edge.optional:
            for head in edge.branches:
                graph.add_edge(names[edge.source], names[head])


async def choose_targets(edge: Fork | Switch, state: State) -> tuple[str, ...]:
    """Returns the nodes, or END, that come next.

    Raises: InvariantBroken `unknown_label` for a label that the router does not declare.
    """
    if isinstance(edge, Fork):
        return (*edge.branches, *[head for head, wanted in edge.optional.items() if await wanted(state)])
    label = await edge.router(state)
    if label not in edge.targets:
        raise InvariantBroken(
            "unknown_label", f"The router after `{edge.source}` returned `{label}`, which is not one of its labels."
        )
    target = edge.targets[label]
    return await choose_targets(target, state) if isinstance(target, Fork) else (target,)


# The topologies that ship are checked and compiled once, when this module is imported.
_COMPILED: Final = {(one.name, one.version): compile_topology(one) for one in (*EARLIER, *TOPOLOGIES)}


def topology(name: str, version: int | None = None) -> CompiledTopology:
    """Returns the compiled topology `name` in the version that a turn pins; None for a turn that pins none.

    Raises: InvariantBroken `unknown_topology_version`.
    """
    found = pinned(name, version)
    return _COMPILED[found.name, found.version]
