"""`context_assembly` with stand-in nodes: eight stages, and the routes of the real one."""

from perdure.contracts.messages import Patch
from perdure.graph.nodes.fields import AWAITING_HITL
from perdure.graph.spec import State, Topology
from perdure.graph.topologies.context_assembly.spec import StageId, context_assembly
from tests.topologies.rows import Leg, row
from tests.topologies.stand_ins import stand_ins

IDS = tuple(stage.value for stage in StageId)


def stage(name: str) -> Patch:
    """Every stage adds its name to the completed ones."""
    return {"completed_stages": [name]}


def topology() -> Topology:
    def settle(state: State) -> Patch:
        if state["status"] == AWAITING_HITL:
            return {}
        return stage("finalize") | {"status": "completed" if state["error"] is None else "failed"}

    def clear(state: State) -> Patch:
        return stage("preflight") | {"safety_hijacked": False}

    own = {"preflight": clear, "finalize": settle}
    behaviours = {name: (lambda state, name=name: stage(name)) for name in IDS if name not in own}
    return context_assembly(stand_ins(IDS, **behaviours, **own))


GATHER = "preflight assembly_gate context_assembly empathy context_format"
WAITS: Patch = {"status": AWAITING_HITL, "pending_requests": [{"request_id": "r1"}]}
ROWS = (
    row("a hijacked turn takes the safety path",
        Leg("preflight safety_intervention finalize", {"preflight": [{"safety_hijacked": True}]})),
    row("a failed assembly never reaches the navigator",
        Leg(f"{GATHER} finalize",
            {"context_assembly": [{"error": {"code": "tool_failed", "message": "A required tool failed."}}]},
            "failed"), error="tool_failed"),
    row("an approval pauses the navigator, and the resumed turn goes on there",
        Leg(f"{GATHER} navigator finalize", {"navigator": [WAITS]}, AWAITING_HITL),
        Leg("navigator finalize", {"navigator": [{"status": "running"}]}, entry="approval")),
)  # fmt: skip
