"""`memory.load`: all that a fresh turn needs, in one hop."""

import asyncio
from dataclasses import dataclass

from pydantic import JsonValue
from temporalio import activity

from activities.deps import Deps
from activities.edge import edge
from activities.persona import persona_for, with_persona
from activities.recall import Query, Recollection, recall
from activities.recall_documents import NOTHING, loaded_event, recall_or_nothing
from contracts.agents import PublishedAgent
from contracts.digests import canonical_json
from contracts.documents import Recalled
from contracts.events import MEMORY_CONTEXT_LOADED
from contracts.memory import LoadAsk, TurnContext
from contracts.pipeline import ContextMemory
from contracts.tables import CLIENT_TABLE
from contracts.turns import Limits
from policy.memory_text import Recalled as Episode
from policy.memory_text import memory_message
from policy.plans import rules_of, turn_plan
from policy.platform_rules import PLATFORM_RULES
from policy.refusals import OVER
from policy.skip import slice_hash
from policy.toolsets import LOADED_TOOLSETS, held
from policy.waivers import waived_of
from store import bundles, interventions, turn_context, waivers
from store.database import Connection
from store.journal import NewEvent, write
from store.turn_context import Loaded

READ_METADATA = ("hitl_checkpoint_type", CLIENT_TABLE, "input_type", "trace_id")
"""Request metadata that nodes decide with; the rest stays in Postgres, out of histories."""
MIRRORED = ("recent_entity_context",)
"""Working-memory fields that live in state too (S0-16)."""
MOST_MIRRORED_CHARACTERS = 8 * 1024
"""A longer field stays in Postgres: state rides through histories, and a client may write what it likes."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to be searched for before a turn's memory can be fixed."""

    episodes: Query | None
    documents: str
    """What documents should come near to; empty searches none."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found."""

    episodes: Recollection | None = None
    documents: Recalled = NOTHING

    @property
    def hits(self) -> tuple[Episode, ...]:
        """The episodes."""
        return self.episodes.hits if self.episodes else ()


class MemoryActivities:
    """The memory of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.load")
    async def load(self, ask: LoadAsk) -> TurnContext:
        """Plan, user message, working memory, episodes and documents for an agent that asks for them, open requests.

        Effects: fixes the memory text of the turn; writes the pending events. Retry: safe, the text is fixed once.
        """
        async with edge():
            context = await self._load(ask, None)
            if isinstance(context, Wanted):  # outside of the transaction: a search must not hold up the turn's lock
                context = await self._load(ask, await self._search(ask, context))
        if isinstance(context, Wanted):
            raise AssertionError("a search is asked for once")
        return context

    async def _search(self, ask: LoadAsk, wanted: Wanted) -> Found:
        """Both at once: neither has the time to wait for the other."""
        found, documents = await asyncio.gather(
            recall(self._deps, wanted.episodes) if wanted.episodes else _nothing(),
            recall_or_nothing(self._deps, ask.address, wanted.documents) if wanted.documents else _nothing(),
        )
        return Found(found, documents or NOTHING)

    async def _load(self, ask: LoadAsk, found: Found | None) -> TurnContext | Wanted:
        """What the turn starts from, or what must be searched for before that can be fixed."""
        async with self._deps.db.transaction(ask.address.tenant_id) as tx:
            agent = await self._deps.shelf.at(tx, ask.agent_id, ask.agent_version)
            loaded = await turn_context.load(tx, ask)
            if loaded is None:
                if ask.events:
                    await write(tx, ask.address, [], pending=ask.events)
                return TurnContext(problem=OVER)
            kept = loaded.working.pop(LOADED_TOOLSETS, None)  # the engine's own: nothing that a model is told
            wanted = _wanted(ask, agent, loaded) if self._deps.memory.enabled else None
            if wanted is not None and loaded.memory_text is None and found is None:
                return wanted
            waived = waived_of(agent.cards, loaded.waivers)
            if waived != loaded.waived:
                await waivers.take(tx, ask.address.turn_id, waived)
            events, persona = await self._fix(tx, ask, loaded, found or Found()), None
            if agent.definition.persona_template:
                persona, told = await persona_for(tx, ask.address, agent.definition, loaded)
                events += told
            memory = await _context_memory(tx, ask, agent)
            await write(tx, ask.address, events, pending=ask.events)
        toolsets = held(kept, agent.cards, agent.definition.toolsets)
        context = _context(ask, agent, loaded, found or Found(), toolsets, waived)
        if memory is not None:
            context = context.model_copy(update={"context": memory})
        if persona is not None and context.plan is not None:
            context = context.model_copy(update={"plan": with_persona(context.plan, persona)})
        return context

    async def _fix(self, tx: Connection, ask: LoadAsk, loaded: Loaded, found: Found) -> list[NewEvent]:
        """Fix the text that this turn injects, unless an earlier load has."""
        if loaded.memory_text is not None:
            return []
        own = memory_message(loaded.working, found.hits)
        text = "\n\n".join(part for part in (own, found.documents.text) if part)
        if text or found.episodes:
            await turn_context.keep_memory_text(tx, ask.address.turn_id, text, remembers=found.episodes is not None)
        told = [found.episodes.event] if found.episodes else []
        if own:
            data: dict[str, JsonValue] = {"fields": [*sorted(loaded.working)]}
            if found.episodes:
                data["episodes"] = len(found.hits)
            told.append(NewEvent(MEMORY_CONTEXT_LOADED, data))
        documents = loaded_event(found.documents)
        return [*told, documents] if documents else told


def _wanted(ask: LoadAsk, agent: PublishedAgent, loaded: Loaded) -> Wanted | None:
    """What this agent's memory is to be searched for; None for one that remembers nothing."""
    policy = agent.definition.memory
    if policy is None or not (policy.episodic or policy.documents):
        return None
    query = Query(ask.address.tenant_id, loaded.user_id, ask.agent_id, loaded.user_text, policy.hits)
    return Wanted(query if policy.episodic else None, loaded.user_text if policy.documents else "")


async def _context_memory(tx: Connection, ask: LoadAsk, agent: PublishedAgent) -> ContextMemory | None:
    """What feeds the turn's context assembly, and what earlier turns have left for it (S1-34)."""
    assembly = agent.definition.assembly
    if assembly is None:
        return None
    said = await bundles.said(tx, ask.address.turn_id, max(assembly.slice_messages, 2))
    before, message = ["", *said][-2:] if said else ("", "")
    return ContextMemory(
        slice_hash=slice_hash(said[-assembly.slice_messages :], assembly.acknowledgements),
        kept=await bundles.kept(tx, ask.address),
        danger=await interventions.found(message, before, assembly.danger),
    )


async def _nothing() -> None:
    return None


def _context(
    ask: LoadAsk,
    agent: PublishedAgent,
    loaded: Loaded,
    found: Found,
    toolsets: dict[str, bool],
    waived: tuple[str, ...],
) -> TurnContext:
    gate = loaded.gate
    mirrored = (*MIRRORED, *agent.definition.entity_fields)
    rules = rules_of(agent, PLATFORM_RULES, loaded.rule_actions)
    return TurnContext(
        plan=turn_plan(agent, Limits.model_validate(loaded.limits), rules, toolsets, waived),
        user_message=loaded.user_message,
        user_name=loaded.user_name,
        user_role=loaded.user_role,
        metadata={name: loaded.metadata[name] for name in READ_METADATA if name in loaded.metadata},
        working={name: loaded.working[name] for name in mirrored if _is_small(loaded.working.get(name))},
        injected_fields=len(loaded.working),
        episodes=len(found.hits),
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
