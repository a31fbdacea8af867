"""`memory.load`: all that a fresh turn needs, in one hop."""

from pydantic import JsonValue
from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from activities.persona import persona_for, with_persona
from activities.recall import Query, Recollection, recall
from contracts.agents import PublishedAgent
from contracts.digests import canonical_json
from contracts.events import MEMORY_CONTEXT_LOADED
from contracts.memory import LoadAsk, TurnContext
from contracts.turns import Limits
from policy.memory_text import memory_message
from policy.plans import rules_of, turn_plan
from policy.platform_rules import PLATFORM_RULES
from policy.refusals import OVER
from policy.toolsets import LOADED_TOOLSETS, held
from store import turn_context
from store.database import Connection
from store.journal import NewEvent, write
from store.turn_context import Loaded

READ_METADATA = ("hitl_checkpoint_type",)
"""Request metadata that nodes decide with; the rest stays in Postgres, out of histories."""
MIRRORED = ("recent_entity_context",)
"""Working-memory fields that live in state too (S0-16)."""
MOST_MIRRORED_CHARACTERS = 8 * 1024
"""A longer field stays in Postgres: state rides through histories, and a client may write what it likes."""


class MemoryActivities:
    """The memory of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.load")
    async def load(self, ask: LoadAsk) -> TurnContext:
        """Plan, user message, working memory, episodes for an agent that asks for them, and open requests.

        Effects: fixes the memory text of the turn; writes the pending events. Retry: safe, the text is fixed once.
        """
        async with edge():
            context = await self._load(ask, None)
            if isinstance(context, Query):  # outside of the transaction: a search must not hold up the turn's lock
                context = await self._load(ask, await recall(self._deps, context))
        if isinstance(context, Query):
            raise AssertionError("a search is asked for once")
        return context

    async def _load(self, ask: LoadAsk, found: Recollection | None) -> TurnContext | Query:
        """What the turn starts from, or what must be searched for before that can be fixed."""
        async with self._deps.db.transaction(ask.address.tenant_id) as tx:
            agent = await self._deps.shelf.at(tx, ask.agent_id, ask.agent_version)
            loaded = await turn_context.load(tx, ask)
            if loaded is None:
                return TurnContext(problem=OVER)
            kept = loaded.working.pop(LOADED_TOOLSETS, None)  # the engine's own: nothing that a model is told
            policy = agent.definition.memory
            if policy is not None and policy.episodic and loaded.memory_text is None and found is None:
                return Query(ask.address.tenant_id, loaded.user_id, ask.agent_id, loaded.user_text, policy.hits)
            events, persona = await self._fix(tx, ask, loaded, found), None
            if agent.definition.persona_template:
                persona, told = await persona_for(tx, ask.address, agent.definition, loaded)
                events += told
            await write(tx, ask.address, events, pending=ask.events)
        toolsets = held(kept, agent.cards, agent.definition.toolsets)
        context = _context(ask, agent, loaded, found, toolsets)
        if persona is not None and context.plan is not None:
            context = context.model_copy(update={"plan": with_persona(context.plan, persona)})
        return context

    async def _fix(self, tx: Connection, ask: LoadAsk, loaded: Loaded, found: Recollection | None) -> list[NewEvent]:
        """Fix the text that this turn injects, unless an earlier load has."""
        if loaded.memory_text is not None:
            return []
        text = memory_message(loaded.working, found.hits if found else ())
        if text or found:
            await turn_context.keep_memory_text(tx, ask.address.turn_id, text, remembers=found is not None)
        told = [found.event] if found else []
        if text:
            data: dict[str, JsonValue] = {"fields": [*sorted(loaded.working)]}
            if found:
                data["episodes"] = len(found.hits)
            told.append(NewEvent(MEMORY_CONTEXT_LOADED, data))
        return told


def _context(
    ask: LoadAsk, agent: PublishedAgent, loaded: Loaded, found: Recollection | None, toolsets: dict[str, bool]
) -> TurnContext:
    gate = loaded.gate
    mirrored = (*MIRRORED, *agent.definition.entity_fields)
    rules = rules_of(agent, PLATFORM_RULES, loaded.rule_actions)
    return TurnContext(
        plan=turn_plan(agent, Limits.model_validate(loaded.limits), rules, toolsets),
        user_message=loaded.user_message,
        user_name=loaded.user_name,
        user_role=loaded.user_role,
        metadata={name: loaded.metadata[name] for name in READ_METADATA if name in loaded.metadata},
        working={name: loaded.working[name] for name in mirrored if _is_small(loaded.working.get(name))},
        injected_fields=len(loaded.working),
        episodes=len(found.hits) if found else 0,
        injected=loaded.injected,
        pending=gate.requests if gate else (),
        pending_round=gate.round if gate else None,
        earlier=gate.earlier if gate else (),
        restored=gate.snapshot if gate else {},
        used=loaded.used,
        events_written=max(loaded.events_through, *(event.number for event in ask.events), 0),
    )


def _is_small(value: JsonValue) -> bool:
    return value is not None and len(canonical_json(value)) <= MOST_MIRRORED_CHARACTERS
