"""Files: uploads into a conversation, and what its turns made."""

import asyncio
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import FileBody
from api.ids import ConversationId, FileId
from api.once import Key, once
from api.pages import Limit
from contracts.digests import bytes_sha256_hex
from policy.uploads import check_content, media_type_of, safe_name
from store import conversations, files
from store.database import Connection
from store.ids import new_id
from store.outbox import Note

router = APIRouter(prefix="/v1", tags=["files"])
MOST = 100
SHOWN_IN_PLACE = frozenset({"image/png", "image/svg+xml"})
_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}
"""Whatever a file holds, a browser runs nothing of it. It is not stored there either: whoever signs in next at the same
browser has other rights."""


@router.post("/conversations/{conversation_id}/files", status_code=201)
async def upload(
    services: Open,
    who: Reader,
    conversation_id: ConversationId,
    request: Request,
    name: Annotated[str, Query(min_length=1, max_length=400)],
    key: Key = None,
) -> JSONResponse:
    """Upload a file: its bytes are the body, its type the header `Content-Type`, its name the query."""
    kept_name, media_type = safe_name(name), media_type_of(request.headers.get("content-type", ""))
    content = await request.body()
    await asyncio.to_thread(check_content, media_type, content)
    body = FileBody(name=kept_name, media_type=media_type, sha256=bytes_sha256_hex(content))

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        await conversations.get(tx, conversation_id, who.user_id)
        file = files.NewFile(new_id(), kept_name, media_type, content)
        await files.keep(tx, conversation_id, who.user_id, [file])
        kept = await files.of_conversation(tx, conversation_id, MOST)
        return 201, next(each for each in kept if each["id"] == file.id), None

    return await once(services, who, f"files/{conversation_id}", key, body, work)


@router.get("/conversations/{conversation_id}/files")
async def listed(services: Open, who: Reader, conversation_id: ConversationId, limit: Limit = 50) -> dict[str, object]:
    """What a conversation has, newest first."""
    async with services.db.transaction(who.tenant_id) as tx:
        await conversations.get(tx, conversation_id, who.user_id)
        return {"items": await files.of_conversation(tx, conversation_id, min(limit, MOST)), "next": None}


@router.get("/files/{file_id}", response_class=Response)
async def content(services: Open, who: Reader, file_id: FileId) -> Response:
    """A file's bytes; pictures are shown in place, everything else is for keeping."""
    async with services.db.transaction(who.tenant_id) as tx:
        file = await files.read(tx, file_id, who.scope)
    place = "inline" if file.media_type in SHOWN_IN_PLACE else "attachment"
    headers = {**_INERT, "Content-Disposition": f"{place}; filename*=UTF-8''{quote(file.name, safe='')}"}
    return Response(file.content, media_type=file.media_type, headers=headers)
