"""S4 with stand-in nodes: the routes of the real one."""

from perdure.contracts.messages import Patch
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.clarify_solve import spec
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import stand_ins


def begin(state: State) -> Patch:
    given = state["input"]
    assert isinstance(given, dict)
    start = {"#nveil#": "shortcut", "upload": "upload"}.get(str(given.get("message")), "request")
    return {"processing": {"start": start}}


def topology() -> Topology:
    nodes = stand_ins(
        spec.IDS,
        initialize_processing_state=begin,
        exclusion_processing=lambda state: {"processing": {"facts": ["exclusion"]}},
        asp_solving_node=lambda state: {"status": "completed"},
        format_feedback=lambda state: {"status": "completed", "output": {"text": "done"}},
    )
    viz = stand_ins(spec.VIZ_IDS, mark_classification=lambda state: {"processing": {"facts": ["mark"]}})
    return spec.clarify_solve({one: node for one, node in nodes.items() if one != spec.VIZ}, viz)


def found(**steps: str) -> Patch:
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
