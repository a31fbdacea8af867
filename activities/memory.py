"""`memory.load`: all that a fresh turn needs, in one hop."""

from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from contracts.events import MEMORY_CONTEXT_LOADED
from contracts.memory import LoadAsk, TurnContext
from contracts.turns import Limits
from policy.plans import turn_plan
from policy.prompt import memory_message
from policy.refusals import OVER
from store import turn_context
from store.journal import NewEvent, write

READ_METADATA = ("hitl_checkpoint_type",)
"""Request metadata that nodes decide with; the rest stays in Postgres, out of histories."""
MIRRORED = ("recent_entity_context",)
"""Working-memory fields that live in state too (S0-16)."""


class MemoryActivities:
    """The memory of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.load")
    async def load(self, ask: LoadAsk) -> TurnContext:
        """Plan, user message, working memory and open requests.

        Effects: fixes the memory text of the turn; writes the pending events. Retry: safe, the text is fixed once.
        """
        async with edge(), self._deps.db.transaction(ask.address.tenant_id) as tx:
            agent = await self._deps.shelf.at(tx, ask.agent_id, ask.agent_version)
            loaded = await turn_context.load(tx, ask)
            if loaded is None:
                return TurnContext(problem=OVER)
            events: list[NewEvent] = []
            if loaded.memory_text is None:
                text = memory_message(loaded.working)
                if text:
                    await turn_context.keep_memory_text(tx, ask.address.turn_id, text)
                    events.append(NewEvent(MEMORY_CONTEXT_LOADED, {"fields": [*sorted(loaded.working)]}))
            await write(tx, ask.address, events, pending=ask.events)
        gate = loaded.gate
        return TurnContext(
            plan=turn_plan(agent, Limits.model_validate(loaded.limits)),
            user_message=loaded.user_message,
            user_name=loaded.user_name,
            user_role=loaded.user_role,
            metadata={name: loaded.metadata[name] for name in READ_METADATA if name in loaded.metadata},
            working={name: loaded.working[name] for name in MIRRORED if name in loaded.working},
            injected_fields=len(loaded.working),
            pending=gate.requests if gate else (),
            pending_round=gate.round if gate else None,
            earlier=gate.earlier if gate else (),
            used=loaded.used,
            events_written=max(loaded.events_through, *(event.number for event in ask.events), 0),
        )
