"""Memory: the scratchpad of a conversation, and the episodes that are found again (S0-29, S0-30).

Both are their user's own: whoever reads a tenant's turns does not read its users' memories.
"""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field, JsonValue

from perdure.api.auth import Open, Reader
from perdure.api.idempotency import Key, once
from perdure.api.requests import Body, ConversationId, EntityId, FileBody, FileId, Limit, as_uuid
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.core.budgets import VARIABLES, Scope
from perdure.core.memory.documents import ADMIN
from perdure.core.memory.files import media_type_of, safe_name
from perdure.embedding.embedder import query_vector
from perdure.store import agents, budgets, idempotency
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note
from perdure.store.memory import episodes, facts, files, working_memory
from perdure.store.memory.episodes import Vector
from perdure.store.turns import conversations

memory_router = APIRouter(prefix="/v1/memory", tags=["memory"])
MOST_HITS = 20
MOST_LISTED = 50
FieldName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
Text = Annotated[str, Field(min_length=1, max_length=4_000, pattern=r"\S")]


class FieldsBody(Body):
    """PUT /v1/memory/working/{conversation_id}."""

    fields: dict[FieldName, JsonValue]
    """Merged over what is there; null removes one."""
    ttl_seconds: int = Field(default=working_memory.TTL_SECONDS, ge=1, le=working_memory.MOST_TTL_SECONDS, strict=True)


class EpisodeBody(Body):
    """POST /v1/memory/episodic."""

    conversation_id: str = Field(max_length=100)
    summary: Text


class SearchBody(Body):
    """POST /v1/memory/episodic/search."""

    agent: str = Field(min_length=1, max_length=64)
    query: Text
    limit: int = Field(default=3, ge=1, strict=True, description=f"clamped to {MOST_HITS}")


@memory_router.get("/working/{conversation_id}")
async def read(services: Open, who: Reader, conversation_id: ConversationId) -> dict[str, object]:
    """The live fields of your conversation, each of which lives on from now."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, who.user_id)
        return {"conversation_id": conversation_id, "fields": await working_memory.read(tx, conversation_id)}


@memory_router.put("/working/{conversation_id}")
async def write(services: Open, who: Reader, conversation_id: ConversationId, body: FieldsBody) -> dict[str, object]:
    """Merge fields over what is there; all of them together hold 64 KB at most, or it is 413."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, who.user_id)
        await working_memory.hold(tx, conversation_id)
        total = await working_memory.merge(tx, who.tenant_id, conversation_id, dict(body.fields), body.ttl_seconds)
        fields = await working_memory.read(tx, conversation_id)
    return {"conversation_id": conversation_id, "fields": fields, "bytes": total}


@memory_router.delete("/working/{conversation_id}", status_code=204)
async def clear(
    services: Open,
    who: Reader,
    conversation_id: ConversationId,
    field: Annotated[list[str] | None, Query(description="repeat it for several; none of it: every field")] = None,
) -> Response:
    """Forget these fields, or all of them."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, who.user_id)
        await working_memory.hold(tx, conversation_id)
        await working_memory.remove(tx, conversation_id, field)
    return Response(status_code=204)


@memory_router.post("/episodic", status_code=201)
async def keep(services: Open, who: Reader, body: EpisodeBody, key: Key = None) -> JSONResponse:
    """Keep a summary of your conversation; completed turns of agents with episodic memory keep theirs by themselves."""
    conversation_id = as_uuid(body.conversation_id, "conversation")

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        conversation = await conversations.get_conversation(tx, conversation_id, who.user_id)
        agent = str(conversation["agent"])
        episode_id = await episodes.keep(tx, conversation_id, who.user_id, agent, body.summary)
        return 201, {"id": episode_id, "conversation_id": conversation_id, "agent": agent}, None

    return await once(services, who, "memory/episodic", key, body, work)


@memory_router.post("/episodic/search")
async def search(services: Open, who: Reader, body: SearchBody) -> dict[str, object]:
    """Your episodes with an agent that come nearest to a text; `by` says whether by cosine or by full text."""
    made = await query_vector(services.embedder, body.query)
    vector = Vector(*made) if made is not None else None
    async with services.db.transaction(who.tenant_id) as tx:
        await agents.current_agent(tx, body.agent)
        found = await episodes.find(tx, who.user_id, body.agent, body.query, vector, min(body.limit, MOST_HITS))
    return {"items": [asdict(each) for each in found], "next": None}


@memory_router.get("/episodic")
async def list_episodes(
    services: Open,
    who: Reader,
    conversation_id: Annotated[str, Query()],
    limit: Annotated[int, Query(ge=1, description=f"clamped to {MOST_LISTED}")] = 20,
    cursor: str | None = None,
) -> dict[str, object]:
    """The episodes of your conversation, oldest first."""
    wanted = as_uuid(conversation_id, "conversation")
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get_conversation(tx, wanted, who.user_id)
        items, following = await episodes.listed(tx, wanted, min(limit, MOST_LISTED), cursor)
    return {"items": [_entry(each) for each in items], "next": following}


def _entry(episode: episodes.Episode) -> dict[str, object]:
    shown = asdict(episode)
    del shown["similarity"], shown["by"]
    return shown


# --- Entities: what `entity_resolve` finds and `create_entity` registers, for whoever belongs to the tenant (S0-72).

entities_router = APIRouter(prefix="/v1/entities", tags=["entities"])
ENTITIES_PAGE_LIMIT = 50


@entities_router.get("")
async def found(
    services: Open, who: Reader, name: Annotated[str, Query(min_length=1, max_length=200)], limit: Limit = 20
) -> dict[str, object]:
    """Entities of this name or alias; where none is, those whose name contains it. Case and spacing do not count."""
    async with services.db.transaction(who.tenant_id) as tx:
        each = await facts.find_entities(tx, name, min(limit, ENTITIES_PAGE_LIMIT))
    return {"items": [asdict(entity) for entity in each], "next": None}


@entities_router.get("/{entity_id}")
async def get(services: Open, who: Reader, entity_id: EntityId) -> dict[str, object]:
    """One entity with its attributes."""
    async with services.db.transaction(who.tenant_id) as tx:
        entity = await facts.get_entity(tx, entity_id)
    if entity is None:
        raise CallerError("entity_not_found", "there is no such entity", status=404)
    return asdict(entity)


# --- Files: uploads into a conversation, and what its turns made.

files_router = APIRouter(prefix="/v1", tags=["files"])
FILES_PAGE_LIMIT = 100
SHOWN_IN_PLACE = frozenset({"image/png", "image/svg+xml"})
_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}
"""Whatever a file holds, a browser runs nothing of it. It is not stored there either: whoever signs in next at the same
browser has other rights."""
_PART_BYTES = 2**20


@files_router.post("/conversations/{conversation_id}/files", status_code=201)
async def upload(
    services: Open,
    who: Reader,
    conversation_id: ConversationId,
    request: Request,
    name: Annotated[str, Query(min_length=1, max_length=400)],
    key: Key = None,
) -> JSONResponse:
    """Upload a file: its bytes are the body, its type is the header `Content-Type`, its name is in the query. Whatever
    can be refused is refused before the body is read."""
    kept_name, media_type = safe_name(name), media_type_of(request.headers.get("content-type", ""))
    length = services.uploads.check_length(request.headers.get("content-length", ""))
    route = f"files/{conversation_id}"
    async with services.db.transaction(who.tenant_id) as tx:
        if key is None or not await idempotency.is_used(tx, who.user_id, route, key):  # else it is answered as before
            await conversations.get_conversation(tx, conversation_id, who.user_id)
            await budgets.check_room_for_file(tx, services.caps.quotas, who.user_id, conversation_id, length or 0)
    async with services.uploads.received(who.tenant_id, who.user_id, length, request.stream()) as spooled:
        await services.uploads.check(spooled, media_type)
        body = FileBody(name=kept_name, media_type=media_type, sha256=spooled.sha256)
        async with services.uploads.content(spooled) as content:
            file = files.NewFile(new_id(), kept_name, media_type, content, spooled.size_bytes, spooled.sha256)

            async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
                await conversations.get_conversation(tx, conversation_id, who.user_id)
                (kept,) = await files.keep(tx, conversation_id, who.user_id, [file])
                await budgets.check_room(tx, services.caps.quotas, who.user_id, conversation_id)
                return 201, kept, None

            return await once(services, who, route, key, body, work)


@files_router.get("/conversations/{conversation_id}/files")
async def list_files(
    services: Open, who: Reader, conversation_id: ConversationId, limit: Limit = 50, cursor: str | None = None
) -> dict[str, object]:
    """The files of a conversation, newest first."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, who.user_id)
        items, following = await files.of_conversation(tx, conversation_id, min(limit, FILES_PAGE_LIMIT), cursor)
    return {"items": items, "next": following}


@files_router.get("/files/{file_id}", response_class=Response)
async def download_file(services: Open, who: Reader, file_id: FileId) -> Response:
    """A file's bytes. Pictures are shown in place, everything else is downloaded."""
    async with services.db.transaction(who.tenant_id) as tx:
        file = await files.find(tx, file_id, who.scope)
        first = await files.part(tx, file.id, 0, _PART_BYTES)
    place = "inline" if file.media_type in SHOWN_IN_PLACE else "attachment"
    headers = {
        **_INERT,
        "Content-Disposition": f"{place}; filename*=UTF-8''{quote(file.name, safe='')}",
        "Content-Length": str(file.size_bytes),
    }
    return StreamingResponse(_parts(services, who.tenant_id, file, first), media_type=file.media_type, headers=headers)


@files_router.delete("/files/{file_id}", status_code=204)
async def delete(services: Open, who: Reader, file_id: FileId) -> Response:
    """Delete an upload of yours for good. What a turn made stays on record: 409 `file_of_turn`."""
    async with services.db.transaction(who.tenant_id) as tx:
        await files.delete(tx, file_id, who.user_id)
    return Response(status_code=204)


@files_router.get("/usage")
async def usage(services: Open, who: Reader, conversation: str | None = None) -> dict[str, object]:
    """What you keep and what you may keep, in bytes; with `conversation` that of one of yours too, and for an
    administrator that of the tenant."""
    limits, place = services.caps.quotas, as_uuid(conversation, "conversation") if conversation else None
    async with services.db.transaction(who.tenant_id) as tx:
        if place is not None:
            await conversations.get_conversation(tx, place, who.user_id)
        used, _ = await budgets.bytes_used(tx, who.user_id, place)
    scopes = [*([Scope.CONVERSATION] if place else []), Scope.USER, *([Scope.TENANT] if ADMIN in who.roles else [])]
    items = [
        {
            "scope": scope.value,
            "used_bytes": used.of(scope),
            "limit_bytes": limits.of(scope) or None,
            "variable": VARIABLES[scope],
        }
        for scope in scopes
    ]
    return {"items": items, "next": None}


async def _parts(services: Services, tenant_id: str, file: files.FoundFile, first: bytes) -> AsyncIterator[bytes]:
    """The content piece by piece, so that a slow reader holds a piece and no connection to the database."""
    yield first
    for begin in range(_PART_BYTES, file.size_bytes, _PART_BYTES):
        async with services.db.transaction(tenant_id) as tx:
            part = await files.part(tx, file.id, begin, _PART_BYTES)
        yield part
