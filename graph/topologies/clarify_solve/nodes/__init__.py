"""The nodes of `clarify_solve`, by their ids; those of the nested topology apart."""

from graph.spec import Node
from graph.topologies.clarify_solve import spec
from graph.topologies.clarify_solve.nodes.build import Build
from graph.topologies.clarify_solve.nodes.clarify import Clarify
from graph.topologies.clarify_solve.nodes.classify import Classify
from graph.topologies.clarify_solve.nodes.exclude import Exclude
from graph.topologies.clarify_solve.nodes.feedback import Feedback
from graph.topologies.clarify_solve.nodes.format_feedback import FormatFeedback
from graph.topologies.clarify_solve.nodes.initialize import Initialize
from graph.topologies.clarify_solve.nodes.plan import Planning
from graph.topologies.clarify_solve.nodes.run_plan import RunPlan
from graph.topologies.clarify_solve.nodes.shortcut import ExpandShortcut
from graph.topologies.clarify_solve.nodes.solve import SolveDesign
from graph.topologies.clarify_solve.nodes.specify import ClassifyMarks, EnterViz, FinalizeXml, GenerateXml, ValidateXml

NODES: dict[str, Node] = {
    spec.INIT: Initialize(),
    spec.SHORTCUT: ExpandShortcut(),
    spec.CLASSIFY: Classify(),
    spec.PLAN: Planning(),
    spec.GATE: Clarify(),
    spec.RUN: RunPlan(),
    spec.EXCLUDE: Exclude(),
    spec.ASP: SolveDesign(),
    spec.BUILD: Build(),
    spec.FEEDBACK: Feedback(),
    spec.FORMAT: FormatFeedback(),
}
VIZ_NODES: dict[str, Node] = {
    "entry": EnterViz(),
    "xml_generation": GenerateXml(),
    "xml_validator": ValidateXml(),
    "finalize": FinalizeXml(),
    "mark_classification": ClassifyMarks(),
}
