"""Memory: the working memory of a conversation, and episodes that a search finds again.

Both belong to their user: a reviewer who can read the tenant's turns cannot read its users' memories.
"""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from perdure.api.auth import Caller, ServicesDep, SubjectCaller
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import ConversationId, Cursor, EntityId, Limit, as_uuid
from perdure.api.routes.memory_bodies import MAX_EPISODES, EpisodeBody, FieldsBody, SearchBody
from perdure.contracts.errors import CallerError
from perdure.embedding.embedder import query_vector
from perdure.store import agents
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note
from perdure.store.memory import episodes, facts, working_memory
from perdure.store.memory.episodes import Vector
from perdure.store.turns import conversations

memory_router = APIRouter(prefix="/v1/memory", tags=["memory"])
MAX_LISTED = 50
ENTITIES_PAGE_LIMIT = 50


@memory_router.get("/working/{conversation_id}")
async def read(services: ServicesDep, caller: Caller, conversation_id: ConversationId) -> dict[str, object]:
    """Returns the fields of your conversation's working memory and renews their expiry."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.user_id)
        return {"conversation_id": conversation_id, "fields": await working_memory.read(tx, conversation_id)}


@memory_router.put("/working/{conversation_id}")
async def write(
    services: ServicesDep, caller: Caller, conversation_id: ConversationId, body: FieldsBody
) -> dict[str, object]:
    """Merges fields into working memory. Returns 413 if all fields together exceed 64 KB."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.user_id)
        await working_memory.lock_writes(tx, conversation_id)
        total = await working_memory.merge(tx, caller.tenant_id, conversation_id, dict(body.fields), body.ttl_seconds)
        fields = await working_memory.read(tx, conversation_id)
    return {"conversation_id": conversation_id, "fields": fields, "bytes": total}


@memory_router.delete("/working/{conversation_id}", status_code=204)
async def clear(
    services: ServicesDep,
    caller: Caller,
    conversation_id: ConversationId,
    field: Annotated[
        list[str] | None, Query(description="A field to delete; repeat it for several. Omit it to delete all fields.")
    ] = None,
) -> Response:
    """Deletes these fields, or all of them."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.user_id)
        await working_memory.lock_writes(tx, conversation_id)
        await working_memory.remove(tx, conversation_id, field)
    return Response(status_code=204)


@memory_router.post("/episodic", status_code=201)
async def keep(services: ServicesDep, caller: SubjectCaller, body: EpisodeBody, key: Key = None) -> JSONResponse:
    """Stores a summary of your conversation as an episode. Agents with episodic memory do this after each completed
    turn."""
    conversation_id = as_uuid(body.conversation_id, "conversation")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        conversation = await conversations.get_conversation(tx, conversation_id, caller.user_id)
        agent = str(conversation["agent"])
        episode_id = await episodes.store_summary(tx, conversation_id, caller.user_id, agent, body.summary)
        return 201, {"id": episode_id, "conversation_id": conversation_id, "agent": agent}, None

    return await run_once(services, caller, "memory/episodic", key, body, work)


@memory_router.post("/episodic/search")
async def search(services: ServicesDep, caller: SubjectCaller, body: SearchBody) -> dict[str, object]:
    """Searches your episodes with an agent. `by` names the method: embeddings (cosine) or full text."""
    embedded = await query_vector(services.embedder, body.query)
    vector = Vector(*embedded) if embedded is not None else None
    async with services.db.transaction(caller.tenant_id) as tx:
        await agents.current_agent(tx, body.agent)
        matches = await episodes.find(tx, caller.user_id, body.agent, body.query, vector, min(body.limit, MAX_EPISODES))
    return {"items": [asdict(episode) for episode in matches], "next": None}


@memory_router.get("/episodic")
async def list_episodes(
    services: ServicesDep,
    caller: SubjectCaller,
    conversation_id: Annotated[str, Query(description="Only summaries of this conversation")],
    limit: Annotated[int, Query(ge=1, description=f"Values above {MAX_LISTED} are reduced to {MAX_LISTED}")] = 20,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists the episodes of your conversation, oldest first."""
    conversation_uuid = as_uuid(conversation_id, "conversation")
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_uuid, caller.user_id)
        items, following = await episodes.list_episodes(tx, conversation_uuid, min(limit, MAX_LISTED), cursor)
    return {"items": [_episode_body(episode) for episode in items], "next": following}


def _episode_body(episode: episodes.Episode) -> dict[str, object]:
    body = asdict(episode)
    del body["similarity"], body["by"]
    return body


entities_router = APIRouter(prefix="/v1/entities", tags=["entities"])


@entities_router.get("", operation_id="found_v1_entities_get")
async def find_entities(
    services: ServicesDep,
    caller: Caller,
    name: Annotated[str, Query(min_length=1, max_length=200, description="Name of the entity")],
    limit: Limit = 20,
) -> dict[str, object]:
    """Lists entities by name or alias. If none matches exactly, lists entities whose name contains it. Ignores case and
    spacing."""
    async with services.db.transaction(caller.tenant_id) as tx:
        entities = await facts.find_entities(tx, name, min(limit, ENTITIES_PAGE_LIMIT))
    return {"items": [asdict(entity) for entity in entities], "next": None}


@entities_router.get("/{entity_id}", operation_id="get_v1_entities__entity_id__get")
async def get_entity(services: ServicesDep, caller: Caller, entity_id: EntityId) -> dict[str, object]:
    """Returns one entity with its attributes."""
    async with services.db.transaction(caller.tenant_id) as tx:
        entity = await facts.get_entity(tx, entity_id)
    if entity is None:
        raise CallerError("entity_not_found", "Entity not found", status=404)
    return asdict(entity)
