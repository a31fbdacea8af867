"""The topology `context_assembly`: eight stages, and their edges with kinds and conditions, one of them for errors. No
other code decides the order of the stages."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from perdure.contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_ASSEMBLE,
    TOOLS_CHECK,
    TOOLS_RUN,
)
from perdure.contracts.approvals import PauseKind
from perdure.graph.manifest import ENTRY_KIND
from perdure.graph.nodes.fields import (
    AWAITING_HITL,
    BUDGET,
    CONTINUATION,
    CONTROL,
    CONVERSATION,
    IDENTITY,
    MAX_ITERATIONS,
    MEMORY,
    PENDING,
    REVIEW,
)
from perdure.graph.spec import (
    END,
    FRESH,
    RENEWED,
    Edge,
    Fork,
    Goto,
    Join,
    Node,
    NodeSpec,
    Outcome,
    RunLimits,
    State,
    Switch,
    Topology,
)
from perdure.graph.state import ADDITIVE, Field, StateSchema

VERSION: Final = 3
"""Increases with every change of a node, a route or the state."""


class StageId(StrEnum):
    """The ids of the stages."""

    PREFLIGHT = "preflight"
    SAFETY_INTERVENTION = "safety_intervention"
    ASSEMBLY_GATE = "assembly_gate"
    CONTEXT_ASSEMBLY = "context_assembly"
    EMPATHY = "empathy"
    CONTEXT_FORMAT = "context_format"
    NAVIGATOR = "navigator"
    FINALIZE = "finalize"


class EdgeType(StrEnum):
    """The kinds of the edges."""

    ENTRY = ENTRY_KIND
    """The kind of the edges out of START, which the manifest makes from `entries`."""
    CONDITIONAL = "CONDITIONAL"
    TERMINAL_PATH = "TERMINAL_PATH"
    PARALLEL_BRANCH = "PARALLEL_BRANCH"
    JOIN_INPUT = "JOIN_INPUT"
    SEQUENCE = "SEQUENCE"
    EXIT = "EXIT"


class EdgeCondition(StrEnum):
    """The conditions of the edges, including that of the error edge."""

    SAFETY_HIJACKED = "SAFETY_HIJACKED"
    NOT_SAFETY_HIJACKED = "NOT_SAFETY_HIJACKED"
    ASSEMBLY_FAILED = "ASSEMBLY_FAILED"


def context_assembly(nodes: Mapping[str, Node], version: int = VERSION) -> Topology:
    """Returns the topology in a version, with `nodes` for its eight node ids."""
    return Topology(
        name="context_assembly",
        version=version,
        state=STATE if version > 2 else STATE_2,
        nodes=_nodes(nodes),
        edges=_edges(version),
        entries={
            FRESH: StageId.PREFLIGHT,
            PauseKind.APPROVAL.value: StageId.NAVIGATOR,
            **({RENEWED: StageId.NAVIGATOR} if version > 1 else {}),
        },
        limits=RunLimits(counted={"max_iterations": MAX_ITERATIONS}),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )


def _nodes(bodies: Mapping[str, Node]) -> tuple[NodeSpec, ...]:
    stage = StageId
    return (
        NodeSpec(
            stage.PREFLIGHT,
            bodies["preflight"],
            purpose="Classify intent and safety concurrently",
            calls=(MEMORY_LOAD, MODEL_COMPLETE),
        ),
        NodeSpec(
            stage.SAFETY_INTERVENTION,
            bodies["safety_intervention"],
            purpose="Answer with the fixed text, without a model call",
        ),
        NodeSpec(stage.ASSEMBLY_GATE, bodies["assembly_gate"], purpose="Group the tools into phases"),
        NodeSpec(
            stage.CONTEXT_ASSEMBLY,
            bodies["context_assembly"],
            purpose="Run or skip the tools, phase by phase",
            calls=(TOOLS_ASSEMBLE,),
        ),
        NodeSpec(stage.EMPATHY, bodies["empathy"], purpose="Determine the tone of the answer", calls=(MODEL_COMPLETE,)),
        NodeSpec(stage.CONTEXT_FORMAT, bodies["context_format"], purpose="Join context, tone and missing parts"),
        NodeSpec(
            stage.NAVIGATOR,
            bodies["navigator"],
            pauses=True,
            purpose="Answer, using tools and their approvals",
            limit="max_iterations",
            calls=(MODEL_COMPLETE, TOOLS_CHECK, TOOLS_RUN, APPROVALS_OPEN, APPROVALS_READ),
        ),
        NodeSpec(stage.FINALIZE, bodies["finalize"], purpose="Set the status"),
    )


def _edges(version: int) -> tuple[Edge, ...]:
    stage = StageId
    answered: Edge = (
        Switch(
            stage.NAVIGATOR,
            after_navigator,
            {"more": stage.NAVIGATOR, "done": stage.FINALIZE},
            kinds={"more": EdgeType.CONDITIONAL, "done": EdgeType.SEQUENCE},
        )
        if version > 1
        else Goto(stage.NAVIGATOR, stage.FINALIZE, EdgeType.SEQUENCE)
    )
    return (
        Switch(
            stage.PREFLIGHT,
            after_preflight,
            {"hijacked": stage.SAFETY_INTERVENTION, "clear": stage.ASSEMBLY_GATE},
            kinds={"hijacked": EdgeType.CONDITIONAL, "clear": EdgeType.CONDITIONAL},
            conditions={"hijacked": EdgeCondition.SAFETY_HIJACKED, "clear": EdgeCondition.NOT_SAFETY_HIJACKED},
        ),
        Goto(stage.SAFETY_INTERVENTION, stage.FINALIZE, EdgeType.TERMINAL_PATH),
        Fork(stage.ASSEMBLY_GATE, (stage.CONTEXT_ASSEMBLY, stage.EMPATHY), kind=EdgeType.PARALLEL_BRANCH),
        Join((stage.CONTEXT_ASSEMBLY, stage.EMPATHY), stage.CONTEXT_FORMAT, kind=EdgeType.JOIN_INPUT),
        Switch(
            stage.CONTEXT_FORMAT,
            after_context_format,
            {"assembled": stage.NAVIGATOR, "failed": stage.FINALIZE},
            kinds={"assembled": EdgeType.SEQUENCE, "failed": EdgeType.TERMINAL_PATH},
            conditions={"failed": EdgeCondition.ASSEMBLY_FAILED},
        ),
        answered,
        Goto(stage.FINALIZE, END, EdgeType.EXIT),
    )


# The state has shared fields, the verdicts, and the context by reference. The outputs of the tools are stored in
# Postgres.
STAGES: Final = (Field("completed_stages", [], ADDITIVE),)
"""Both branches of the fork add to this field."""
VERDICTS: Final = (
    Field("safety_hijacked", True),
    Field("safety_category", ""),
    Field("intent", ""),
    Field("empathy", {}),
)
"""A turn counts as taken over until a verdict clears it."""
CONTEXT: Final = (
    Field("slice_hash", ""),
    Field("kept_bundles", []),
    Field("phases", []),
    Field("bundles", []),
    Field("degraded_sections", []),
    Field("context_sections", []),
    Field("context_guidance", ""),
)

STATE_2: Final = StateSchema(
    (*IDENTITY, *CONTROL, *CONVERSATION, *BUDGET, *REVIEW, *MEMORY, *STAGES, *VERDICTS, *CONTEXT)
)
"""The state of versions 1 and 2."""
STATE: Final = StateSchema((*STATE_2.own, *CONTINUATION))


# The routers read only the state.
async def after_preflight(state: State) -> Literal["hijacked", "clear"]:
    """Routes by the safety verdict alone. Everything except an explicit False counts as taken over."""
    return "clear" if state["safety_hijacked"] is False else "hijacked"


async def after_context_format(state: State) -> Literal["assembled", "failed"]:
    """Routes a failed assembly to the end, so that it never reaches the navigator."""
    return "assembled" if state["error"] is None else "failed"


async def after_navigator(state: State) -> Literal["more", "done"]:
    """Routes a settled round of calls, and a cut answer that is continued, to the navigator again. An answer, an error
    or a pause ends the run."""
    stages = state["completed_stages"]
    answered = isinstance(stages, list) and StageId.NAVIGATOR.value in stages
    return "done" if answered or state["status"] == AWAITING_HITL else "more"
