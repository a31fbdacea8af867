"""Search of memory documents: full text and shared entities, then the ranking of `perdure/core/memory/search.py`.

The text score is `ts_rank` with all weights 1 over the question's words, joined by OR. It is the mean of a count per
word. The count is 6/π² (0.608) for a word that occurs once, and approaches 1 for frequent words.

The score is divided by 6/π² and limited to 1. If each matching word occurs once, it is the share of the question's
words that match. It is 1 if all words occur.

The query reads every document that the reader can see. An index on words would not be used under row-level security,
because its operator is not leakproof.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from perdure.contracts.errors import CallerError, UpstreamUnavailable
from perdure.contracts.memory import DocumentRef, Scope, Trust, Use
from perdure.contracts.turns import TurnAddress
from perdure.core.memory.search import (
    ENTITY,
    OVER_FETCH,
    TEXT,
    Candidate,
    ShownDocument,
    Signals,
    best_candidates,
    make_excerpt,
    names_in,
    words_of,
)
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, write
from perdure.store.paging import cursor_after, read_cursor

EVERYBODY = "*"
"""The reader for administrators who delete or redact; they see no content."""
# Only the owner can read a document of a conversation or a user, so every statement has this condition. Row-level
# security also hides other users' documents, unless the transaction has set its reader (`read_as`). A conversation's
# documents are visible only until it is deleted.
VISIBLE = """
d.deleted_at IS NULL AND (d.scope = 'workspace' OR (d.owner_id = $1 AND (d.scope = 'user'
  OR EXISTS (SELECT FROM conversations c WHERE c.id = d.conversation_id AND c.user_id = $1 AND c.deleted_at IS NULL))))
"""
"""SQL condition for the documents that the reader (`$1`) can see."""
_COLUMNS = (
    "d.id, s.slug AS store, d.scope, d.owner_id, d.conversation_id, d.path, d.type, d.title, d.entities, d.trust, "
    "d.version_id, d.sha256, d.versions, d.created_at, d.updated_at, s.archived_at IS NOT NULL AS archived"
)
FROM = "memory_documents d JOIN memory_stores s ON s.id = d.store_id"
MAX_WORDS = 48
"""Words of a question that are searched for; later words are ignored."""
MAX_QUESTION_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class Document:
    """The current state of a document."""

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
    """True if the store is archived."""
    content: str | None = None
    """The document's text. None if the version is redacted, or if the caller did not read it."""

    def shown(self) -> dict[str, object]:
        """Returns the document's API representation, without its content."""
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
    """Sets the reader for the rest of the transaction: it sees the workspace's documents and the reader's own."""
    await tx.execute("SELECT set_config('perdure.reader', $1, true)", reader)


async def get_document(tx: Connection, document_id: str, reader: str, *, lock: bool = False) -> Document:
    """Returns a document with its content. `lock` locks it against concurrent writes.

    Raises: CallerError 404 `document_not_found`.
    """
    await read_as(tx, reader)
    return await _read_one(tx, "d.id = $2", reader, document_id, lock=lock)


async def at_path(
    tx: Connection, scope: Scope, store: str, path: str, reader: str, conversation_id: str | None, *, lock: bool = False
) -> Document:
    """Returns the document at a path of a store that is visible from this conversation.

    Raises: CallerError 404 `document_not_found`.
    """
    await read_as(tx, reader)
    condition = "d.scope = $2 AND s.slug = $3 AND d.path = $4 AND (d.conversation_id IS NULL OR d.conversation_id = $5)"
    return await _read_one(tx, condition, reader, scope.value, store, path, conversation_id, lock=lock)


async def list_documents(
    tx: Connection,
    reader: str,
    limit: int,
    cursor: str | None,
    *,
    scope: Scope | None = None,
    conversation_id: str | None = None,
    prefix: str = "",
) -> tuple[list[Document], str | None]:
    """Lists documents without their content, last changed first, and the next page's cursor. A conversation's documents
    are included only if `conversation_id` names it."""
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


async def document_history(tx: Connection, document: Document, limit: int = 50) -> list[dict[str, object]]:
    """Lists the versions of a document, newest first, without their content. The caller has read the document."""
    newest = _VERSIONS.format("") + "v.number > $2 ORDER BY v.number DESC"
    # The range is correct because version numbers have no gaps.
    rows = await tx.fetch(newest, document.ref.document_id, max(document.versions - limit, 0))
    return [_show_entry(row) for row in rows]


async def document_version(tx: Connection, document: Document, version_id: str) -> dict[str, object]:
    """Returns one version with its content, which is None if it was redacted.

    Raises: CallerError 404 `version_not_found`.
    """
    row = await tx.fetchrow(_VERSIONS.format(", v.content") + "v.id = $2", document.ref.document_id, version_id)
    if row is None:
        raise CallerError("version_not_found", "Version not found", status=404)
    return _show_entry(row)


def _show_entry(row: asyncpg.Record) -> dict[str, object]:
    return {**dict(row), "id": str(row["id"]), "turn_id": row["turn_id"] and str(row["turn_id"])}


async def _read_one(tx: Connection, condition: str, reader: str, *given: object, lock: bool) -> Document:
    held = "FOR UPDATE OF d" if lock else ""
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS}, (SELECT v.content FROM memory_versions v WHERE v.id = d.version_id) AS content "
        f"FROM {FROM} WHERE {VISIBLE} AND {condition} {held}",
        reader,
        *given,
    )
    if row is None:
        raise CallerError("document_not_found", "Document not found", status=404)
    return document_of(row, row["content"])


def document_of(row: asyncpg.Record, content: str | None = None) -> Document:
    """Builds a document from a row of `_COLUMNS`."""
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


_FOUND = f"""
WITH asked AS MATERIALIZED (
  SELECT string_agg('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''', ' | ')::tsquery AS words
  FROM (SELECT lexeme FROM unnest(to_tsvector('pg_catalog.english', $2)) ORDER BY positions[1] LIMIT {MAX_WORDS}) each
), near AS MATERIALIZED (
  SELECT d.id, d.updated_at,
    least(1.0, coalesce(ts_rank('{{1,1,1,1}}', d.words, (SELECT words FROM asked)), 0.0) * pi() ^ 2 / 6) AS nearness,
    CASE WHEN d.entities && $3::text[]
      THEN (SELECT count(*) FROM unnest(d.entities) AS e(name) WHERE e.name = ANY($3::text[])) ELSE 0 END AS matched
  FROM memory_documents d
  -- As an array: joined, the stores were taken for a few and the documents read once for each of them.
  WHERE {VISIBLE} AND d.store_id = ANY(ARRAY(SELECT id FROM memory_stores WHERE archived_at IS NULL))
    AND ($5::text IS NULL OR d.scope = $5) AND (d.conversation_id IS NULL OR d.conversation_id = $4)
    AND (d.words @@ (SELECT words FROM asked) OR d.entities && $3::text[])
), first AS MATERIALIZED (
  SELECT * FROM near ORDER BY {TEXT} * nearness + {ENTITY} * matched / greatest(cardinality($3::text[]), 1) DESC,
    updated_at DESC, id LIMIT $6
)
SELECT d.id, s.slug AS store, d.path, d.type, d.title, d.trust, d.version_id, first.nearness, first.matched,
  extract(epoch FROM now() - d.updated_at)::float8 / 86400 AS age_days
FROM first JOIN memory_documents d ON d.id = first.id JOIN memory_stores s ON s.id = d.store_id
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A search: its text, its reader and its conversation."""

    text: str
    reader: str
    conversation_id: str | None = None
    """A search without it excludes the documents of all conversations."""
    scope: Scope | None = None


async def search(tx: Connection, question: Question, limit: int) -> tuple[Candidate, ...]:
    """Returns the best matches, best first. Returns none if the question has no searchable word and names no known
    entity."""
    text = question.text[:MAX_QUESTION_CHARACTERS]
    entities = names_in(text)
    await read_as(tx, question.reader)
    rows = await tx.fetch(
        _FOUND,
        question.reader,
        text,
        list(entities),
        question.conversation_id,
        question.scope.value if question.scope else None,
        OVER_FETCH * limit,
    )
    found = [
        Candidate(
            DocumentRef(
                document_id=str(row["id"]),
                version_id=str(row["version_id"]),
                store=row["store"],
                path=row["path"],
                trust=Trust(row["trust"]),
            ),
            row["title"],
            Signals(
                float(row["nearness"]),
                Trust(row["trust"]),
                row["type"],
                row["matched"],
                len(entities),
                row["age_days"],
            ),
        )
        for row in rows
    ]
    return best_candidates(found, limit)


async def add_excerpts(
    tx: Connection, question: Question, candidates: tuple[Candidate, ...]
) -> tuple[ShownDocument, ...]:
    """Returns the same documents with their excerpts, without redacted ones."""
    rows = await tx.fetch(
        "SELECT id, content FROM memory_versions WHERE id = ANY($1::uuid[]) AND content IS NOT NULL",
        [each.ref.version_id for each in candidates],
    )
    contents = {str(row["id"]): row["content"] for row in rows}
    words = words_of(question.text[:MAX_QUESTION_CHARACTERS])
    return tuple(
        ShownDocument(
            each.ref, each.signals.document_type, each.title, make_excerpt(contents[each.ref.version_id], words)
        )
        for each in candidates
        if each.ref.version_id in contents
    )


async def lock_turn(tx: Connection, turn_id: str) -> None:
    """Locks the turn. It must be called before a document is locked.

    Raises: UpstreamUnavailable `turn_over` if the turn has ended; nothing may be written for it. The next attempt reads
    the reason.
    """
    if not await tx.fetchval("SELECT ended_at IS NULL FROM turns WHERE id = $1 FOR UPDATE", turn_id):
        raise UpstreamUnavailable("turn_over", "the turn has ended")


async def note_use(tx: Connection, address: TurnAddress, use: Use, versions: Iterable[str], call_id: str = "") -> None:
    """Records how this turn used these versions. Repeated calls add no rows."""
    await tx.execute(
        "INSERT INTO conversation_memory_usage (tenant_id, conversation_id, turn_id, call_id, kind, version_id) "
        "SELECT current_setting('perdure.tenant'), $1, $2, $3, $4, v FROM unnest($5::uuid[]) AS v "
        "ON CONFLICT DO NOTHING",
        address.conversation_id,
        address.turn_id,
        call_id,
        use.value,
        [*versions],
    )


async def write_events(tx: Connection, address: TurnAddress, events: Sequence[NewEvent]) -> None:
    """Writes the events of a call before its result. The caller holds the turn's lock; this is its last write."""
    if events:
        await write(tx, address, events)
