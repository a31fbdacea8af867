"""The activity `memory.load`: returns all that a fresh turn needs, including the episodes and documents it recalls."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from pydantic import JsonValue
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard
from perdure.contracts.activities import LoadRequest, TurnContext
from perdure.contracts.agents import AgentDefinition, PublishedAgent, TurnPlan
from perdure.contracts.context_assembly import ContextMemory
from perdure.contracts.events import MEMORY_CONTEXT_LOADED, MEMORY_SEARCH, STAGE
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits, Recalled, Use
from perdure.contracts.turns import Limits, TurnAddress
from perdure.contracts.values import canonical_json
from perdure.core.agents.plans import rules_of, turn_plan
from perdure.core.agents.prompts import RecalledEpisode, memory_message
from perdure.core.agents.rules import PLATFORM_RULES
from perdure.core.agents.skills import kept_skills
from perdure.core.agents.toolsets import LOADED_TOOLSETS, initial_toolsets
from perdure.core.approvals.gates import exempted_tools
from perdure.core.calls.context_assembly import slice_hash
from perdure.core.calls.ledger import STOPPED_OR_ENDED
from perdure.core.memory.facts import FAILED_RESOLVES, RECENT_ENTITIES_FIELD
from perdure.core.memory.search import context_message, within_budget
from perdure.embedding.embedder import query_vector
from perdure.graph.registry import spec
from perdure.store import agents
from perdure.store.calls import context_assembly as bundles
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, write
from perdure.store.memory import episodes
from perdure.store.memory.episodes import Vector
from perdure.store.memory.search import Question, add_excerpts, note_use, search
from perdure.store.turns import context as turn_context
from perdure.store.turns import start
from perdure.store.turns.context import LoadedTurn, TurnPersona, fix_persona

RECALL_SECONDS = 1.5
"""The limit of a whole search. `memory.load` can run inside a workflow task, which has three seconds."""
READ_METADATA = ("hitl_checkpoint_type", "input_type", "trace_id")
"""Request metadata that nodes of every topology use for decisions. A topology can name others. The rest stays in
Postgres, outside workflow histories."""
MIN_SIMILARITY = 0.2
MIRRORED_FIELDS = (RECENT_ENTITIES_FIELD, FAILED_RESOLVES)
"""Working-memory fields that are copied into state."""
MAX_MIRRORED_CHARACTERS = 8 * 1024
"""The size limit of a copied field. A longer one stays in Postgres, because histories contain the state and a client
can write any length."""
NO_DOCUMENTS = Recalled()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """The text to search for, and whose episodes to search."""

    tenant_id: str
    user_id: str
    agent_id: str
    text: str
    conversation_id: str
    """Its own episodes are not searched: the model receives its messages."""
    limit: int
    min_similarity: float


@dataclass(frozen=True, slots=True)
class EpisodeRecall:
    """The episodes that a search found, and the event about it."""

    hits: tuple[RecalledEpisode, ...]
    event: NewEvent


@dataclass(frozen=True, slots=True)
class NeededSearches:
    """The searches that must run before a turn's memory can be fixed."""

    episodes: EpisodeQuery | None
    documents: str
    """The query for documents; empty for no search."""


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The results of the searches."""

    episodes: EpisodeRecall | None = None
    documents: Recalled = NO_DOCUMENTS
    documents_unavailable: bool = False
    """True if they were searched in vain, because memory is unavailable."""

    @property
    def hits(self) -> tuple[RecalledEpisode, ...]:
        """The recalled episodes; empty if none were searched or found."""
        return self.episodes.hits if self.episodes else ()


class MemoryActivities:
    """The memory activities of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="memory.load")
    async def load(self, request: LoadRequest) -> TurnContext:
        """Returns the plan, user message, working memory and pending requests of a turn; also episodes and documents,
        if the agent enables them.

        Effects: fixes the memory text of the turn; writes the pending events. Retry: safe, the text is fixed once.
        """
        async with activity_guard():
            context = await self._load(request, None)
            if isinstance(context, NeededSearches):  # outside the transaction: a search must not hold the turn's lock
                context = await self._load(request, await self._search(request, context))
        if isinstance(context, NeededSearches):
            raise AssertionError("a search is requested once")
        return context

    async def _search(self, request: LoadRequest, searches: NeededSearches) -> SearchResults:
        """Runs both searches concurrently, because the time limit does not allow one after the other."""
        episodes, documents = await asyncio.gather(
            recall_episodes(self._deps, searches.episodes) if searches.episodes else _no_result(),
            try_recall_documents(self._deps, request.address, searches.documents)
            if searches.documents
            else _no_result(),
        )
        is_unavailable = bool(searches.documents) and documents is None
        return SearchResults(episodes, documents or NO_DOCUMENTS, is_unavailable)

    async def _load(self, request: LoadRequest, results: SearchResults | None) -> TurnContext | NeededSearches:
        """Returns the turn's context, or the searches that must run before it can be fixed."""
        async with self._deps.db.transaction(request.address.tenant_id) as tx:
            agent = await self._deps.agent_cache.read_pinned(tx, request.agent_id, request.agent_version)
            loaded = await turn_context.load_turn(tx, request)
            if loaded is None:
                if request.events:
                    await write(tx, request.address, [], pending=request.events)
                return TurnContext(problem=STOPPED_OR_ENDED)
            loaded_toolsets = loaded.working.pop(LOADED_TOOLSETS, None)  # only for the engine, as FAILED_RESOLVES
            searches = _needed_searches(request, agent, loaded) if self._deps.memory.enabled else None
            if searches is not None and loaded.memory_text is None and results is None:
                return searches
            exempt = exempted_tools(agent.cards, loaded.exempt_tools)
            if exempt != loaded.exempt_at_load:
                await agents.pin_exemptions(tx, request.address.turn_id, exempt)
            events, persona = await self._fix_memory_text(tx, request, loaded, results or SearchResults()), None
            if agent.definition.persona_template:
                persona, persona_events = await persona_for(tx, request.address, agent.definition, loaded)
                events += persona_events
            memory = await _context_memory(tx, request, agent)
            await write(tx, request.address, events, pending=request.events)
        toolsets = initial_toolsets(loaded_toolsets, agent.cards, agent.definition.toolsets)
        context = _build_context(request, agent, loaded, results or SearchResults(), toolsets, exempt)
        if memory is not None:
            context = context.model_copy(update={"context": memory})
        if persona is not None and context.plan is not None:
            context = context.model_copy(update={"plan": with_persona(context.plan, persona)})
        return context

    async def _fix_memory_text(
        self, tx: Connection, request: LoadRequest, loaded: LoadedTurn, results: SearchResults
    ) -> list[NewEvent]:
        """Fixes the text that this turn injects, unless an earlier load has fixed it."""
        if loaded.memory_text is not None:
            return []
        shown = {name: value for name, value in loaded.working.items() if name != FAILED_RESOLVES}
        working_memory_text = memory_message(shown, results.hits)
        text = "\n\n".join(part for part in (working_memory_text, results.documents.text) if part)
        if text or results.episodes:
            await turn_context.keep_memory_text(
                tx, request.address.turn_id, text, remembers=results.episodes is not None
            )
        events = [results.episodes.event] if results.episodes else []
        if results.documents_unavailable:
            events.append(_unavailable("documents"))
        if working_memory_text:
            data: dict[str, JsonValue] = {"fields": [*sorted(shown)]}
            if results.episodes:
                data["episodes"] = len(results.hits)
            events.append(NewEvent(MEMORY_CONTEXT_LOADED, data))
        documents = loaded_event(results.documents)
        return [*events, documents] if documents else events


def _needed_searches(request: LoadRequest, agent: PublishedAgent, loaded: LoadedTurn) -> NeededSearches | None:
    """Returns the searches for this agent's memory, or None if the agent remembers nothing."""
    policy = agent.definition.memory
    if policy is None or not (policy.episodic or policy.documents):
        return None
    query = EpisodeQuery(
        request.address.tenant_id,
        loaded.user_id,
        request.agent_id,
        loaded.user_text,
        request.address.conversation_id,
        policy.hits,
        MIN_SIMILARITY if policy.min_similarity is None else policy.min_similarity,
    )
    return NeededSearches(query if policy.episodic else None, loaded.user_text if policy.documents else "")


async def _no_result() -> None:
    return None


async def recall_episodes(deps: Deps, query: EpisodeQuery) -> EpisodeRecall:
    """Returns the nearest episodes, or none if memory is unavailable. Agents enable the search. If it fails or takes
    too long, it finds nothing and the turn continues."""
    try:
        async with asyncio.timeout(RECALL_SECONDS):
            embedded = await query_vector(deps.embedder, query.text)
            vector = Vector(*embedded) if embedded is not None else None
            async with deps.db.transaction(query.tenant_id) as tx:
                found = await episodes.find(
                    tx,
                    query.user_id,
                    query.agent_id,
                    query.text,
                    vector,
                    query.limit,
                    outside=query.conversation_id,
                    min_similarity=query.min_similarity,
                )
    except Exception as error:  # internal errors too, as of an embedder: memory only advises
        _log.warning("memory_search_failed", error=type(error).__name__)
        return EpisodeRecall((), _unavailable("episodic"))
    by = episodes.BY_COSINE if vector is not None else episodes.BY_FULL_TEXT
    hits: list[JsonValue] = [
        {"episode_id": episode.id, "similarity": episode.similarity, "by": episode.by} for episode in found
    ]
    event = NewEvent(MEMORY_SEARCH, {"scope": "episodic", "status": "ok", "by": by, "hits": hits})
    return EpisodeRecall(
        tuple(RecalledEpisode(episode.summary, episode.similarity or 0.0, episode.by) for episode in found), event
    )


def _unavailable(scope: str) -> NewEvent:
    """Returns the event about a search that failed. The turn continues without its results."""
    return NewEvent(MEMORY_SEARCH, {"scope": scope, "status": "unavailable", "hits": []})


async def try_recall_documents(deps: Deps, address: TurnAddress, query: str) -> Recalled | None:
    """Runs `recall_documents` in a separate transaction. If that fails, logs it and returns None, so that the turn
    continues."""
    try:
        async with asyncio.timeout(RECALL_SECONDS):
            async with deps.db.transaction(address.tenant_id) as tx:
                return await recall_documents(tx, address, query, deps.memory)
    except Exception as error:  # internal errors too: memory only advises, so it must not fail a turn
        _log.warning("document_recall_failed", error=type(error).__name__)
        return None


async def recall_documents(
    tx: Connection, address: TurnAddress, query: str, limits: MemoryLimits = DEFAULT_LIMITS
) -> Recalled:
    """Returns the documents of memory about `query` that this turn's user can read. A blank query finds nothing.

    Effects: usage rows, one per turn and version. Retry: safe. The caller must write `loaded_event` last.

    They are cut to their budget, and recorded in usage rows. The text is a system message of this turn only. It is
    fixed as the turn's memory text and sent with every model call. The next turn builds its own.
    """
    user_id = await tx.fetchval("SELECT user_id FROM turns WHERE id = $1", address.turn_id) if query.strip() else None
    if user_id is None:
        return NO_DOCUMENTS
    question = Question(query, str(user_id), address.conversation_id)
    found = await search(tx, question, limits.context_documents)
    fitting = within_budget(await add_excerpts(tx, question, found), limits.context_tokens)
    if not fitting:
        return NO_DOCUMENTS
    await note_use(tx, address, Use.INJECTED, [document.ref.version_id for document in fitting])
    return Recalled(text=context_message(fitting), hits=tuple(document.ref for document in fitting))


def loaded_event(recalled: Recalled) -> NewEvent | None:
    """Returns the event about the documents, or None if nothing was found."""
    if not recalled.hits:
        return None
    documents: list[JsonValue] = [ref.model_dump(mode="json") for ref in recalled.hits]
    return NewEvent(MEMORY_CONTEXT_LOADED, {"scope": "documents", "documents": documents})


async def persona_for(
    tx: Connection, address: TurnAddress, agent: AgentDefinition, loaded: LoadedTurn
) -> tuple[TurnPersona, Sequence[NewEvent]]:
    """Returns the persona that an earlier load of the turn has fixed. Otherwise fixes it now and returns it with its
    event. It is for an agent that uses a prompt template."""
    if loaded.persona is not None:
        return TurnPersona.model_validate(loaded.persona), ()
    root = next((skill.name for skill in agent.skills if skill.id == agent.root_skill), "")
    values = {
        "user_name": loaded.user_name or "user",
        "user_role": loaded.user_role,
        "agent_title": agent.title,
        "skill_name": root,
    }
    persona = await fix_persona(tx, address.turn_id, agent.persona_template, values)
    # The text stays out of the events: it may be the user's own draft.
    facts: dict[str, JsonValue] = persona.model_dump(mode="json", exclude={"text"}, exclude_defaults=True)
    return persona, [NewEvent(STAGE, {"section": "persona", **facts})]


def with_persona(plan: TurnPlan, persona: TurnPersona) -> TurnPlan:
    """Returns the plan with the template as the persona's key. The rest stays the agent's."""
    if not persona.text:
        return plan
    return plan.model_copy(update={"persona_key": persona.template, "persona_source": ""})


async def _context_memory(tx: Connection, request: LoadRequest, agent: PublishedAgent) -> ContextMemory | None:
    """Returns the input of the turn's context assembly, and the stored results of earlier turns."""
    assembly = agent.definition.assembly
    if assembly is None:
        return None
    texts = await bundles.newest_user_messages(tx, request.address.turn_id, max(assembly.slice_messages, 2))
    before, message = ["", *texts][-2:] if texts else ("", "")
    return ContextMemory(
        slice_hash=slice_hash(texts[-assembly.slice_messages :], assembly.acknowledgements),
        kept=await bundles.newest_bundles(tx, request.address),
        danger=await start.find_safety_keywords(message, before, assembly.danger),
    )


def _build_context(
    request: LoadRequest,
    agent: PublishedAgent,
    loaded: LoadedTurn,
    results: SearchResults,
    toolsets: dict[str, bool],
    exempt: tuple[str, ...],
) -> TurnContext:
    gate = loaded.pause
    mirrored = (*MIRRORED_FIELDS, *agent.definition.entity_fields)
    metadata = (*READ_METADATA, *spec(agent.definition.topology).metadata)
    rules = rules_of(agent, PLATFORM_RULES, loaded.rule_actions)
    plan = turn_plan(agent, Limits.model_validate(loaded.limits), rules, toolsets, exempt)
    return TurnContext(
        plan=plan.model_copy(update={"loaded_skills": kept_skills(agent.definition, loaded.skill_loads)}),
        user_message=loaded.user_message,
        user_name=loaded.user_name,
        user_role=loaded.user_role,
        metadata={name: loaded.metadata[name] for name in metadata if name in loaded.metadata},
        working={name: loaded.working[name] for name in mirrored if _is_small(loaded.working.get(name))},
        injected_fields=len(loaded.working),
        episodes=len(results.hits),
        injected=tuple(sorted(load.skill_id for load in loaded.skill_loads)),
        pending=gate.requests if gate else (),
        pending_round=gate.round if gate else None,
        earlier=gate.earlier if gate else (),
        restored=gate.snapshot if gate else {},
        used=loaded.used,
        events_written=max(loaded.events_through, *(event.number for event in request.events), 0),
    )


def _is_small(value: JsonValue) -> bool:
    return value is not None and len(canonical_json(value)) <= MAX_MIRRORED_CHARACTERS
