"""The topology `clarify_solve` (S4): twelve nodes, one of them a topology of its own, two kinds of pause, an optional
branch, a deferred join that a direct edge also reaches."""

from collections.abc import Mapping
from typing import Any, Final

from contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    MEMORY_LOAD,
    MODEL_COMPLETE,
    TOOLS_RUN,
    ActivityRef,
)
from contracts.people import PauseKind
from graph.spec import END, FRESH, Fork, Goto, Join, Node, NodeSpec, RunLimits, Sub, Switch, Topology
from graph.topologies.clarify_solve import routes
from graph.topologies.clarify_solve.state import CLARIFICATIONS, PLANNING_ENTRIES, STATE, XML_GENERATIONS

VERSION: Final = 1
"""Raised with every change of a node id or a route."""
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
    INIT: "Take the request and where its data is",
    SHORTCUT: "Take a specification that the person wrote",
    CLASSIFY: "Say what is asked for",
    PLAN: "Plan the work on the tables, or a question",
    GATE: "Ask the person, or look at the answer",
    RUN: "Carry the plan out, here or where the data is",
    VIZ: "Specify what to show",
    EXCLUDE: "Say what must not be shown",
    ASP: "Decide what the specification leaves open",
    BUILD: "Draw",
    FEEDBACK: "Say what came of it",
    FORMAT: "Hand it out",
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
    "entry": "Clear what an earlier try has left",
    "xml_generation": "Write the specification",
    "xml_validator": "Check it by schema and by the columns that there are",
    "finalize": "Take it, or leave it out",
    "mark_classification": "Say which marks are asked for",
}


def viz(nodes: Mapping[str, Node]) -> Topology:
    """The nested topology of viz_processing_branch (S4-11)."""
    limits = {"xml_generation": "xml_generations"}
    return Topology(
        name="viz",
        version=VERSION,
        state=STATE,
        nodes=tuple(
            NodeSpec(
                one, nodes[one], limit=limits.get(one, ""), purpose=_VIZ_PURPOSES[one], calls=_VIZ_CALLS.get(one, ())
            )
            for one in VIZ_IDS
        ),
        edges=(
            Switch("entry", routes.at_viz_entry, {"asked": "xml_generation", "nothing": END}),
            Goto("xml_generation", "xml_validator"),
            Switch(
                "xml_validator",
                routes.after_validation,
                {"valid": "finalize", "retry": "xml_generation", "spent": "finalize"},
            ),
            Switch("finalize", routes.after_viz, {"classify": "mark_classification", "done": END}),
            Goto("mark_classification", END),
        ),
        entries={FRESH: "entry"},
        limits=RunLimits(counted={"xml_generations": XML_GENERATIONS}),
    )


def clarify_solve(nodes: Mapping[str, Node], viz_nodes: Mapping[str, Node]) -> Topology:
    """The topology, with `nodes` for eleven of its node ids and `viz_nodes` for those of the nested one."""
    bodies: dict[str, Node | Sub] = {**nodes, VIZ: Sub(viz(viz_nodes))}
    limits = {PLAN: "planning", GATE: "clarifications"}
    return Topology(
        name="clarify_solve",
        version=VERSION,
        state=STATE,
        nodes=tuple(
            NodeSpec(
                one,
                bodies[one],
                pauses=one in (GATE, RUN),
                purpose=_PURPOSES[one],
                limit=limits.get(one, ""),
                calls=_CALLS.get(one, ()),
            )
            for one in IDS
        ),
        edges=(
            Switch(INIT, routes.at_start, {"shortcut": SHORTCUT, "upload": FEEDBACK, "request": CLASSIFY}),
            Switch(SHORTCUT, routes.after_shortcut, {"empty": FEEDBACK, "xml": ASP}),
            Switch(
                CLASSIFY,
                routes.after_classification,
                {
                    **dict.fromkeys(("palette", "no_data", "question"), FEEDBACK),
                    **dict.fromkeys(("visualization", "transformation"), PLAN),
                },
            ),
            Goto(PLAN, GATE),
            Switch(
                GATE,
                routes.after_clarification,
                {
                    "waiting": END,
                    "replied": PLAN,
                    "xsd_retry": PLAN,
                    "failed": FEEDBACK,
                    "spent": FEEDBACK,
                    "run": RUN,
                },
            ),
            Switch(
                RUN,
                routes.after_choregraph,
                {
                    "waiting": END,
                    "retry": PLAN,
                    "spent": FEEDBACK,
                    "ran": Fork(RUN, (VIZ,), optional={EXCLUDE: routes.wants_exclusion}),
                },
            ),
            Join((VIZ, EXCLUDE), ASP, deferred=True),
            Switch(ASP, routes.after_asp, {"failed": FEEDBACK, "api": END, "web": BUILD}),
            Goto(BUILD, FEEDBACK),
            Goto(FEEDBACK, FORMAT),
            Goto(FORMAT, END),
        ),
        entries={FRESH: INIT, PauseKind.CLARIFICATION.value: GATE, PauseKind.CLIENT_RUN.value: RUN},
        limits=RunLimits(counted={"planning": PLANNING_ENTRIES, "clarifications": CLARIFICATIONS}),
    )
