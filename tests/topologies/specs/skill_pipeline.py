"""S0 with stand-in nodes: its own edges, routers and state."""

from perdure.contracts.messages import Patch
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.skill_pipeline.spec import skill_pipeline
from tests.topologies.rows import Leg, Row
from tests.topologies.stand_ins import count, stand_ins

IDS = (
    *("system_prompt_node", "memory_node", "resume_guard", "initial_llm_call", "tool_node"),
    *("skill_select_node", "skill_inject_node", "approval_node", "synthesis_llm_call", "output_format"),
)


def begin(state: State) -> Patch:
    """S0-24."""
    return {"llm_phase": "initial", "skill_injection_done": False, "selected_skill_ids": [], "status": "running"}


def run_calls(state: State) -> Patch:
    """S0-46."""
    return {"pending_tool_calls": [], "iteration": count(state, "iteration") + 1}


def settle(state: State) -> Patch:
    """S0-73."""
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
REJECTED: Patch = {"status": "running", "pending_mutation": None, "pending_requests": []}
BROKEN: Patch = {"error": {"code": "model_refused", "message": "The provider said no."}}
CHECKPOINT: Patch = {"status": "awaiting_hitl", "pending_requests": [{"request_id": "r2"}]}
LIMIT: Patch = {"status": "awaiting_hitl", "pending_requests": [{"request_id": "r3"}]}
RAISED: Patch = {"status": "running", "pending_requests": [], "pending_tool_calls": []}
SELECTS: Patch = {"selected_skill_ids": ["s1"]}

ROWS = (
    Row("an answer without tools or skills", (Leg(f"{START} initial_llm_call {FINISH}", "completed"),)),
    Row(
        "the first model call fails",
        (Leg(f"{START} initial_llm_call output_format", "failed", {"initial_llm_call": [BROKEN]}),),
        error="model_refused",
    ),
    Row(
        "two rounds of tools before the answer",
        (
            Leg(
                f"{START} initial_llm_call tool_node initial_llm_call tool_node initial_llm_call {FINISH}",
                "completed",
                {"initial_llm_call": [ASKS, ASKS]},
            ),
        ),
    ),
    Row(
        "a skill is injected and its synthesis runs tools",
        (
            Leg(
                f"{START} initial_llm_call skill_select_node skill_inject_node approval_node"
                " synthesis_llm_call tool_node synthesis_llm_call output_format",
                "completed",
                {"skill_select_node": [SELECTS], "synthesis_llm_call": [ASKS]},
            ),
        ),
    ),
    Row(
        "the second model call fails",
        (Leg(f"{START} initial_llm_call {FINISH}", "failed", {"synthesis_llm_call": [BROKEN]}),),
        error="model_refused",
    ),
    Row(
        "a gate pauses and the approved call is replayed",
        (
            Leg(
                f"{START} initial_llm_call tool_node output_format",
                "awaiting_hitl",
                {"initial_llm_call": [ASKS], "tool_node": [GATE]},
            ),
            Leg(
                f"resume_guard tool_node initial_llm_call {FINISH}",
                "completed",
                {"resume_guard": [APPROVED]},
                entry="approval",
            ),
        ),
    ),
    Row(
        "a gate in the synthesis comes back to the synthesis",
        (
            Leg(
                f"{START} initial_llm_call skill_select_node approval_node synthesis_llm_call tool_node output_format",
                "awaiting_hitl",
                {"synthesis_llm_call": [ASKS], "tool_node": [GATE]},
            ),
            Leg(
                "resume_guard tool_node synthesis_llm_call output_format",
                "completed",
                {"resume_guard": [APPROVED]},
                entry="approval",
            ),
        ),
    ),
    Row(
        "an approved checkpoint in the synthesis goes on there",
        (
            Leg(
                f"{START} initial_llm_call skill_select_node approval_node synthesis_llm_call tool_node output_format",
                "awaiting_hitl",
                {"synthesis_llm_call": [ASKS], "tool_node": [CHECKPOINT]},
            ),
            Leg(
                "resume_guard synthesis_llm_call output_format",
                "completed",
                {"resume_guard": [APPROVED | {"pending_tool_calls": []}]},
                entry="approval",
            ),
        ),
    ),
    Row(
        "an undecided gate pauses again until it is rejected",
        (
            Leg(
                f"{START} initial_llm_call tool_node output_format",
                "awaiting_hitl",
                {"initial_llm_call": [ASKS], "tool_node": [GATE]},
            ),
            Leg("resume_guard output_format", "awaiting_hitl", entry="approval"),
            Leg(f"resume_guard initial_llm_call {FINISH}", "completed", {"resume_guard": [REJECTED]}, entry="approval"),
        ),
    ),
    Row(
        "a fresh run that finds an open gate pauses before any model call",
        (Leg(f"{START} output_format", "awaiting_hitl", {"memory_node": [GATE]}),),
    ),
    Row(
        "a checkpoint skips the synthesis until it is approved",
        (
            Leg(
                f"{START} initial_llm_call skill_select_node approval_node output_format",
                "awaiting_hitl",
                {"approval_node": [CHECKPOINT]},
            ),
            Leg(f"resume_guard initial_llm_call {FINISH}", "completed", {"resume_guard": [REJECTED]}, entry="approval"),
        ),
    ),
    Row(
        "a limit that is spent before the model is called pauses until it is raised",
        (
            Leg(
                f"{START} initial_llm_call tool_node initial_llm_call output_format",
                "awaiting_hitl",
                {"initial_llm_call": [ASKS, LIMIT]},
            ),
            Leg(f"resume_guard initial_llm_call {FINISH}", "completed", {"resume_guard": [RAISED]}, entry="approval"),
        ),
    ),
    Row(
        "a limit that is spent before the synthesis pauses until it is raised",
        (
            Leg(
                f"{START} initial_llm_call skill_select_node approval_node synthesis_llm_call output_format",
                "awaiting_hitl",
                {"synthesis_llm_call": [LIMIT]},
            ),
            Leg(
                "resume_guard synthesis_llm_call output_format",
                "completed",
                {"resume_guard": [RAISED]},
                entry="approval",
            ),
        ),
    ),
    Row(
        "the iteration limit ends a loop of tools",
        (
            Leg(
                f"{START} initial_llm_call tool_node initial_llm_call tool_node output_format",
                "limited",
                {"initial_llm_call": [ASKS, ASKS]},
            ),
        ),
        initial={"max_iterations": 2},
    ),
)
