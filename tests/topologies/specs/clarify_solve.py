"""S4 with stand-in nodes: twelve nodes, one of them a topology of its own, two kinds of pause, an optional branch,
a deferred join that a direct edge also reaches."""

from typing import Literal

from contracts.messages import Patch
from contracts.people import PauseKind
from graph.reducers import DEEP_MERGE
from graph.spec import END, FRESH, Fork, Goto, Join, Node, NodeSpec, RunLimits, State, Sub, Switch, Topology
from graph.state import Field, StateSchema
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import stand_ins

IDS = (
    *("initialize_processing_state", "expand_shortcut_node", "entry_classif_message_type"),
    *("planning_transformation_node", "transformation_clarification_gate", "trigger_choregraph_run_node"),
    *("viz_processing_branch", "exclusion_processing", "asp_solving_node", "viz_building_node"),
    *("feedback_node", "format_feedback"),
)
VIZ_IDS = ("entry", "xml_generation", "xml_validator", "finalize", "mark_classification")
STATE = StateSchema(
    (
        Field("input", {}),
        Field("processing", {}, DEEP_MERGE),
        Field("output", {}, DEEP_MERGE),
        Field("turn_metrics", {}, DEEP_MERGE),
    )
)


def step_of(state: State, name: str) -> str:
    """What the node `name` found, as it left it in `processing`."""
    processing = state["processing"]
    assert isinstance(processing, dict)
    return str(processing.get(name, ""))


async def at_start(state: State) -> Literal["shortcut", "upload", "request"]:
    """S4-04."""
    given = state["input"]
    assert isinstance(given, dict)
    return {"#nveil#": "shortcut", "upload": "upload"}.get(str(given.get("message")), "request")  # type: ignore[return-value]


async def after_shortcut(state: State) -> Literal["empty", "xml"]:
    """S4-05."""
    return "xml" if step_of(state, "shortcut") else "empty"


async def after_classification(
    state: State,
) -> Literal["palette", "no_data", "question", "visualization", "transformation"]:
    """S4-06."""
    return step_of(state, "classified")  # type: ignore[return-value]


async def after_clarification(
    state: State,
) -> Literal["waiting", "replied", "xsd_retry", "failed", "spent", "run"]:
    """S4-07, after the pause itself."""
    return "waiting" if state["status"] == "awaiting" else step_of(state, "clarified") or "run"  # type: ignore[return-value]


async def after_choregraph(state: State) -> Literal["waiting", "retry", "spent", "ran"]:
    """S4-08, after the pause itself."""
    return "waiting" if state["status"] == "awaiting" else step_of(state, "choregraph") or "ran"  # type: ignore[return-value]


async def wants_exclusion(state: State) -> bool:
    """S4-08."""
    return step_of(state, "exclusion_asked") == "yes"


async def after_asp(state: State) -> Literal["failed", "api", "web"]:
    """S4-10."""
    return step_of(state, "asp") or "web"  # type: ignore[return-value]


async def at_viz_entry(state: State) -> Literal["asked", "nothing"]:
    """S4-11."""
    return "nothing" if step_of(state, "viz") == "nothing" else "asked"


async def after_validation(state: State) -> Literal["valid", "retry", "spent"]:
    """S4-27."""
    return step_of(state, "xml") or "valid"  # type: ignore[return-value]


async def after_viz(state: State) -> Literal["classify", "done"]:
    """S4-11."""
    return "classify" if step_of(state, "marks") == "yes" else "done"


def viz() -> Topology:
    """The nested topology of viz_processing_branch (S4-11)."""
    nodes = stand_ins(VIZ_IDS, mark_classification=lambda state: {"processing": {"facts": ["mark"]}})
    return Topology(
        name="viz",
        version=1,
        state=STATE,
        nodes=tuple(NodeSpec(one, nodes[one], limit="xml_generations" * (one == "xml_generation")) for one in VIZ_IDS),
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
        limits=RunLimits(counted={"xml_generations": 4}),
    )


def topology() -> Topology:
    """The topology under test."""
    nodes = stand_ins(
        IDS,
        exclusion_processing=lambda state: {"processing": {"facts": ["exclusion"]}},
        asp_solving_node=lambda state: {"status": "completed"},
        format_feedback=lambda state: {"status": "completed", "output": {"text": "done"}},
    )
    bodies: dict[str, Node | Sub] = {**nodes, "viz_processing_branch": Sub(viz())}
    limits = {"planning_transformation_node": "planning", "transformation_clarification_gate": "clarifications"}
    pausing = ("transformation_clarification_gate", "trigger_choregraph_run_node")
    return Topology(
        name="clarify_solve",
        version=1,
        state=STATE,
        nodes=tuple(NodeSpec(one, bodies[one], pauses=one in pausing, limit=limits.get(one, "")) for one in IDS),
        edges=(
            Switch(
                "initialize_processing_state",
                at_start,
                {
                    "shortcut": "expand_shortcut_node",
                    "upload": "feedback_node",
                    "request": "entry_classif_message_type",
                },
            ),
            Switch("expand_shortcut_node", after_shortcut, {"empty": "feedback_node", "xml": "asp_solving_node"}),
            Switch(
                "entry_classif_message_type",
                after_classification,
                {
                    **dict.fromkeys(("palette", "no_data", "question"), "feedback_node"),
                    **dict.fromkeys(("visualization", "transformation"), "planning_transformation_node"),
                },
            ),
            Goto("planning_transformation_node", "transformation_clarification_gate"),
            Switch(
                "transformation_clarification_gate",
                after_clarification,
                {
                    "waiting": END,
                    "replied": "planning_transformation_node",
                    "xsd_retry": "planning_transformation_node",
                    "failed": "feedback_node",
                    "spent": "feedback_node",
                    "run": "trigger_choregraph_run_node",
                },
            ),
            Switch(
                "trigger_choregraph_run_node",
                after_choregraph,
                {
                    "waiting": END,
                    "retry": "planning_transformation_node",
                    "spent": "feedback_node",
                    "ran": Fork(
                        "trigger_choregraph_run_node",
                        ("viz_processing_branch",),
                        optional={"exclusion_processing": wants_exclusion},
                    ),
                },
            ),
            Join(("viz_processing_branch", "exclusion_processing"), "asp_solving_node", deferred=True),
            Switch(
                "asp_solving_node",
                after_asp,
                {"failed": "feedback_node", "api": END, "web": "viz_building_node"},
            ),
            Goto("viz_building_node", "feedback_node"),
            Goto("feedback_node", "format_feedback"),
            Goto("format_feedback", END),
        ),
        entries={
            FRESH: "initialize_processing_state",
            PauseKind.CLARIFICATION.value: "transformation_clarification_gate",
            PauseKind.CLIENT_RUN.value: "trigger_choregraph_run_node",
        },
        limits=RunLimits(counted={"planning": 3, "clarifications": 2}),
    )


def found(**steps: str) -> Patch:
    """What a node leaves in `processing`."""
    return {"processing": dict(steps)}


INIT = "initialize_processing_state"
CLASSIFY = f"{INIT} entry_classif_message_type"
PLAN = "planning_transformation_node transformation_clarification_gate"
RUN = "trigger_choregraph_run_node"
VIZ = "viz_processing_branch viz_processing_branch/entry"
DRAW = "viz_processing_branch/xml_generation viz_processing_branch/xml_validator"
DONE = "viz_processing_branch/finalize"
MARK = "viz_processing_branch/mark_classification"
SAY = "feedback_node format_feedback"
SHOW = f"asp_solving_node viz_building_node {SAY}"
CHART = {"entry_classif_message_type": [found(classified="visualization")]}
WAITS: Patch = {"status": "awaiting", "pending_requests": [{"request_id": "r1"}]}


def answered(**steps: str) -> Patch:
    """What a node that was waiting leaves."""
    return {**found(**steps), "status": "running", "pending_requests": []}


ROWS = (
    Row("a chart", (Leg(f"{CLASSIFY} {PLAN} {RUN} {VIZ} {DRAW} {DONE} {SHOW}", "completed", CHART),)),
    *(
        Row(
            f"{kind} is answered at once",
            (Leg(f"{CLASSIFY} {SAY}", "completed", {"entry_classif_message_type": [found(classified=kind)]}),),
        )
        for kind in ("palette", "no_data", "question")
    ),
    Row("an upload is acknowledged", (Leg(f"{INIT} {SAY}", "completed"),), initial={"input": {"message": "upload"}}),
    Row(
        "an empty shortcut is explained",
        (Leg(f"{INIT} expand_shortcut_node {SAY}", "completed"),),
        initial={"input": {"message": "#nveil#"}},
    ),
    Row(
        "a shortcut goes straight to the solver",
        (Leg(f"{INIT} expand_shortcut_node {SHOW}", "completed", {"expand_shortcut_node": [found(shortcut="<x/>")]}),),
        initial={"input": {"message": "#nveil#"}},
    ),
    Row(
        "a transformation asks, waits, plans again with the reply",
        (
            Leg(
                f"{CLASSIFY} {PLAN}",
                "awaiting",
                {
                    "entry_classif_message_type": [found(classified="transformation")],
                    "transformation_clarification_gate": [WAITS],
                },
            ),
            Leg(
                f"transformation_clarification_gate {PLAN} {RUN} {VIZ} {DRAW} {DONE} {SHOW}",
                "completed",
                {"transformation_clarification_gate": [answered(clarified="replied"), found(clarified="run")]},
                entry="clarification",
            ),
        ),
    ),
    Row(
        "a plan that breaks the schema is tried again until the budget is spent",
        (
            Leg(
                f"{CLASSIFY} {PLAN} {PLAN} {PLAN} {SAY}",
                "completed",
                {
                    **CHART,
                    "transformation_clarification_gate": [
                        found(clarified="xsd_retry"),
                        found(clarified="xsd_retry"),
                        found(clarified="spent"),
                    ],
                },
            ),
        ),
    ),
    Row(
        "a failed plan is explained",
        (
            Leg(
                f"{CLASSIFY} {PLAN} {SAY}",
                "completed",
                {**CHART, "transformation_clarification_gate": [found(clarified="failed")]},
            ),
        ),
    ),
    Row(
        "a failed run is planned again, then the budget is spent",
        (
            Leg(
                f"{CLASSIFY} {PLAN} {RUN} {PLAN} {RUN} {SAY}",
                "completed",
                {**CHART, RUN: [found(choregraph="retry"), found(choregraph="spent")]},
            ),
        ),
    ),
    Row(
        "the client runs the pipeline and gets the solved chart without feedback",
        (
            Leg(f"{CLASSIFY} {PLAN} {RUN}", "awaiting", {**CHART, RUN: [WAITS]}),
            Leg(
                f"{RUN} {VIZ} {DRAW} {DONE} asp_solving_node",
                "completed",
                {RUN: [answered()], "asp_solving_node": [found(asp="api")]},
                entry="client_run",
            ),
        ),
    ),
    Row(
        "exclusions run beside the chart and the solver runs once",
        (
            Leg(
                f"{CLASSIFY} {PLAN} {RUN} viz_processing_branch exclusion_processing"
                f" viz_processing_branch/entry {DRAW} {DONE} {MARK} {SHOW}",
                "completed",
                {**CHART, RUN: [found(exclusion_asked="yes")], "finalize": [found(marks="yes")]},
            ),
        ),
    ),
    Row(
        "an unsolvable chart is explained",
        (
            Leg(
                f"{CLASSIFY} {PLAN} {RUN} {VIZ} {DRAW} {DRAW} {DONE} asp_solving_node {SAY}",
                "completed",
                {
                    **CHART,
                    "xml_validator": [found(xml="retry"), found(xml="spent")],
                    "asp_solving_node": [found(asp="failed")],
                },
            ),
        ),
    ),
    Row(
        "nothing to draw leaves the nested topology at once",
        (Leg(f"{CLASSIFY} {PLAN} {RUN} {VIZ} {SHOW}", "completed", {**CHART, RUN: [found(viz="nothing")]}),),
    ),
)
