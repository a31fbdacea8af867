"""Files of conversations: what people uploaded, and what turns made in the transaction that recorded the call."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from contracts.digests import bytes_sha256_hex
from contracts.errors import CallerError
from store.database import Connection

_COLUMNS = "id, conversation_id, turn_id, name, media_type, size_bytes, sha256, created_at"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to keep."""

    id: str
    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was kept."""

    id: str
    name: str
    media_type: str
    content: bytes
    created_at: datetime


async def keep(
    tx: Connection,
    conversation_id: str,
    user_id: str,
    files: Sequence[NewFile],
    *,
    turn_id: str | None = None,
    call_id: str | None = None,
) -> None:
    """Keep these; one that is there already stays as it is."""
    for file in files:
        await tx.execute(
            "INSERT INTO files (id, tenant_id, conversation_id, user_id, turn_id, call_id, name, media_type, "
            "size_bytes, sha256, content) VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, "
            "$9, $10) ON CONFLICT (id) DO NOTHING",
            file.id,
            conversation_id,
            user_id,
            turn_id,
            call_id,
            file.name,
            file.media_type,
            len(file.content),
            bytes_sha256_hex(file.content),
            file.content,
        )


async def read(tx: Connection, file_id: str, user_id: str | None = None) -> StoredFile:
    """A file of this user's (None: of anybody's of the tenant).

    Raises: CallerError 404 `file_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT f.* FROM files f JOIN conversations c ON c.id = f.conversation_id "
        "WHERE f.id = $1 AND ($2::uuid IS NULL OR f.user_id = $2) AND c.deleted_at IS NULL",
        file_id,
        user_id,
    )
    if row is None:
        raise CallerError("file_not_found", "there is no such file", status=404)
    return _stored(row)


def _stored(row: asyncpg.Record) -> StoredFile:
    return StoredFile(str(row["id"]), row["name"], row["media_type"], bytes(row["content"]), row["created_at"])


async def read_in(tx: Connection, conversation_id: str, file_id: str) -> StoredFile | None:
    """A file of this conversation; None where it has none of this id."""
    row = await tx.fetchrow("SELECT * FROM files WHERE id = $1 AND conversation_id = $2", file_id, conversation_id)
    return _stored(row) if row is not None else None


async def of_conversation(tx: Connection, conversation_id: str, limit: int) -> list[dict[str, object]]:
    """What a conversation has, newest first, without the contents."""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM files WHERE conversation_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2",
        conversation_id,
        limit,
    )
    return [shown(dict(row)) for row in rows]


async def of_turns(tx: Connection, turn_ids: Sequence[str]) -> list[dict[str, object]]:
    """What these turns made, in the order it was made, without the contents."""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM files WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at, name", list(turn_ids)
    )
    return [shown(dict(row)) for row in rows]


async def last_uploaded(tx: Connection, conversation_id: str, media_types: Sequence[str], most: int) -> list[str]:
    """The ids of the last uploads of these types, newest first; of several with one name the newest."""
    rows = await tx.fetch(
        "SELECT id FROM (SELECT DISTINCT ON (name) id, created_at FROM files WHERE conversation_id = $1 AND "
        "turn_id IS NULL AND media_type = ANY($2) ORDER BY name, created_at DESC, id DESC) last "
        "ORDER BY created_at DESC, id DESC LIMIT $3",
        conversation_id,
        list(media_types),
        most,
    )
    return [str(row["id"]) for row in rows]


def shown(row: dict[str, object]) -> dict[str, object]:
    """A file in the form of the outside contract."""
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
