"""Files of conversations: uploads of users, and files of turns, written in the transaction that records their call."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure.contracts.errors import CallerError
from perdure.contracts.values import bytes_sha256_hex
from perdure.store.database import Connection
from perdure.store.paging import cursor_after, read_cursor

_COLUMNS = "id, conversation_id, turn_id, name, media_type, size_bytes, sha256, created_at"
_KEEP_SECONDS = 60.0
"""The timeout of a statement that carries a file of the maximum size."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to store."""

    id: str
    name: str
    media_type: str
    content: bytes | memoryview
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, file_id: str, name: str, media_type: str, content: bytes) -> "NewFile":
        """Returns a new file with its size and SHA-256, from content in memory."""
        return cls(file_id, name, media_type, content, len(content), bytes_sha256_hex(content))


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file with its content."""

    id: str
    name: str
    media_type: str
    content: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file without its content."""

    id: str
    name: str
    media_type: str
    size_bytes: int


async def store_files(
    tx: Connection,
    conversation_id: str,
    user_id: str,
    files: Sequence[NewFile],
    *,
    turn_id: str | None = None,
    call_id: str | None = None,
) -> list[dict[str, object]]:
    """Stores files and returns them as `show_file` does. If a file's id already exists, the file is neither changed nor
    returned."""
    kept = []
    for file in files:
        row = await tx.fetchrow(
            "INSERT INTO files (id, tenant_id, conversation_id, user_id, turn_id, call_id, name, media_type, "
            "size_bytes, sha256, content) VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, "
            f"$9, $10) ON CONFLICT (id) DO NOTHING RETURNING {_COLUMNS}",
            file.id,
            conversation_id,
            user_id,
            turn_id,
            call_id,
            file.name,
            file.media_type,
            file.size_bytes,
            file.sha256,
            file.content,
            timeout=_KEEP_SECONDS,
        )
        if row is not None:
            kept.append(show_file(dict(row)))
    return kept


async def find(tx: Connection, file_id: str, user_id: str | None = None) -> FoundFile:
    """Returns a file of this user, without its content. With None, any file of the tenant is returned.

    Raises: CallerError 404 `file_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT f.id, f.name, f.media_type, f.size_bytes FROM files f JOIN conversations c ON c.id = f.conversation_id "
        "WHERE f.id = $1 AND ($2::uuid IS NULL OR f.user_id = $2) AND c.deleted_at IS NULL",
        file_id,
        user_id,
    )
    if row is None:
        raise _not_found()
    return FoundFile(str(row["id"]), row["name"], row["media_type"], row["size_bytes"])


async def read_part(tx: Connection, file_id: str, begin: int, count: int) -> bytes:
    """Returns a part of a file's content. Postgres reads only that part, because the column is stored uncompressed.

    Raises: CallerError 404 `file_not_found` if the file was deleted in the meantime.
    """
    found = await tx.fetchval(
        "SELECT substring(content FROM $2 FOR $3) FROM files WHERE id = $1", file_id, begin + 1, count
    )
    if found is None:
        raise _not_found()
    return bytes(found)


async def delete(tx: Connection, file_id: str, user_id: str) -> None:
    """Deletes an upload of this user. A turn's files are part of its record and cannot be deleted.

    Raises: CallerError 404 `file_not_found`, 409 `file_of_turn`.
    """
    found = await tx.fetchrow("SELECT turn_id FROM files WHERE id = $1 AND user_id = $2 FOR UPDATE", file_id, user_id)
    if found is None:
        raise _not_found()
    if found["turn_id"] is not None:
        details: dict[str, object] = {"turn_id": str(found["turn_id"])}
        raise CallerError("file_of_turn", "A turn made this file, so it cannot be deleted", details, status=409)
    await tx.execute("DELETE FROM files WHERE id = $1", file_id)


async def delete_uploads(tx: Connection, conversation_id: str) -> None:
    """Deletes the uploads of a conversation. The files of its turns are part of their record and are kept."""
    await tx.execute(
        "DELETE FROM files WHERE conversation_id = $1 AND turn_id IS NULL", conversation_id, timeout=_KEEP_SECONDS
    )


def _not_found() -> CallerError:
    return CallerError("file_not_found", "File not found", status=404)


def _stored(row: asyncpg.Record) -> StoredFile:
    return StoredFile(str(row["id"]), row["name"], row["media_type"], bytes(row["content"]), row["created_at"])


async def read_in(tx: Connection, conversation_id: str, file_id: str) -> StoredFile | None:
    """Returns a file of this conversation with its content, or None if the conversation has no such file."""
    row = await tx.fetchrow("SELECT * FROM files WHERE id = $1 AND conversation_id = $2", file_id, conversation_id)
    return _stored(row) if row is not None else None


async def of_conversation(
    tx: Connection, conversation_id: str, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, object]], str | None]:
    """Lists the files of a conversation without their content, newest first, and the next page's cursor."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM files WHERE conversation_id = $1 "
        "AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::uuid)) "
        "ORDER BY created_at DESC, id DESC LIMIT $4",
        conversation_id,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["created_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [show_file(dict(row)) for row in rows[:limit]], following


async def of_turns(tx: Connection, turn_ids: Sequence[str]) -> list[dict[str, object]]:
    """Returns the files of these turns without their content, in the order of their creation."""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM files WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at, name", list(turn_ids)
    )
    return [show_file(dict(row)) for row in rows]


async def last_uploaded(tx: Connection, conversation_id: str, media_types: Sequence[str], limit: int) -> list[str]:
    """Returns the ids of the latest uploads of these types, newest first. If several have the same name, only the
    newest counts."""
    rows = await tx.fetch(
        "SELECT id FROM (SELECT DISTINCT ON (name) id, created_at FROM files WHERE conversation_id = $1 AND "
        "turn_id IS NULL AND media_type = ANY($2) ORDER BY name, created_at DESC, id DESC) last "
        "ORDER BY created_at DESC, id DESC LIMIT $3",
        conversation_id,
        list(media_types),
        limit,
    )
    return [str(row["id"]) for row in rows]


def show_file(row: dict[str, object]) -> dict[str, object]:
    """Returns the API representation of a file."""
    return {
        "id": str(row["id"]),
        "conversation_id": str(row["conversation_id"]),
        "turn_id": str(row["turn_id"]) if row["turn_id"] else None,
        "name": row["name"],
        "media_type": row["media_type"],
        "size_bytes": row["size_bytes"],
        "sha256": row["sha256"],
        "created_at": row["created_at"],
        "content": f"/v1/files/{row['id']}",
    }
