"""The topology `skill_pipeline` (S0): ten nodes, every route of S0-01 to S0-09."""

from collections.abc import Mapping
from typing import Final

from contracts.activities import APPROVALS_OPEN, APPROVALS_READ, MEMORY_LOAD, MODEL_COMPLETE, TOOLS_RUN
from contracts.people import PauseKind
from graph.nodes.fields import AWAITING_HITL, MAX_ITERATIONS, PENDING
from graph.spec import END, FRESH, Goto, Node, NodeSpec, Outcome, RunLimits, Switch, Topology
from graph.topologies.skill_pipeline import routes
from graph.topologies.skill_pipeline.state import STATE

VERSION: Final = 3
"""Raised with every change of a node id or a route."""


def skill_pipeline(nodes: Mapping[str, Node]) -> Topology:
    """The topology, with `nodes` for its ten node ids."""
    return Topology(
        name="skill_pipeline",
        version=VERSION,
        state=STATE,
        nodes=(
            NodeSpec(
                "system_prompt_node",
                nodes["system_prompt_node"],
                purpose="Choose persona and user block",
                calls=(MEMORY_LOAD,),
            ),
            NodeSpec(
                "memory_node",
                nodes["memory_node"],
                purpose="Load memory and requests opened before",
                calls=(MEMORY_LOAD,),
            ),
            NodeSpec(
                "resume_guard",
                nodes["resume_guard"],
                pauses=True,
                purpose="Read the verdicts of a gate or a checkpoint",
                calls=(APPROVALS_READ,),
            ),
            NodeSpec(
                "initial_llm_call",
                nodes["initial_llm_call"],
                pauses=True,
                purpose="First call of the model",
                calls=(MODEL_COMPLETE, APPROVALS_OPEN),
            ),
            NodeSpec(
                "tool_node",
                nodes["tool_node"],
                pauses=True,
                purpose="Gate a round of tool calls, or run it and ask the rules of its outcomes",
                limit="max_iterations",
                calls=(TOOLS_RUN, APPROVALS_OPEN),
            ),
            NodeSpec("skill_select_node", nodes["skill_select_node"], purpose="Find the skills that the model named"),
            NodeSpec("skill_inject_node", nodes["skill_inject_node"], purpose="Put skills into the context"),
            NodeSpec(
                "approval_node",
                nodes["approval_node"],
                pauses=True,
                purpose="Open a forced checkpoint",
                calls=(APPROVALS_OPEN,),
            ),
            NodeSpec(
                "synthesis_llm_call",
                nodes["synthesis_llm_call"],
                pauses=True,
                purpose="Second call, with the skills",
                calls=(MODEL_COMPLETE, APPROVALS_OPEN),
            ),
            NodeSpec("output_format", nodes["output_format"], purpose="Settle the status"),
        ),
        edges=(
            Goto("system_prompt_node", "memory_node"),
            Goto("memory_node", "resume_guard"),
            Switch(
                "resume_guard",
                routes.after_resume_guard,
                {
                    "paused": "output_format",
                    "replay": "tool_node",
                    "synthesis": "synthesis_llm_call",
                    "proceed": "initial_llm_call",
                },
            ),
            Switch(
                "initial_llm_call",
                routes.after_model_call,
                {
                    "paused": "output_format",
                    "error": "output_format",
                    "tools": "tool_node",
                    "text": "skill_select_node",
                },
            ),
            Switch(
                "tool_node",
                routes.after_tool_node,
                {
                    "paused": "output_format",
                    "limit": "output_format",
                    "initial": "initial_llm_call",
                    "synthesis": "synthesis_llm_call",
                },
            ),
            Switch(
                "skill_select_node",
                routes.after_skill_select,
                {"selected": "skill_inject_node", "none": "approval_node"},
            ),
            Goto("skill_inject_node", "approval_node"),
            Switch(
                "approval_node",
                routes.after_approval,
                {"paused": "output_format", "proceed": "synthesis_llm_call"},
            ),
            Switch(
                "synthesis_llm_call",
                routes.after_model_call,
                {"paused": "output_format", "error": "output_format", "tools": "tool_node", "text": "output_format"},
            ),
            Goto("output_format", END),
        ),
        entries={FRESH: "system_prompt_node", PauseKind.APPROVAL.value: "resume_guard"},
        limits=RunLimits(counted={"max_iterations": MAX_ITERATIONS}),
        statuses={PENDING: Outcome.RUNNING, AWAITING_HITL: Outcome.AWAITING},
    )
