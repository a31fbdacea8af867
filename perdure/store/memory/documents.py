"""Writes of memory documents. Each write adds an immutable version, named by the SHA-256 of its content.

The rules are in `perdure/core/memory/documents.py`: who can write where, the scan of new text and the rejection of
stale changes. They are checked in the transaction that writes.

Lock order: the turn's row if there is one, then the document, then the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import asyncpg
from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import DEFAULT_LIMITS, DocumentRef, MemoryLimits, Scope, Trust
from perdure.contracts.values import sha256_hex
from perdure.core.memory.documents import (
    Edit,
    Finding,
    Place,
    Writer,
    apply_edits,
    evidence_refusal,
    is_blocked,
    path_refusal,
    scan_text,
    stale_refusal,
    trust_of,
    write_refusal,
)
from perdure.core.memory.search import entity_keys, names_in
from perdure.core.text import clean
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.memory.search import EVERYBODY, Document, read_as

CONVENTIONS = "workspace_conventions"
RUNBOOKS = "workspace_runbooks"
OF_USERS = "user_memory"
OF_CONVERSATIONS = "conversation_memory"
SEEDED = {
    CONVENTIONS: Scope.WORKSPACE,
    RUNBOOKS: Scope.WORKSPACE,
    OF_USERS: Scope.USER,
    OF_CONVERSATIONS: Scope.CONVERSATION,
}
ONLY_STORE = {Scope.USER: OF_USERS, Scope.CONVERSATION: OF_CONVERSATIONS}
"""The only store of a scope; a caller does not need to name it."""


class Store(NamedTuple):
    """A store of documents; an archived one rejects writes. Each tenant has four, created on first use. One store
    contains the documents of all conversations, and one those of all users. The document itself names its owner."""

    id: str
    slug: str
    scope: Scope
    archived: bool

    def place(self, owner_id: str | None) -> Place:
        """Returns the place that a document of this owner would have in the store."""
        return Place(self.slug, self.scope, None if self.scope is Scope.WORKSPACE else owner_id, self.archived)


async def seed(tx: Connection) -> None:
    """Creates the missing stores. Safe to repeat and to run concurrently."""
    await tx.execute(
        "INSERT INTO memory_stores (tenant_id, slug, scope) "
        "SELECT current_setting('perdure.tenant'), slug, scope FROM unnest($1::text[], $2::text[]) AS s(slug, scope) "
        "WHERE NOT EXISTS (SELECT FROM memory_stores m WHERE m.slug = s.slug) ON CONFLICT DO NOTHING",
        list(SEEDED),
        [scope.value for scope in SEEDED.values()],
    )


async def find_store(tx: Connection, scope: Scope, slug: str | None) -> Store:
    """Returns the store of this scope with this slug. The slug is optional if the scope has only one store.

    Raises: CallerError 404 `store_not_found`.
    """
    await seed(tx)
    row = await tx.fetchrow(
        "SELECT * FROM memory_stores WHERE slug = $1 AND scope = $2", slug or ONLY_STORE.get(scope, ""), scope.value
    )
    if row is None:
        known = sorted(name for name, its in SEEDED.items() if its is scope)
        message = f"The scope {scope.value} has no such store; available stores: {', '.join(known)}"
        raise CallerError("store_not_found", message, status=404)
    return _read_store(row)


async def list_stores(tx: Connection) -> list[dict[str, object]]:
    """Returns the document stores of the tenant, by scope and slug; creates the standard ones if they are missing."""
    await seed(tx)
    rows = await tx.fetch("SELECT slug, scope, archived_at, created_at FROM memory_stores ORDER BY scope, slug")
    return [dict(row) for row in rows]


async def set_store_archived(tx: Connection, slug: str, archived: bool, actor: str) -> dict[str, object]:
    """Archives a store, or opens it again. Documents of an archived store are kept, but cannot be found or written.

    Raises: CallerError 404 `store_not_found`.
    """
    await seed(tx)
    row = await tx.fetchrow(
        "UPDATE memory_stores SET archived_at = CASE WHEN $2 THEN coalesce(archived_at, now()) END WHERE slug = $1 "
        "RETURNING id, slug, scope, archived_at, created_at",
        slug,
        archived,
    )
    if row is None:
        raise CallerError("store_not_found", "Store not found", status=404)
    data: dict[str, JsonValue] = {"store": slug, "archived": archived}
    await audit.record(tx, "memory.store_changed", str(row["id"]), data, actor=actor, turn_id=None)
    return {name: value for name, value in row.items() if name != "id"}


def _read_store(row: asyncpg.Record) -> Store:
    return Store(str(row["id"]), row["slug"], Scope(row["scope"]), row["archived_at"] is not None)


@dataclass(frozen=True, slots=True)
class Basis:
    """The evidence for a version, and the turn and call that wrote it."""

    evidence_summary: str = ""
    source_refs: Sequence[JsonValue] = ()
    turn_id: str | None = None
    call_id: str | None = None


NO_BASIS = Basis()


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """The version that a write added."""

    ref: DocumentRef
    scope: Scope
    sha256: str
    number: int
    size_bytes: int
    warnings: tuple[Finding, ...] = ()


_ADD = """
INSERT INTO memory_versions (id, tenant_id, document_id, owner_id, number, sha256, content, trust, author, by_agent,
  turn_id, call_id, evidence_summary, source_refs)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
"""


async def add(
    tx: Connection,
    writer: Writer,
    document_id: str,
    owner_id: str | None,
    version_id: str,
    number: int,
    content: str,
    trust: Trust,
    basis: Basis,
) -> None:
    """Inserts the version. The caller writes the document that refers to it."""
    given = (sha256_hex(content), content, trust.value, writer.user_id, writer.is_agent, basis.turn_id, basis.call_id)
    summary, refs = clean(basis.evidence_summary), list(basis.source_refs)
    await tx.execute(_ADD, version_id, document_id, owner_id, number, *given, summary, refs)


UNSAFE = "memory_unsafe"


@dataclass(frozen=True, slots=True)
class Draft:
    """A document to write."""

    scope: Scope
    path: str
    document_type: str
    title: str
    content: str = field(repr=False)
    store: str | None = None
    """The store's slug; optional if the scope has only one store."""
    conversation_id: str | None = None
    """Only used for the scope `conversation`."""
    entities: Sequence[str] = ()


_CREATE = """
INSERT INTO memory_documents (id, tenant_id, store_id, scope, owner_id, conversation_id, path, type, title, entities,
  trust, version_id, sha256, words)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
  to_tsvector('pg_catalog.english', $13))
ON CONFLICT (store_id, place_id, path) WHERE deleted_at IS NULL DO NOTHING RETURNING id
"""
_CHANGE = """
UPDATE memory_documents SET version_id = $2, sha256 = $3, trust = $4, entities = $5, title = $6,
  words = to_tsvector('pg_catalog.english', $7), versions = versions + 1, updated_at = now() WHERE id = $1
RETURNING versions
"""


async def create_document(
    tx: Connection, writer: Writer, draft: Draft, basis: Basis = NO_BASIS, limits: MemoryLimits = DEFAULT_LIMITS
) -> WrittenVersion:
    """Creates a document at a path that has none.

    Raises: any CallerError of `perdure/core/memory/documents.py`; 422 `memory_unsafe` with the findings; 409
    `document_exists` with the digest of the existing document; 404 `store_not_found` or `conversation_not_found`.
    Nothing is written if it raises.
    """
    draft = replace(draft, title=clean(draft.title), content=clean(draft.content))
    store = await find_store(tx, draft.scope, draft.store)
    _check_write(writer, store, writer.user_id, draft.document_type, basis, limits)
    refused = path_refusal(draft.path)
    if refused is not None:
        raise refused
    warnings = scan_texts(
        draft.scope, draft.path, draft.title, draft.content, *draft.entities, basis=basis, limits=limits
    )
    owner_id = None if draft.scope is Scope.WORKSPACE else writer.user_id
    if draft.scope is Scope.CONVERSATION:
        await _need_conversation(tx, draft.conversation_id, owner_id)
    elif draft.conversation_id is not None:
        draft = replace(draft, conversation_id=None)
    await read_as(tx, owner_id or "")
    return await _create(tx, writer, store, draft, basis, owner_id, warnings)


async def update_document(
    tx: Connection,
    writer: Writer,
    document: Document,
    expected_sha256: str,
    content: str | Sequence[Edit],
    basis: Basis = NO_BASIS,
    *,
    title: str | None = None,
    entities: Sequence[str] | None = None,
    limits: MemoryLimits = DEFAULT_LIMITS,
) -> WrittenVersion:
    """Adds a version to `document`, which the caller has read and locked. `content` is the new text, or edits of the
    current one.

    Raises: the errors of `create_document`, except `document_exists`; 409 `memory_conflict` with the current digest;
    422 `patch_mismatch`; 409 `version_redacted` if the edits apply to redacted content.
    """
    ref = document.ref
    store = await find_store(tx, document.scope, ref.store)
    _check_write(writer, store, document.owner_id, document.document_type, basis, limits)
    refused = stale_refusal(expected_sha256, document.sha256)
    if refused is not None:
        raise refused
    text = clean(content if isinstance(content, str) else _edited_content(document, content))
    new_title = document.title if title is None else clean(title)
    given = _given_entities(document) if entities is None else tuple(entities)
    warnings = scan_texts(document.scope, ref.path, new_title, text, *given, basis=basis, limits=limits)
    version_id, sha256, trust = new_id(), sha256_hex(text), trust_of(writer, document.scope)
    keys = entity_keys(given, f"{new_title}\n{text}")
    words = _index_text(ref.path, new_title, text, keys)
    number = await tx.fetchval(_CHANGE, ref.document_id, version_id, sha256, trust.value, list(keys), new_title, words)
    await add(tx, writer, ref.document_id, document.owner_id, version_id, number, text, trust, basis)
    changed = ref.model_copy(update={"version_id": version_id, "trust": trust})
    return WrittenVersion(changed, document.scope, sha256, number, len(text.encode()), warnings)


def scan_texts(scope: Scope, *texts: str, basis: Basis, limits: MemoryLimits) -> tuple[Finding, ...]:
    """Scans all texts of a write, and returns the warnings. The size limit applies to all texts together.

    Raises: CallerError 422 `memory_unsafe` with the findings that block.
    """
    findings = scan_text("\n".join([*texts, basis.evidence_summary, *map(str, basis.source_refs)]), scope, limits)
    if is_blocked(findings):
        blocking = [finding.as_data() for finding in findings if finding.blocks]
        rules = ", ".join(str(each["rule"]) for each in blocking)
        raise CallerError(UNSAFE, f"This text cannot be remembered: {rules}", {"findings": blocking})
    return findings


def _check_write(
    writer: Writer, store: Store, owner_id: str | None, document_type: str, basis: Basis, limits: MemoryLimits
) -> None:
    refused = write_refusal(writer, store.place(owner_id), document_type) or evidence_refusal(
        writer, basis.evidence_summary, required=limits.evidence_required
    )
    if refused is not None:
        raise refused


async def _need_conversation(tx: Connection, conversation_id: str | None, owner_id: str | None) -> None:
    there = conversation_id is not None and await tx.fetchval(
        "SELECT true FROM conversations WHERE id = $1 AND user_id = $2 AND deleted_at IS NULL",
        conversation_id,
        owner_id,
    )
    if not there:
        raise CallerError("conversation_not_found", "Conversation not found", status=404)


async def _create(
    tx: Connection,
    writer: Writer,
    store: Store,
    draft: Draft,
    basis: Basis,
    owner_id: str | None,
    warnings: tuple[Finding, ...],
) -> WrittenVersion:
    document_id, version_id, sha256 = new_id(), new_id(), sha256_hex(draft.content)
    trust, keys = trust_of(writer, draft.scope), entity_keys(draft.entities, f"{draft.title}\n{draft.content}")
    made = await tx.fetchval(
        _CREATE,
        document_id,
        store.id,
        draft.scope.value,
        owner_id,
        draft.conversation_id,
        draft.path,
        draft.document_type,
        draft.title,
        list(keys),
        trust.value,
        version_id,
        sha256,
        _index_text(draft.path, draft.title, draft.content, keys),
    )
    if made is None:
        there = await tx.fetchval(
            "SELECT sha256 FROM memory_documents WHERE store_id = $1 AND place_id = $2 AND path = $3 "
            "AND deleted_at IS NULL",
            store.id,
            draft.conversation_id or owner_id or store.id,
            draft.path,
        )
        message = "A document already exists at this path; update that document"
        raise CallerError("document_exists", message, {"path": draft.path, "sha256": there}, status=409)
    await add(tx, writer, document_id, owner_id, version_id, 1, draft.content, trust, basis)
    ref = DocumentRef(document_id=document_id, version_id=version_id, store=store.slug, path=draft.path, trust=trust)
    return WrittenVersion(ref, draft.scope, sha256, 1, len(draft.content.encode()), warnings)


def _edited_content(document: Document, edits: Sequence[Edit]) -> str:
    if document.content is None:
        raise CallerError("version_redacted", "The document's text was redacted; send the whole text", status=409)
    return apply_edits(document.content, edits)


def _given_entities(document: Document) -> tuple[str, ...]:
    """The entities that the old text does not name. They are kept, while the new text adds those that it names."""
    named_by_text = set(names_in(f"{document.title}\n{document.content or ''}"))
    return tuple(each for each in document.entities if each not in named_by_text)


def _index_text(path: str, title: str, content: str, keys: Sequence[str]) -> str:
    """Returns the text to index. The parts of the path are separated, because the text search parser would read the
    path as a file name."""
    apart = path.replace("/", " ").replace(".", " ").replace("_", " ").replace("-", " ")
    return "\n".join([apart, title, " ".join(keys), content])


async def delete_document(tx: Connection, document_id: str, actor: str) -> None:
    """Hides a document from all users. Its versions are kept, and its path becomes available again.

    Administrators do not need read access to the content, and the result does not contain it.

    Raises: CallerError 404 `document_not_found`.
    """
    await read_as(tx, EVERYBODY)
    row = await tx.fetchrow(
        "UPDATE memory_documents SET deleted_at = now(), deleted_by = $2 WHERE id = $1 AND deleted_at IS NULL "
        "RETURNING version_id, sha256, scope",
        document_id,
        actor,
    )
    if row is None:
        raise CallerError("document_not_found", "Document not found", status=404)
    data: dict[str, JsonValue] = {"sha256": row["sha256"], "scope": row["scope"], "version_id": str(row["version_id"])}
    await audit.record(tx, "memory.document_deleted", document_id, data, actor=actor, turn_id=None)


async def redact_version(
    tx: Connection, document_id: str, version_id: str, reason: str, actor: str
) -> dict[str, object]:
    """Erases the content of one version permanently. If it is the current version, searches no longer find the
    document.

    Promotions of this version are erased too. A pending one is also withdrawn. The result does not contain the content.

    Raises: CallerError 404 `version_not_found`; 409 `version_redacted` if the version is already redacted.
    """
    await read_as(tx, EVERYBODY)
    await tx.execute("SELECT FROM memory_documents WHERE id = $1 FOR UPDATE", document_id)
    row = await tx.fetchrow(
        "SELECT v.number, v.sha256, v.redacted_at, d.version_id = v.id AS is_current FROM memory_versions v "
        "JOIN memory_documents d ON d.id = v.document_id WHERE v.document_id = $1 AND v.id = $2",
        document_id,
        version_id,
    )
    if row is None:
        raise CallerError("version_not_found", "Version not found", status=404)
    if row["redacted_at"] is not None:
        raise CallerError("version_redacted", "This version is already redacted", status=409)
    redacted_at = await tx.fetchval(
        "UPDATE memory_versions SET content = NULL, redacted_at = now(), redacted_by = $2, redaction_reason = $3, "
        "evidence_summary = '', source_refs = '[]' WHERE id = $1 RETURNING redacted_at",
        version_id,
        actor,
        reason,
    )
    if row["is_current"]:
        await tx.execute("UPDATE memory_documents SET words = '', entities = '{}' WHERE id = $1", document_id)
    await tx.execute(
        "UPDATE memory_promotions SET content = '', evidence_summary = '', source_refs = '[]', "
        "status = CASE status WHEN 'pending' THEN 'withdrawn' ELSE status END WHERE source_version = $1",
        version_id,
    )
    data: dict[str, JsonValue] = {"version_id": version_id, "sha256": row["sha256"], "reason": reason}
    await audit.record(tx, "memory.version_redacted", document_id, data, actor=actor, turn_id=None)
    return {"id": version_id, "document_id": document_id, "number": row["number"], "redacted_at": redacted_at}
