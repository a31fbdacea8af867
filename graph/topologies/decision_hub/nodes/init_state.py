"""state_init_node: who asks, under which ids, and which memory the turn may use (S3-14, S3-15)."""

from dataclasses import dataclass

from contracts.facts import FactScope
from contracts.ids import trace_id
from contracts.messages import Patch
from graph.nodes.reading import error_of
from graph.nodes.recalled import planned
from graph.ports import Ports
from graph.spec import State


@dataclass(frozen=True, slots=True)
class InitState:
    """Fix the ids once: no later node writes them."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A trace id that came with the request is kept; without one it is the turn's own id."""
        context = await ports.memory.load()
        ids: Patch = {
            "trace_id": trace_id(context.metadata.get("trace_id"), str(state["execution_id"])),
            "created_at": ports.clock.now().isoformat(),
        }
        if error_of(state) is not None or context.plan is None or context.user_message is None:
            return ids
        plan = context.plan
        in_conversation = FactScope.CONVERSATION in plan.facts
        pinned = planned(context)
        del pinned["max_iterations"]  # the path is fixed: nothing goes round
        return (ids | pinned) | {
            "messages": [context.user_message.model_dump(mode="json")],
            "memory_read_authorized": in_conversation,
            "memory_write_authorized": in_conversation,
            "long_term_memory_requested": FactScope.USER in plan.facts,
        }
