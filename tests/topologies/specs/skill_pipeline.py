"""`skill_pipeline` with stand-in nodes: its own edges, routers and state."""

from perdure.contracts.messages import Patch
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.skill_pipeline.spec import skill_pipeline
from tests.topologies.rows import Leg, row
from tests.topologies.stand_ins import Rows, count, stand_ins

IDS = (
    *("system_prompt_node", "memory_node", "resume_guard", "initial_llm_call", "tool_node"),
    *("skill_select_node", "skill_inject_node", "approval_node", "synthesis_llm_call", "output_format"),
)


def begin(state: State) -> Patch:
    """A run starts in the initial phase, with no skill selected or injected."""
    return {"llm_phase": "initial", "skill_injection_done": False, "selected_skill_ids": [], "status": "running"}


def run_calls(state: State) -> Patch:
    """All pending calls run in one round, which counts as one iteration."""
    return {"pending_tool_calls": [], "iteration": count(state, "iteration") + 1}


def settle(state: State) -> Patch:
    """Sets the final status; the formatting of the output counts as one iteration."""
    iteration = count(state, "iteration")
    if state["status"] == "awaiting_hitl":
        status = "awaiting_hitl"
    elif state["error"] is not None:
        status = "failed"
    else:
        status = "limited" if iteration >= count(state, "max_iterations") else "completed"
    return {"status": status, "iteration": iteration + 1}


def topology() -> Topology:
    nodes = stand_ins(
        IDS,
        system_prompt_node=begin,
        initial_llm_call=lambda state: {"llm_phase": "initial"},
        synthesis_llm_call=lambda state: {"llm_phase": "synthesis"},
        tool_node=run_calls,
        output_format=settle,
    )
    return skill_pipeline(nodes)


START = "system_prompt_node memory_node resume_guard"
FINISH = "skill_select_node approval_node synthesis_llm_call output_format"
ASKS: Patch = {"pending_tool_calls": [{"id": "c1"}]}
GATE: Patch = {
    "status": "awaiting_hitl",
    "pending_tool_calls": [],
    "pending_mutation": [{"request_id": "r1"}],
    "pending_requests": [{"request_id": "r1"}],
}
APPROVED: Patch = {"status": "running", "pending_tool_calls": [{"id": "c1"}], "pending_requests": []}
BROKEN: Patch = {"error": {"code": "model_refused", "message": "The provider said no."}}
CHECKPOINT: Patch = {"status": "awaiting_hitl", "pending_requests": [{"request_id": "r2"}]}
LIMIT: Patch = {"status": "awaiting_hitl", "pending_requests": [{"request_id": "r3"}]}
RAISED: Patch = {"status": "running", "pending_requests": [], "pending_tool_calls": []}
ANSWER = f"initial_llm_call {FINISH}"
SYNTHESIS = "initial_llm_call skill_select_node approval_node synthesis_llm_call"


def waits(trace: str, script: Rows) -> Leg:
    """A fresh run up to its pause."""
    return Leg(f"{START} {trace} output_format", script, "awaiting_hitl")


def resumed(trace: str, patch: Patch) -> Leg:
    """The run after a pause, with what its guard leaves."""
    return Leg(f"resume_guard {trace}", {"resume_guard": [patch]}, entry="approval")


GATED = waits("initial_llm_call tool_node", {"initial_llm_call": [ASKS], "tool_node": [GATE]})
CUT: Patch = {"continuation": {"number": 1, "message_id": "m"}}
WHOLE: Patch = {"continuation": {}}
ROWS = (
    row("an answer that was cut is continued, in each phase",
        Leg(f"{START} initial_llm_call initial_llm_call skill_select_node approval_node synthesis_llm_call"
            " synthesis_llm_call output_format",
            {"initial_llm_call": [CUT, WHOLE], "synthesis_llm_call": [CUT, WHOLE]})),
    row("the first model call fails",
        Leg(f"{START} initial_llm_call output_format", {"initial_llm_call": [BROKEN]}, "failed"),
        error="model_refused"),
    row("a skill is injected and its synthesis runs tools",
        Leg(f"{START} initial_llm_call skill_select_node skill_inject_node approval_node"
            " synthesis_llm_call tool_node synthesis_llm_call output_format",
            {"skill_select_node": [{"selected_skill_ids": ["s1"]}], "synthesis_llm_call": [ASKS]})),
    row("the second model call fails",
        Leg(f"{START} {ANSWER}", {"synthesis_llm_call": [BROKEN]}, "failed"), error="model_refused"),
    row("a gate pauses and the approved call is replayed", GATED, resumed(f"tool_node {ANSWER}", APPROVED)),
    row("a gate in the synthesis comes back to the synthesis",
        waits(f"{SYNTHESIS} tool_node", {"synthesis_llm_call": [ASKS], "tool_node": [GATE]}),
        resumed("tool_node synthesis_llm_call output_format", APPROVED)),
    row("a fresh run that finds an open gate pauses before any model call", waits("", {"memory_node": [GATE]})),
    row("a checkpoint skips the synthesis until it is approved",
        waits("initial_llm_call skill_select_node approval_node", {"approval_node": [CHECKPOINT]}),
        resumed(ANSWER, {"status": "running", "pending_mutation": None, "pending_requests": []})),
    row("a limit that is spent before the model is called pauses until it is raised",
        waits("initial_llm_call tool_node initial_llm_call", {"initial_llm_call": [ASKS, LIMIT]}),
        resumed(ANSWER, RAISED)),
    row("a limit that is spent before the synthesis pauses until it is raised",
        waits(SYNTHESIS, {"synthesis_llm_call": [LIMIT]}),
        resumed("synthesis_llm_call output_format", RAISED)),
    row("the iteration limit ends a loop of tools",
        Leg(f"{START} initial_llm_call tool_node initial_llm_call tool_node output_format",
            {"initial_llm_call": [ASKS, ASKS]}, "limited"), initial={"max_iterations": 2}),
)  # fmt: skip
