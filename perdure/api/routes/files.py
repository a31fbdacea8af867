"""Files: uploads into a conversation, files that its turns made, and their content."""

from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from perdure.api.auth import Caller, ServicesDep, SubjectCaller
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import ConversationId, Cursor, FileBody, FileId, Limit, as_uuid
from perdure.api.services import Services
from perdure.core.budgets import VARIABLES, Scope
from perdure.core.memory.documents import ADMIN
from perdure.core.memory.files import media_type_of, safe_name
from perdure.store import budgets, idempotency
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note
from perdure.store.memory import files
from perdure.store.turns import conversations

router = APIRouter(prefix="/v1", tags=["files"])
FILES_PAGE_LIMIT = 100
INLINE_TYPES = frozenset({"image/png", "image/svg+xml"})
_INERT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
}
"""Headers that stop browsers from running the content of a file. The default `no-store` also applies, since the next
user of the same browser can have other rights."""
_PART_BYTES = 2**20


@router.post("/conversations/{conversation_id}/files", status_code=201)
async def upload(
    services: ServicesDep,
    caller: Caller,
    conversation_id: ConversationId,
    request: Request,
    name: Annotated[str, Query(min_length=1, max_length=400, description="Name of the file")],
    key: Key = None,
) -> JSONResponse:
    """Uploads a file. The body is the file's bytes, the `Content-Type` header its type, and the query holds its name.
    All checks that do not need the content run before the body is read."""
    stored_name, media_type = safe_name(name), media_type_of(request.headers.get("content-type", ""))
    length = services.uploads.check_length(request.headers.get("content-length", ""))
    route = f"files/{conversation_id}"
    async with services.db.transaction(caller.tenant_id) as tx:
        # A used key returns the stored response.
        if key is None or not await idempotency.is_used(tx, caller.user_id, route, key):
            await conversations.get_conversation(tx, conversation_id, caller.user_id)
            await budgets.check_room_for_file(tx, services.caps.quotas, caller.user_id, conversation_id, length or 0)
    async with services.uploads.receive(caller.tenant_id, caller.user_id, length, request.stream()) as spooled:
        await services.uploads.check(spooled, media_type)
        body = FileBody(name=stored_name, media_type=media_type, sha256=spooled.sha256)
        async with services.uploads.content(spooled) as content:
            file = files.NewFile(new_id(), stored_name, media_type, content, spooled.size_bytes, spooled.sha256)

            async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
                await conversations.get_conversation(tx, conversation_id, caller.user_id)
                (stored,) = await files.store_files(tx, conversation_id, caller.user_id, [file])
                await budgets.check_room(
                    tx, services.caps.quotas, caller.user_id, conversation_id, written_bytes=file.size_bytes
                )
                return 201, stored, None

            return await run_once(services, caller, route, key, body, work)


@router.get("/conversations/{conversation_id}/files")
async def list_files(
    services: ServicesDep, caller: Caller, conversation_id: ConversationId, limit: Limit = 50, cursor: Cursor = None
) -> dict[str, object]:
    """Lists the files of a conversation, newest first."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.user_id)
        items, following = await files.of_conversation(tx, conversation_id, min(limit, FILES_PAGE_LIMIT), cursor)
    return {"items": items, "next": following}


@router.get("/files/{file_id}", response_class=Response)
async def download_file(services: ServicesDep, caller: Caller, file_id: FileId) -> Response:
    """Returns the bytes of a file. Images are displayed inline; other types are downloads."""
    async with services.db.transaction(caller.tenant_id) as tx:
        file = await files.find(tx, file_id, caller.scope)
        first_part = await files.read_part(tx, file.id, 0, _PART_BYTES)
    disposition = "inline" if file.media_type in INLINE_TYPES else "attachment"
    headers = {
        **_INERT_HEADERS,
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(file.name, safe='')}",
        "Content-Length": str(file.size_bytes),
    }
    return StreamingResponse(
        _read_parts(services, caller.tenant_id, file, first_part), media_type=file.media_type, headers=headers
    )


@router.delete("/files/{file_id}", status_code=204)
async def delete(services: ServicesDep, caller: Caller, file_id: FileId) -> Response:
    """Permanently deletes one of your uploads. Files that a turn created cannot be deleted (409 `file_of_turn`)."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await files.delete(tx, file_id, caller.user_id)
    return Response(status_code=204)


@router.get("/usage")
async def usage(
    services: ServicesDep,
    caller: SubjectCaller,
    conversation: Annotated[str | None, Query(description="Also the usage of this conversation")] = None,
) -> dict[str, object]:
    """Returns your storage usage and quota in bytes. `conversation` adds those of a conversation; an administrator also
    gets those of the tenant."""
    limits, conversation_id = services.caps.quotas, as_uuid(conversation, "conversation") if conversation else None
    async with services.db.transaction(caller.tenant_id) as tx:
        if conversation_id is not None:
            await conversations.get_conversation(tx, conversation_id, caller.user_id)
        used, _ = await budgets.bytes_used(tx, caller.user_id, conversation_id)
    scopes = [
        *([Scope.CONVERSATION] if conversation_id else []),
        Scope.USER,
        *([Scope.TENANT] if ADMIN in caller.roles else []),
    ]
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


async def _read_parts(services: Services, tenant_id: str, file: files.FoundFile, first: bytes) -> AsyncIterator[bytes]:
    """Yields the content in parts, so that a slow reader holds one part in memory and no database connection."""
    yield first
    for begin in range(_PART_BYTES, file.size_bytes, _PART_BYTES):
        async with services.db.transaction(tenant_id) as tx:
            part = await files.read_part(tx, file.id, begin, _PART_BYTES)
        yield part
