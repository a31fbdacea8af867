"""The topology `clarify_solve`: twelve nodes, one of them a nested topology, and two kinds of pause. It has an optional
branch, and a deferred join that a direct edge also reaches."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import JsonValue

from perdure.contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_RUN,
    ActivityRef,
)
from perdure.contracts.approvals import PauseKind
from perdure.contracts.memory import CLIENT_TABLE
from perdure.contracts.messages import Patch
from perdure.graph.nodes.call_model import WantedOutput
from perdure.graph.nodes.fields import IDENTITY
from perdure.graph.spec import (
    END,
    FRESH,
    Edge,
    Fork,
    Goto,
    Join,
    Node,
    NodeSpec,
    RunLimits,
    State,
    Sub,
    Switch,
    Topology,
)
from perdure.graph.state import ADDITIVE, DEEP_MERGE, DELETE, Field, StateSchema, replace

VERSION: Final = 2
"""Increases with every change of nodes, routes or state."""
INIT: Final = "initialize_processing_state"
SHORTCUT: Final = "expand_shortcut_node"
CLASSIFY: Final = "entry_classif_message_type"
PLAN: Final = "planning_transformation_node"
GATE: Final = "transformation_clarification_gate"
RUN: Final = "trigger_choregraph_run_node"
VIZ: Final = "viz_processing_branch"
EXCLUDE: Final = "exclusion_processing"
ASP: Final = "asp_solving_node"
BUILD: Final = "viz_building_node"
FEEDBACK: Final = "feedback_node"
FORMAT: Final = "format_feedback"
IDS: Final = (INIT, SHORTCUT, CLASSIFY, PLAN, GATE, RUN, VIZ, EXCLUDE, ASP, BUILD, FEEDBACK, FORMAT)
VIZ_IDS: Final = ("entry", "xml_generation", "xml_validator", "finalize", "mark_classification")
_PURPOSES: Final = {
    INIT: "Read the request and locate its data",
    SHORTCUT: "Read the user's own specification",
    CLASSIFY: "State what is requested",
    PLAN: "Plan the work on the tables, or a question",
    GATE: "Ask the user, or read the answer",
    RUN: "Execute the plan, here or at the client",
    VIZ: "Describe what to show",
    EXCLUDE: "State what must not be shown",
    ASP: "Fill in what the specification leaves open",
    BUILD: "Draw",
    FEEDBACK: "Summarize the result",
    FORMAT: "Return the result",
}


_PAUSE: Final = (APPROVALS_OPEN, APPROVALS_READ)
_CALLS: Final[Mapping[str, tuple[ActivityRef[Any, Any], ...]]] = {
    INIT: (MEMORY_LOAD,),
    SHORTCUT: (TOOLS_RUN,),
    CLASSIFY: (MODEL_COMPLETE, TOOLS_RUN),
    PLAN: (MODEL_COMPLETE, TOOLS_RUN),
    GATE: _PAUSE,
    RUN: (TOOLS_RUN, *_PAUSE),
    EXCLUDE: (MODEL_COMPLETE,),
    ASP: (TOOLS_RUN,),
    BUILD: (TOOLS_RUN,),
    FEEDBACK: (MODEL_COMPLETE,),
}
_VIZ_CALLS: Final[Mapping[str, tuple[ActivityRef[Any, Any], ...]]] = {
    "xml_generation": (MODEL_COMPLETE,),
    "xml_validator": (TOOLS_RUN,),
    "mark_classification": (MODEL_COMPLETE,),
}


_VIZ_PURPOSES: Final = {
    "entry": "Discard the results of an earlier attempt",
    "xml_generation": "Write the specification",
    "xml_validator": "Check it against the schema and the available columns",
    "finalize": "Accept it, or leave it out",
    "mark_classification": "List the requested marks",
}


def viz_topology(nodes: Mapping[str, Node], version: int = VERSION) -> Topology:
    """Returns the nested topology of viz_processing_branch, in a version."""
    limits = {"xml_generation": "xml_generations"}
    return Topology(
        name="viz",
        version=version,
        state=_state(version),
        nodes=tuple(
            NodeSpec(
                node_id,
                nodes[node_id],
                limit=limits.get(node_id, ""),
                purpose=_VIZ_PURPOSES[node_id],
                calls=_VIZ_CALLS.get(node_id, ()),
            )
            for node_id in VIZ_IDS
        ),
        edges=(
            Switch("entry", at_viz_entry, {"asked": "xml_generation", "nothing": END}),
            Goto("xml_generation", "xml_validator"),
            Switch(
                "xml_validator",
                after_validation,
                {"valid": "finalize", "retry": "xml_generation", "spent": "finalize"},
            ),
            Switch("finalize", after_viz, {"classify": "mark_classification", "done": END}),
            Goto("mark_classification", END),
        ),
        entries={FRESH: "entry"},
        limits=RunLimits(counted={"xml_generations": MAX_XML_GENERATIONS}),
    )


def clarify_solve(nodes: Mapping[str, Node], viz_nodes: Mapping[str, Node], version: int = VERSION) -> Topology:
    """Returns the topology in a version, with `nodes` for eleven of its node ids and `viz_nodes` for those of the
    nested one."""
    return Topology(
        name="clarify_solve",
        version=version,
        state=_state(version),
        nodes=_nodes({**nodes, VIZ: Sub(viz_topology(viz_nodes, version))}),
        edges=_edges(),
        entries={FRESH: INIT, PauseKind.CLARIFICATION.value: GATE, PauseKind.CLIENT_RUN.value: RUN},
        limits=RunLimits(counted={"planning": MAX_PLANNING_ENTRIES, "clarifications": MAX_CLARIFICATIONS}),
        metadata=(CLIENT_TABLE,),
    )


def _nodes(bodies: Mapping[str, Node | Sub]) -> tuple[NodeSpec, ...]:
    limits = {PLAN: "planning", GATE: "clarifications"}
    return tuple(
        NodeSpec(
            node_id,
            bodies[node_id],
            pauses=node_id in (GATE, RUN),
            purpose=_PURPOSES[node_id],
            limit=limits.get(node_id, ""),
            calls=_CALLS.get(node_id, ()),
        )
        for node_id in IDS
    )


def _edges() -> tuple[Edge, ...]:
    to_feedback = dict.fromkeys(("palette", "no_data", "question"), FEEDBACK)
    to_plan = dict.fromkeys(("visualization", "transformation"), PLAN)
    clarified = {"waiting": END, "replied": PLAN, "xsd_retry": PLAN, "failed": FEEDBACK, "spent": FEEDBACK, "run": RUN}
    ran = Fork(RUN, (VIZ,), optional={EXCLUDE: wants_exclusion})
    return (
        Switch(INIT, at_start, {"shortcut": SHORTCUT, "upload": FEEDBACK, "request": CLASSIFY}),
        Switch(SHORTCUT, after_shortcut, {"empty": FEEDBACK, "xml": ASP}),
        Switch(CLASSIFY, after_classification, {**to_feedback, **to_plan}),
        Goto(PLAN, GATE),
        Switch(GATE, after_clarification, clarified),
        Switch(RUN, after_choregraph, {"waiting": END, "retry": PLAN, "spent": FEEDBACK, "ran": ran}),
        Join((VIZ, EXCLUDE), ASP, deferred=True),
        Switch(ASP, after_asp, {"failed": FEEDBACK, "api": END, "web": BUILD}),
        Goto(BUILD, FEEDBACK),
        Goto(FEEDBACK, FORMAT),
        Goto(FORMAT, END),
    )


# The state has four buckets that merge key by key, in addition to the fields of every turn. Metrics are in the state,
# so that they cross activities and pauses. Values are cleared with a marker. Values from a model or from outside are
# wrapped, so that no part of them is read as a marker.
STATE_1: Final = StateSchema(
    (
        *IDENTITY,
        Field("user", {}),
        Field("plan", {}),
        Field("tokens_used", 0, ADDITIVE),
        Field("cost_microusd", 0, ADDITIVE),
        Field("max_tokens", 100_000),
        Field("max_cost_microusd", 5_000_000),
        Field("max_iterations", 20),
        Field("input", {}),
        Field("processing", {}, DEEP_MERGE),
        Field("output", {}, DEEP_MERGE),
        Field("turn_metrics", {}, DEEP_MERGE),
    )
)
"""The state of version 1, whose nodes report no faults."""
FAULTS: Final = "faults"
STATE: Final = StateSchema((*STATE_1.own, Field(FAULTS, {}, DEEP_MERGE)))
"""The state since version 2, with the faults of the turn by stage (`faults.py`)."""
STAGES: Final = ("classify", "plan", "run", "specify", "exclude", "solve", "draw", "marks", "feedback")
"""The words of `output.fault.stage`."""


def _state(version: int) -> StateSchema:
    return STATE if version > 1 else STATE_1


MAX_PLANNING_ENTRIES: Final = 3
"""Counted entries of the planning node, including the first."""
MAX_CLARIFICATIONS: Final = 2
"""Questions of a turn, however many answers it receives."""
MAX_XML_GENERATIONS: Final = 4
"""The first generation and three more."""


def read_bucket(state: State, name: str) -> dict[str, JsonValue]:
    """Returns the mapping in the field `name`; empty if there is none."""
    bucket = state[name]
    return bucket if isinstance(bucket, dict) else {}


def processing_value(state: State, name: str) -> JsonValue:
    """Returns the value that a node stored in `processing` under `name`, or None."""
    return read_bucket(state, "processing").get(name)


def text_of(state: State, name: str) -> str:
    """Returns a text that a node stored in `processing`; empty if there is none."""
    value = processing_value(state, name)
    return value if isinstance(value, str) else ""


def object_of(state: State, name: str) -> dict[str, JsonValue]:
    """Returns an object that a node stored in `processing`; empty if there is none."""
    value = processing_value(state, name)
    return value if isinstance(value, dict) else {}


def list_of(state: State, name: str) -> list[JsonValue]:
    """Returns a list that a node stored in `processing`; empty if there is none."""
    value = processing_value(state, name)
    return value if isinstance(value, list) else []


def read_counter(state: State, name: str) -> int:
    """Returns a counter in `processing`, or 0."""
    value = processing_value(state, name)
    return value if isinstance(value, int) else 0


def set_processing(**values: JsonValue) -> Patch:
    """Returns the patch that sets exactly these values in `processing`; None removes one."""
    wrapped: dict[str, JsonValue] = {
        name: DELETE if value is None else replace(value) for name, value in values.items()
    }
    return {"processing": wrapped}


def merge_patches(patch: Patch, other: Patch) -> Patch:
    """Returns both patches as one; of a field, a value in `processing` or a fault that both write, the other's
    counts."""
    merged: Patch = {**patch, **other}
    for name in ("processing", FAULTS):
        before, after = patch.get(name), other.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            merged[name] = {**before, **after}
    return merged


def count_up(state: State, name: str, by: int = 1) -> Patch:
    """Returns the patch that increases a counter of `turn_metrics`."""
    before = read_bucket(state, "turn_metrics").get(name)
    return {"turn_metrics": {name: replace((before if isinstance(before, int) else 0) + by)}}


def warnings_of(*results: dict[str, JsonValue]) -> list[JsonValue]:
    """Returns the warnings of all results that a drawing is made from, in order."""
    collected = list[JsonValue]()
    for result in results:
        warnings = result.get("warnings")
        collected += warnings if isinstance(warnings, list) else []
    return collected


# The routers read only what the nodes stored in `processing`. A run that must end goes to the feedback, whose nodes
# keep its error.
async def at_start(state: State) -> Literal["shortcut", "upload", "request"]:
    """Routes a new turn by the kind of its message."""
    return text_of(state, "start") or "request"  # type: ignore[return-value]


async def after_shortcut(state: State) -> Literal["empty", "xml"]:
    """Routes a shortcut: to the solver if it has a usable specification."""
    return "xml" if text_of(state, "shortcut") else "empty"


async def after_classification(
    state: State,
) -> Literal["palette", "no_data", "question", "visualization", "transformation"]:
    """Routes by the kind of the request. A request that could not be classified goes to the feedback."""
    return text_of(state, "classified") or "question"  # type: ignore[return-value]


async def after_clarification(
    state: State,
) -> Literal["waiting", "replied", "xsd_retry", "failed", "spent", "run"]:
    """Routes after the clarification gate, or ends the run in a pause."""
    if state["status"] == "awaiting":
        return "waiting"
    if state["error"] is not None:
        return "failed"
    return text_of(state, "clarified") or "run"  # type: ignore[return-value]


async def after_choregraph(state: State) -> Literal["waiting", "retry", "spent", "ran"]:
    """Routes after the plan was carried out, or ends the run in a pause."""
    if state["status"] == "awaiting":
        return "waiting"
    if state["error"] is not None:
        return "spent"
    return text_of(state, "choregraph") or "ran"  # type: ignore[return-value]


async def wants_exclusion(state: State) -> bool:
    """Returns whether the branch for exclusions runs."""
    return text_of(state, "exclusion_asked") == "yes"


async def after_asp(state: State) -> Literal["failed", "api", "web"]:
    """Routes after the solver: to the drawing, or to the end if the client draws."""
    if state["error"] is not None:
        return "failed"
    return text_of(state, "asp") or "web"  # type: ignore[return-value]


async def at_viz_entry(state: State) -> Literal["asked", "nothing"]:
    """Routes to the specification if something must be shown."""
    return "nothing" if text_of(state, "viz") == "nothing" or state["error"] is not None else "asked"


async def after_validation(state: State) -> Literal["valid", "retry", "spent"]:
    """Routes after the check of a specification: valid, another try, or no tries left."""
    if state["error"] is not None:
        return "spent"
    return text_of(state, "xml") or "valid"  # type: ignore[return-value]


async def after_viz(state: State) -> Literal["classify", "done"]:
    """Routes to the classification of marks if there is a valid specification."""
    return "classify" if text_of(state, "marks") == "yes" and state["error"] is None else "done"


# Schemas of the structured outputs of the stages. Every field is required and no other is allowed, as providers demand
# for a strict schema.
Schema = dict[str, JsonValue]


def _strict_object(**properties: JsonValue) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_TEXT_SCHEMA: Final[Schema] = {"type": "string", "maxLength": 4_000}
_XML_SCHEMA: Final[Schema] = {"type": "string", "maxLength": 16_000}
_TEXTS_SCHEMA: Final[Schema] = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 6}

CLASSIFICATION_OUTPUT: Final = WantedOutput(
    "classify",
    _strict_object(
        kind={"type": "string", "enum": ["palette", "question", "visualization", "transformation"]},
        excludes={"type": "boolean"},
    ),
)
PLAN_OUTPUT: Final = WantedOutput(
    "plan",
    _strict_object(
        early_exit={"type": "boolean"},
        question=_TEXT_SCHEMA,
        options=_TEXTS_SCHEMA,
        transformation=_TEXT_SCHEMA,
        xml=_XML_SCHEMA,
        visualization=_TEXT_SCHEMA,
        suggestions=_TEXTS_SCHEMA,
    ),
)
PLAN_XML_OUTPUT: Final = WantedOutput("plan_xml", _strict_object(xml=_XML_SCHEMA))
SPECIFICATION_OUTPUT: Final = WantedOutput("specify", _strict_object(xml=_XML_SCHEMA))
MARKS_OUTPUT: Final = WantedOutput(
    "marks",
    _strict_object(
        marks={
            "type": "array",
            "maxItems": 8,
            "items": _strict_object(
                mark={"type": "string", "maxLength": 40}, score={"type": "number", "minimum": 0, "maximum": 1}
            ),
        }
    ),
)
EXCLUSIONS_OUTPUT: Final = WantedOutput(
    "exclude",
    _strict_object(
        exclusions={
            "type": "array",
            "maxItems": 20,
            "items": _strict_object(
                selector={"type": "string", "maxLength": 40},
                value={"type": "string", "maxLength": 40},
                scope={"type": "string", "maxLength": 40},
            ),
        }
    ),
)

_COLUMNS_SCHEMA: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 200},
            "kind": {"type": "string", "enum": ["quantitative", "temporal", "nominal", "boolean"]},
            "distinct": {"type": "integer", "minimum": 0},
            "nulls": {"type": "integer", "minimum": 0},
            "least": {"type": "number"},
            "most": {"type": "number"},
        },
        "required": ["name", "kind", "distinct", "nulls"],
        "additionalProperties": False,
    },
}
REPLY_SCHEMA: Final = _strict_object(text={"type": "string", "minLength": 1, "maxLength": 2_000})
"""The schema of an answer to a clarification."""
CLIENT_RESULT_SCHEMA: Final[Schema] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "error": {"type": "string", "maxLength": 500},
        "rows": {"type": "integer", "minimum": 0},
        "columns": _COLUMNS_SCHEMA,
        "warnings": _TEXTS_SCHEMA,
    },
    "required": ["ok"],
    "additionalProperties": False,
}
"""The schema of a client's result: counts and ranges of columns. It has no field for rows."""
