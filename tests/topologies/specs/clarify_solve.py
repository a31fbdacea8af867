"""`clarify_solve` with stand-in nodes: the routes of the real one."""

from collections.abc import Sequence

from pydantic import JsonValue

from perdure.contracts.messages import Patch
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.clarify_solve import spec
from tests.topologies.rows import Leg, row
from tests.topologies.stand_ins import Rows, stand_ins


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
GATE = "transformation_clarification_gate"
PLAN = f"planning_transformation_node {GATE}"
RUN = "trigger_choregraph_run_node"
VIZ = "viz_processing_branch viz_processing_branch/entry"
DRAW = "viz_processing_branch/xml_generation viz_processing_branch/xml_validator"
DONE = "viz_processing_branch/finalize"
MARK = "viz_processing_branch/mark_classification"
SAY = "feedback_node format_feedback"
SHOW = f"asp_solving_node viz_building_node {SAY}"
SHORTCUT: dict[str, JsonValue] = {"input": {"message": "#nveil#"}}
WAITS: Patch = {"status": "awaiting", "pending_requests": [{"request_id": "r1"}]}


def answered(**steps: str) -> Patch:
    """What a node that was waiting leaves."""
    return {**found(**steps), "status": "running", "pending_requests": []}


def chart(**says: Sequence[Patch | Exception]) -> Rows:
    """What the nodes of a turn that asks for a chart say."""
    return {"entry_classif_message_type": [found(classified="visualization")], **says}


ROWS = (
    row("a chart", Leg(f"{CLASSIFY} {PLAN} {RUN} {VIZ} {DRAW} {DONE} {SHOW}", chart())),
    *(row(f"{kind} is answered at once",
        Leg(f"{CLASSIFY} {SAY}", {"entry_classif_message_type": [found(classified=kind)]}))
        for kind in ("palette", "no_data", "question")),
    row("an upload is acknowledged", Leg(f"{INIT} {SAY}"), initial={"input": {"message": "upload"}}),
    row("an empty shortcut is explained", Leg(f"{INIT} expand_shortcut_node {SAY}"), initial=SHORTCUT),
    row("a shortcut goes straight to the solver",
        Leg(f"{INIT} expand_shortcut_node {SHOW}", {"expand_shortcut_node": [found(shortcut="<x/>")]}),
        initial=SHORTCUT),
    row("a transformation asks, waits, plans again with the reply",
        Leg(f"{CLASSIFY} {PLAN}", {"entry_classif_message_type": [found(classified="transformation")], GATE: [WAITS]},
            "awaiting"),
        Leg(f"{GATE} {PLAN} {RUN} {VIZ} {DRAW} {DONE} {SHOW}",
            {GATE: [answered(clarified="replied"), found(clarified="run")]}, entry="clarification")),
    row("a plan that breaks the schema is tried again until the budget is spent",
        Leg(f"{CLASSIFY} {PLAN} {PLAN} {PLAN} {SAY}",
            chart(**{GATE: [*[found(clarified="xsd_retry")] * 2, found(clarified="spent")]}))),
    row("a failed plan is explained", Leg(f"{CLASSIFY} {PLAN} {SAY}", chart(**{GATE: [found(clarified="failed")]}))),
    row("a failed run is planned again, then the budget is spent",
        Leg(f"{CLASSIFY} {PLAN} {RUN} {PLAN} {RUN} {SAY}",
            chart(**{RUN: [found(choregraph="retry"), found(choregraph="spent")]}))),
    row("the client runs the pipeline and gets the solved chart without feedback",
        Leg(f"{CLASSIFY} {PLAN} {RUN}", chart(**{RUN: [WAITS]}), "awaiting"),
        Leg(f"{RUN} {VIZ} {DRAW} {DONE} asp_solving_node",
            {RUN: [answered()], "asp_solving_node": [found(asp="api")]}, entry="client_run")),
    row("exclusions run beside the chart and the solver runs once",
        Leg(f"{CLASSIFY} {PLAN} {RUN} viz_processing_branch exclusion_processing"
            f" viz_processing_branch/entry {DRAW} {DONE} {MARK} {SHOW}",
            chart(**{RUN: [found(exclusion_asked="yes")], "finalize": [found(marks="yes")]}))),
    row("an unsolvable chart is explained",
        Leg(f"{CLASSIFY} {PLAN} {RUN} {VIZ} {DRAW} {DRAW} {DONE} asp_solving_node {SAY}",
            chart(xml_validator=[found(xml="retry"), found(xml="spent")], asp_solving_node=[found(asp="failed")]))),
    row("nothing to draw leaves the nested topology at once",
        Leg(f"{CLASSIFY} {PLAN} {RUN} {VIZ} {SHOW}", chart(**{RUN: [found(viz="nothing")]}))),
)  # fmt: skip
