"""Conversations and their transcripts."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import ConversationPatch, NewConversation
from api.ids import ConversationId, as_uuid
from api.once import Key, once
from api.pages import Limit
from contracts.errors import CallerError
from store import content, conversation_story, conversations, quotas
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])
MOST = 50


@router.post("", status_code=201)
async def create(services: Open, who: Reader, body: NewConversation, key: Key = None) -> JSONResponse:
    """A new conversation with an agent."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        await content.current(tx, body.agent)
        made = await conversations.create(tx, who.user_id, body.agent, body.title, body.metadata)
        await quotas.check_room(tx, services.caps.quotas, who.user_id, str(made["id"]))
        return 201, made, None

    answer = await once(services, who, "conversations", key, body, work)
    services.text_sums.wrote(who.tenant_id, who.user_id)
    return answer


@router.get("")
async def listed(
    services: Open,
    who: Reader,
    limit: Limit = 20,
    cursor: str | None = None,
    title: Annotated[str | None, Query(min_length=2, max_length=200)] = None,
) -> dict[str, object]:
    """Your conversations, the one written to last first."""
    async with services.db.transaction(who.tenant_id) as tx:
        items, following = await conversations.listed(tx, who.user_id, title, min(limit, MOST), cursor)
    return {"items": items, "next": following}


@router.get("/{conversation_id}")
async def get(services: Open, who: Reader, conversation_id: ConversationId) -> dict[str, object]:
    """One conversation."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await conversations.get(tx, conversation_id, who.scope)


@router.patch("/{conversation_id}")
async def patch(
    services: Open, who: Reader, conversation_id: ConversationId, body: ConversationPatch
) -> dict[str, object]:
    """Change title or metadata."""
    async with services.db.transaction(who.tenant_id) as tx:
        changed = await conversations.patch(tx, conversation_id, who.user_id, body.title, body.metadata)
        if body.metadata is not None:
            await quotas.check_room(tx, services.caps.quotas, who.user_id, conversation_id)
    services.text_sums.wrote(who.tenant_id, who.user_id)
    return changed


@router.delete("/{conversation_id}", status_code=204)
async def delete(services: Open, who: Reader, conversation_id: ConversationId) -> Response:
    """Hide a conversation and delete its uploads. Its turns, their records and what they made stay."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.delete(tx, conversation_id, who.user_id)
    return Response(status_code=204)


@router.get("/{conversation_id}/messages")
async def messages(
    services: Open, who: Reader, conversation_id: ConversationId, limit: Limit = 50, cursor: str | None = None
) -> dict[str, object]:
    """The transcript in order."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise CallerError("cursor_invalid", "the cursor is not one that this list gave out")
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get(tx, conversation_id, who.scope)
        items, following = await conversations.messages(tx, conversation_id, min(limit, 200), int(cursor or 0))
    return {"items": items, "next": following}


@router.get("/{conversation_id}/story")
async def story(
    services: Open,
    who: Reader,
    conversation_id: ConversationId,
    turn: str | None = None,
    limit: Limit = 20,
    cursor: str | None = None,
) -> dict[str, object]:
    """Its turns as a person reads them, newest first: what was said, thought, done and made. With `turn` that one
    alone. `seq` is for following the stream from there."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get(tx, conversation_id, who.scope)
        seq, own = await conversation_story.last_event(tx, conversation_id, who.user_id)
        following: str | None = None
        if turn is not None:
            items = await conversation_story.turn_of(tx, conversation_id, as_uuid(turn, "turn"))
        else:
            most = min(limit, MOST)
            items, following = await conversation_story.turns_of(tx, conversation_id, most, cursor)
    return {"items": items, "next": following, "seq": seq, "own": own}
