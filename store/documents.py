"""Writing documents: each write adds a version that never changes, named by the SHA-256 of its content (S2-68).

Who may write where, the scan of what is written and the refusal of a stale change are policy/documents/; here they are
asked in the transaction that writes. Lock order: the turn's row where there is one, then the document, then the
conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from contracts.digests import sha256_hex
from contracts.documents import DEFAULT_LIMITS, DocumentRef, MemoryLimits, Scope
from contracts.errors import CallerError
from policy.documents.names import entity_keys, names_in
from policy.documents.paths import path_refusal
from policy.documents.safety import Finding, is_blocked, scan
from policy.documents.writing import Edit, Writer, evidence_refusal, patched, stale, trust_of, write_refusal
from policy.text import clean
from store.database import Connection
from store.documents_reading import Document, read_as
from store.documents_stores import Store, named
from store.documents_versions import NO_BASIS, Basis, Written, add
from store.ids import new_id

UNSAFE = "memory_unsafe"


@dataclass(frozen=True, slots=True)
class Draft:
    """A document that is to be written."""

    scope: Scope
    path: str
    document_type: str
    title: str
    content: str = field(repr=False)
    store: str | None = None
    """Slug; not needed where its scope has one store."""
    conversation_id: str | None = None
    """For a document of a conversation."""
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


async def create(
    tx: Connection, writer: Writer, draft: Draft, basis: Basis = NO_BASIS, limits: MemoryLimits = DEFAULT_LIMITS
) -> Written:
    """Write a document where there is none.

    Raises: CallerError of policy/documents/writing.py; 422 `memory_unsafe` with the findings; 409 `document_exists`
    with its digest; 404 `store_not_found`, `conversation_not_found`. Nothing is written where it is raised.
    """
    draft = replace(draft, title=clean(draft.title), content=clean(draft.content))
    store = await named(tx, draft.scope, draft.store)
    _may(writer, store, writer.user_id, draft.document_type, basis, limits)
    refused = path_refusal(draft.path)
    if refused is not None:
        raise refused
    warnings = scanned(draft.scope, draft.path, draft.title, draft.content, *draft.entities, basis=basis, limits=limits)
    owner_id = None if draft.scope is Scope.WORKSPACE else writer.user_id
    if draft.scope is Scope.CONVERSATION:
        await _need_conversation(tx, draft.conversation_id, owner_id)
    elif draft.conversation_id is not None:
        draft = replace(draft, conversation_id=None)
    await read_as(tx, owner_id or "")
    return await _created(tx, writer, store, draft, basis, owner_id, warnings)


async def update(
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
) -> Written:
    """Add a version to `document`, which the caller has read and locked: a new content, or edits of the one it has.

    Raises: as `create`; 409 `memory_conflict` with the digest that is there now; 422 `patch_mismatch`; 409
    `version_redacted` where edits are of a content that is gone.
    """
    ref = document.ref
    store = await named(tx, document.scope, ref.store)
    _may(writer, store, document.owner_id, document.document_type, basis, limits)
    refused = stale(expected_sha256, document.sha256)
    if refused is not None:
        raise refused
    text = clean(content if isinstance(content, str) else _edited(document, content))
    said = document.title if title is None else clean(title)
    given = _given_entities(document) if entities is None else tuple(entities)
    warnings = scanned(document.scope, ref.path, said, text, *given, basis=basis, limits=limits)
    version_id, sha256, trust = new_id(), sha256_hex(text), trust_of(writer, document.scope)
    keys = entity_keys(given, f"{said}\n{text}")
    words = _words(ref.path, said, text, keys)
    number = await tx.fetchval(_CHANGE, ref.document_id, version_id, sha256, trust.value, list(keys), said, words)
    await add(tx, writer, ref.document_id, document.owner_id, version_id, number, text, trust, basis)
    changed = ref.model_copy(update={"version_id": version_id, "trust": trust})
    return Written(changed, document.scope, sha256, number, warnings)


def scanned(scope: Scope, *texts: str, basis: Basis, limits: MemoryLimits) -> tuple[Finding, ...]:
    """The warnings of the scan, of all that would be written; the size that counts is that of all of it together.

    Raises: CallerError 422 `memory_unsafe` with the findings that block.
    """
    findings = scan("\n".join([*texts, basis.evidence_summary, *map(str, basis.source_refs)]), scope, limits)
    if is_blocked(findings):
        blocking = [finding.as_data() for finding in findings if finding.blocks]
        rules = ", ".join(str(each["rule"]) for each in blocking)
        raise CallerError(UNSAFE, f"this may not be remembered: {rules}", {"findings": blocking})
    return findings


def _may(
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
        raise CallerError("conversation_not_found", "there is no such conversation", status=404)


async def _created(
    tx: Connection,
    writer: Writer,
    store: Store,
    draft: Draft,
    basis: Basis,
    owner_id: str | None,
    warnings: tuple[Finding, ...],
) -> Written:
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
        _words(draft.path, draft.title, draft.content, keys),
    )
    if made is None:
        there = await tx.fetchval(
            "SELECT sha256 FROM memory_documents WHERE store_id = $1 AND place_id = $2 AND path = $3 "
            "AND deleted_at IS NULL",
            store.id,
            draft.conversation_id or owner_id or store.id,
            draft.path,
        )
        said = "there is a document at this path already; change that one"
        raise CallerError("document_exists", said, {"path": draft.path, "sha256": there}, status=409)
    await add(tx, writer, document_id, owner_id, version_id, 1, draft.content, trust, basis)
    ref = DocumentRef(document_id=document_id, version_id=version_id, store=store.slug, path=draft.path, trust=trust)
    return Written(ref, draft.scope, sha256, 1, warnings)


def _edited(document: Document, edits: Sequence[Edit]) -> str:
    if document.content is None:
        raise CallerError("version_redacted", "its content was redacted; write it whole", status=409)
    return patched(document.content, edits)


def _given_entities(document: Document) -> tuple[str, ...]:
    """Those that the text does not name itself: a new text names its own."""
    named_by_text = set(names_in(f"{document.title}\n{document.content or ''}"))
    return tuple(each for each in document.entities if each not in named_by_text)


def _words(path: str, title: str, content: str, keys: Sequence[str]) -> str:
    """What a document is found by: the parts of its path stand alone, which a parser would take for a file's name."""
    apart = path.replace("/", " ").replace(".", " ").replace("_", " ").replace("-", " ")
    return "\n".join([apart, title, " ".join(keys), content])
