"""Reading documents: one by its id or path, a page of them, the versions of one.

Invariants (S2-67):
- A document of a conversation or a user is its owner's alone: every statement says so, and row-level security hides
  the others' from a transaction that has not said for whom it reads (`read_as`).
- What belongs to a conversation is found from that conversation, as long as it is not deleted.
"""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from contracts.documents import DocumentRef, Scope, Trust
from contracts.errors import CallerError
from store.database import Connection
from store.paging import cursor_after, read_cursor

EVERYBODY = "*"
"""In the place of a reader: an administrator who deletes or redacts, and sees no content."""
VISIBLE = """
d.deleted_at IS NULL AND (d.scope = 'workspace' OR (d.owner_id = $1 AND (d.scope = 'user'
  OR EXISTS (SELECT FROM conversations c WHERE c.id = d.conversation_id AND c.user_id = $1 AND c.deleted_at IS NULL))))
"""
"""Of a statement whose $1 is the reader: the documents that are this person's to read."""
_COLUMNS = (
    "d.id, s.slug AS store, d.scope, d.owner_id, d.conversation_id, d.path, d.type, d.title, d.entities, d.trust, "
    "d.version_id, d.sha256, d.versions, d.created_at, d.updated_at, s.archived_at IS NOT NULL AS archived"
)
FROM = "memory_documents d JOIN memory_stores s ON s.id = d.store_id"


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it is now."""

    ref: DocumentRef
    scope: Scope
    owner_id: str | None
    conversation_id: str | None
    document_type: str
    title: str
    entities: tuple[str, ...]
    sha256: str
    versions: int
    created_at: datetime
    updated_at: datetime
    archived: bool
    """Whether its store is."""
    content: str | None = None
    """None where it was redacted, or not asked for."""

    def shown(self) -> dict[str, object]:
        """For a client, without its content."""
        return {
            "id": self.ref.document_id,
            "version_id": self.ref.version_id,
            "store": self.ref.store,
            "scope": self.scope.value,
            "conversation_id": self.conversation_id,
            "path": self.ref.path,
            "type": self.document_type,
            "title": self.title,
            "entities": list(self.entities),
            "trust": self.ref.trust.value,
            "sha256": self.sha256,
            "versions": self.versions,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }


async def read_as(tx: Connection, reader: str) -> None:
    """From here on this transaction sees what this person may see: the workspace's documents and the person's own."""
    await tx.execute("SELECT set_config('perdure.reader', $1, true)", reader)


async def get(tx: Connection, document_id: str, reader: str, *, lock: bool = False) -> Document:
    """A document with its content; `lock` holds it against other writers.

    Raises: CallerError 404 `document_not_found`.
    """
    await read_as(tx, reader)
    return await _one(tx, "d.id = $2", reader, document_id, lock=lock)


async def at_path(
    tx: Connection, scope: Scope, store: str, path: str, reader: str, conversation_id: str | None, *, lock: bool = False
) -> Document:
    """The document at a path of a store, as it is seen from this conversation.

    Raises: CallerError 404 `document_not_found`.
    """
    await read_as(tx, reader)
    which = "d.scope = $2 AND s.slug = $3 AND d.path = $4 AND (d.conversation_id IS NULL OR d.conversation_id = $5)"
    return await _one(tx, which, reader, scope.value, store, path, conversation_id, lock=lock)


async def listed(
    tx: Connection,
    reader: str,
    limit: int,
    cursor: str | None,
    *,
    scope: Scope | None = None,
    conversation_id: str | None = None,
    prefix: str = "",
) -> tuple[list[Document], str | None]:
    """Documents without their contents, changed last first; those of a conversation only where it is named."""
    at, last_id = read_cursor(cursor)
    await read_as(tx, reader)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM {FROM} WHERE {VISIBLE} AND s.archived_at IS NULL "
        "AND ($2::text IS NULL OR d.scope = $2) AND (d.conversation_id IS NULL OR d.conversation_id = $3) "
        "AND starts_with(d.path, $4) AND ($5::timestamptz IS NULL OR (d.updated_at, d.id) < ($5, $6::uuid)) "
        "ORDER BY d.updated_at DESC, d.id DESC LIMIT $7",
        reader,
        scope.value if scope else None,
        conversation_id,
        prefix,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["updated_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [document_of(row) for row in rows[:limit]], following


_VERSIONS = (
    "SELECT v.id, v.number, v.sha256, v.trust, u.name AS author, v.by_agent, v.turn_id, v.call_id, v.evidence_summary, "
    "v.source_refs, v.created_at, v.redacted_at, v.redaction_reason{} "
    "FROM memory_versions v LEFT JOIN users u ON u.id = v.author WHERE v.document_id = $1 AND "
)


async def history(tx: Connection, document: Document, limit: int = 50) -> list[dict[str, object]]:
    """The versions of a document that the caller has read, newest first, without their contents."""
    newest = _VERSIONS.format("") + "v.number > $2 ORDER BY v.number DESC"
    # They are numbered without a gap.
    rows = await tx.fetch(newest, document.ref.document_id, max(document.versions - limit, 0))
    return [_entry(row) for row in rows]


async def version(tx: Connection, document: Document, version_id: str) -> dict[str, object]:
    """One version with its content, which is null where it was redacted.

    Raises: CallerError 404 `version_not_found`.
    """
    row = await tx.fetchrow(_VERSIONS.format(", v.content") + "v.id = $2", document.ref.document_id, version_id)
    if row is None:
        raise CallerError("version_not_found", "this document has no such version", status=404)
    return _entry(row)


def _entry(row: asyncpg.Record) -> dict[str, object]:
    return {**dict(row), "id": str(row["id"]), "turn_id": row["turn_id"] and str(row["turn_id"])}


async def _one(tx: Connection, which: str, reader: str, *given: object, lock: bool) -> Document:
    held = "FOR UPDATE OF d" if lock else ""
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS}, (SELECT v.content FROM memory_versions v WHERE v.id = d.version_id) AS content "
        f"FROM {FROM} WHERE {VISIBLE} AND {which} {held}",
        reader,
        *given,
    )
    if row is None:
        raise CallerError("document_not_found", "there is no such document", status=404)
    return document_of(row, row["content"])


def document_of(row: asyncpg.Record, content: str | None = None) -> Document:
    """A row of the columns above."""
    return Document(
        DocumentRef(
            document_id=str(row["id"]),
            version_id=str(row["version_id"]),
            store=row["store"],
            path=row["path"],
            trust=Trust(row["trust"]),
        ),
        Scope(row["scope"]),
        str(row["owner_id"]) if row["owner_id"] else None,
        str(row["conversation_id"]) if row["conversation_id"] else None,
        row["type"],
        row["title"],
        tuple(row["entities"]),
        row["sha256"],
        row["versions"],
        row["created_at"],
        row["updated_at"],
        row["archived"],
        content,
    )
