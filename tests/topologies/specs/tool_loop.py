"""`tool_loop` with stand-in nodes: five nodes, and the routes of the real one."""

from perdure.contracts.messages import Patch
from perdure.graph.nodes.fields import AWAITING_HITL
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.tool_loop.spec import tool_loop
from tests.topologies.rows import Leg, row
from tests.topologies.stand_ins import count, stand_ins


def run_calls(state: State) -> Patch:
    """Counts a round; the last that is allowed ends the turn."""
    iteration = count(state, "iteration") + 1
    patch: Patch = {"pending_tool_calls": [], "pending_mutation": None, "iteration": iteration}
    if iteration >= count(state, "max_iterations"):
        patch |= {"error": {"code": "iteration_limit", "message": "Too many rounds."}, "status": "limited"}
    return patch


def settle(state: State) -> Patch:
    """Sets the final status; a pause and a limit keep theirs."""
    if state["status"] in (AWAITING_HITL, "limited"):
        return {}
    return {"done": True, "status": "completed" if state["error"] is None else "failed"}


def topology() -> Topology:
    nodes = stand_ins(
        ("entry", "memory_prepare", "model", "gate", "final"),
        entry=lambda state: {"awaiting_approval": False, "memory_context_loaded": False, "status": "running"},
        memory_prepare=lambda state: {"memory_context_loaded": True},
        gate=run_calls,
        final=settle,
    )
    return tool_loop(nodes)


FRESH_RUN = "entry memory_prepare model"
ASKS: Patch = {"messages": [{"role": "assistant", "text": "I look."}], "pending_tool_calls": [{"id": "c1"}]}
SAYS: Patch = {"messages": [{"role": "assistant", "text": "Done."}], "pending_tool_calls": []}
CUT: Patch = {"pending_tool_calls": [], "continuation": {"number": 1, "message_id": "m"}}
WHOLE: Patch = {"continuation": {}}
WAITS: Patch = {
    "status": AWAITING_HITL,
    "awaiting_approval": True,
    "pending_mutation": [{"request_id": "r1"}],
    "pending_requests": [{"request_id": "r1"}],
}
RAN: Patch = {"messages": [{"role": "tool", "text": "ok"}], "pending_requests": []}
LIMIT: Patch = WAITS | {"pending_tool_calls": [], "awaiting_approval": False}
GATED = Leg(f"{FRESH_RUN} gate final", {"model": [ASKS], "gate": [WAITS]}, AWAITING_HITL)
GOES_ON = Leg("entry gate model final", {"gate": [RAN], "model": [SAYS]}, entry="approval")
FAILS: Patch = {"error": {"code": "gate_failed", "message": "The gate failed."}}
ROWS = (
    row("an approval pauses the turn, and the resumed turn skips memory", GATED, GOES_ON),
    row("a fresh run that finds an open gate goes there before any model call",
        Leg("entry gate final", {"entry": [{"pending_mutation": [{}]}], "gate": [WAITS]}, AWAITING_HITL)),
    row("a limit that is spent before the model is called pauses until it is raised",
        Leg(f"{FRESH_RUN} final", {"model": [LIMIT]}, AWAITING_HITL),
        Leg("entry gate model final", {"model": [SAYS]}, entry="approval")),
    row("an answer that was cut is continued", Leg(f"{FRESH_RUN} model final", {"model": [CUT, SAYS | WHOLE]})),
    row("a failure of the gate ends the turn",
        Leg(f"{FRESH_RUN} gate final", {"model": [ASKS], "gate": [FAILS]}, "failed"), error="gate_failed"),
    row("a model that never stops meets the limit of rounds",
        Leg(f"{FRESH_RUN} gate model gate final", {"model": [ASKS] * 2}, "limited"), error="iteration_limit",
        initial={"max_iterations": 2}),
)  # fmt: skip
