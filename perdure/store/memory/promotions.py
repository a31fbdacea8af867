"""Promotions: proposals to add a text to the tenant's shared memory. Each is decided once, by an administrator who did
not propose it.

A proposal stores the text as proposed and changes no shared document. Its approval writes the shared version in the
same transaction, unless the shared document has changed since the proposal.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg
from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits, Risk, Scope
from perdure.core.memory.documents import (
    PromotionDecision,
    PromotionState,
    Writer,
    decision_refusal,
    evidence_refusal,
    path_refusal,
    stale_refusal,
)
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.memory.documents import (
    Basis,
    Draft,
    WrittenVersion,
    create_document,
    find_store,
    scan_texts,
    update_document,
)
from perdure.store.memory.search import Document, at_path
from perdure.store.paging import cursor_after, read_cursor

View = dict[str, object]
_COLUMNS = (
    "p.id, p.source_document, p.source_version, s.slug AS store, p.path, p.type, p.title, p.entities, p.sha256, "
    "p.base_sha256, p.risk, p.evidence_summary, p.source_refs, u.name AS proposed_by, p.proposed_by AS proposer_id, "
    "p.by_agent, p.turn_id, p.call_id, p.status, d.name AS decided_by, p.decided_at, p.comment, p.made_version, "
    "p.created_at"
)
_FROM = (
    "memory_promotions p JOIN memory_stores s ON s.id = p.store_id JOIN users u ON u.id = p.proposed_by "
    "LEFT JOIN users d ON d.id = p.decided_by"
)
_IDS = ("id", "source_document", "source_version", "turn_id", "made_version")


@dataclass(frozen=True, slots=True)
class Target:
    """The shared document that the text is proposed for, and the proposer's estimate of the risk."""

    store: str
    path: str
    risk: Risk


async def propose(
    tx: Connection,
    writer: Writer,
    source: Document,
    target: Target,
    basis: Basis,
    limits: MemoryLimits = DEFAULT_LIMITS,
) -> View:
    """Proposes the current version of `source`, which the caller has read.

    Raises: CallerError 409 `version_redacted`, `store_archived`, `promotion_pending`; 404 `store_not_found`; 422
    `memory_unsafe`, `evidence_missing`, `path_invalid`.
    """
    if source.content is None:
        raise CallerError("version_redacted", "The document's text was redacted; it cannot be proposed", status=409)
    store = await find_store(tx, Scope.WORKSPACE, target.store)
    if store.archived:
        raise CallerError(
            "store_archived", f"The store {store.slug} is archived; reopen it before you write", status=409
        )
    refused = path_refusal(target.path) or evidence_refusal(
        writer, basis.evidence_summary, required=limits.evidence_required
    )
    if refused is not None:
        raise refused
    scan_texts(Scope.WORKSPACE, target.path, source.title, source.content, *source.entities, basis=basis, limits=limits)
    shared = await _read_shared(tx, target.store, target.path, writer.user_id or "")
    base = shared.sha256 if shared else None
    promotion_id = await _insert(tx, writer, source, target, basis, store_id=store.id, base_sha256=base)
    if promotion_id is None:
        raise CallerError("promotion_pending", "This text is already proposed and waits for a decision", status=409)
    data: dict[str, JsonValue] = {"store": store.slug, "sha256": source.sha256, "risk": target.risk.value}
    await _record(tx, "memory.promotion_proposed", promotion_id, data, writer.user_id, basis.turn_id)
    return await get_promotion(tx, str(promotion_id), None)


async def _insert(
    tx: Connection,
    writer: Writer,
    source: Document,
    target: Target,
    basis: Basis,
    *,
    store_id: str,
    base_sha256: str | None,
) -> object:
    """Returns the promotion's id, or None if the same text is already pending for this path."""
    return await tx.fetchval(
        "INSERT INTO memory_promotions (id, tenant_id, source_document, source_version, store_id, path, type, title, "
        "entities, content, sha256, base_sha256, risk, evidence_summary, source_refs, proposed_by, by_agent, turn_id, "
        "call_id) VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, "
        "$14, $15, $16, $17, $18) ON CONFLICT (store_id, path, sha256) WHERE status = 'pending' DO NOTHING "
        "RETURNING id",
        new_id(),
        source.ref.document_id,
        source.ref.version_id,
        store_id,
        target.path,
        source.document_type,
        source.title,
        list(source.entities),
        source.content,
        source.sha256,
        base_sha256,
        target.risk.value,
        basis.evidence_summary,
        list(basis.source_refs),
        writer.user_id,
        writer.is_agent,
        basis.turn_id,
        basis.call_id,
    )


async def get_promotion(tx: Connection, promotion_id: str, proposer: str | None, *, lock: bool = False) -> View:
    """Returns a promotion with its text if this user proposed it. With None, any promotion of the tenant is returned.

    Raises: CallerError 404 `promotion_not_found`.
    """
    held = "FOR UPDATE OF p" if lock else ""
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS}, p.content FROM {_FROM} "
        f"WHERE p.id = $1 AND ($2::uuid IS NULL OR p.proposed_by = $2) {held}",
        promotion_id,
        proposer,
    )
    if row is None:
        raise CallerError("promotion_not_found", "Promotion not found", status=404)
    return _show_promotion(row)


async def list_promotions(
    tx: Connection, proposer: str | None, status: PromotionState | None, limit: int, cursor: str | None
) -> tuple[list[View], str | None]:
    """Lists promotions without their texts, newest first, and the next page's cursor."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM {_FROM} WHERE ($1::uuid IS NULL OR p.proposed_by = $1) "
        "AND ($2::text IS NULL OR p.status = $2) "
        "AND ($3::timestamptz IS NULL OR (p.created_at, p.id) < ($3, $4::uuid)) "
        "ORDER BY p.created_at DESC, p.id DESC LIMIT $5",
        proposer,
        status.value if status else None,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["created_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [_show_promotion(row) for row in rows[:limit]], following


_DECIDED = """
UPDATE memory_promotions SET status = $2, decided_by = $3, decided_at = now(), comment = $4, made_version = $5
WHERE id = $1
"""


async def decide(
    tx: Connection,
    promotion_id: str,
    decider: Writer,
    decision: PromotionDecision,
    seen_sha256: str,
    comment: str,
    limits: MemoryLimits = DEFAULT_LIMITS,
) -> View:
    """Decides a promotion permanently. An approval writes the shared version, with the decider as its author.

    Raises: CallerError 404 `promotion_not_found`; the errors of `perdure/core/memory/documents.py`; 409
    `memory_conflict` if the shared document has changed since the proposal; the errors of `create_document` and
    `update_document`.
    """
    promotion: dict[str, Any] = await get_promotion(tx, promotion_id, None, lock=True)
    refused = decision_refusal(
        decider=decider.user_id or "",
        roles=decider.roles,
        proposer=str(promotion["proposer_id"]),
        state=PromotionState(promotion["status"]),
        seen_sha256=seen_sha256,
        sha256=promotion["sha256"],
        decision=decision,
        comment=comment,
        credential=decider.credential,
    )
    if refused is not None:
        raise refused
    made = await _write_shared(tx, decider, promotion, limits) if decision is PromotionDecision.APPROVE else None
    state = PromotionState.APPROVED if made else PromotionState.REJECTED
    version_id = made.ref.version_id if made else None
    await tx.execute(_DECIDED, promotion_id, state.value, decider.user_id, comment, version_id)
    data: dict[str, JsonValue] = {"decision": state.value, "sha256": promotion["sha256"], "comment": comment}
    await _record(tx, "memory.promotion_decided", promotion_id, data, decider.user_id, None)
    return await get_promotion(tx, promotion_id, None)


async def _write_shared(
    tx: Connection, decider: Writer, promotion: dict[str, Any], limits: MemoryLimits
) -> WrittenVersion:
    """Writes the shared version by the same rules as any other write."""
    basis = Basis(promotion["evidence_summary"], promotion["source_refs"], promotion["turn_id"], promotion["call_id"])
    shared = await _read_shared(tx, promotion["store"], promotion["path"], decider.user_id or "", lock=True)
    refused = stale_refusal(promotion["base_sha256"] or "", shared.sha256 if shared else "")
    if refused is not None:
        raise refused
    if shared is None:
        draft = Draft(
            Scope.WORKSPACE,
            promotion["path"],
            promotion["type"],
            promotion["title"],
            promotion["content"],
            promotion["store"],
            entities=promotion["entities"],
        )
        return await create_document(tx, decider, draft, basis, limits)
    given = {"title": promotion["title"], "entities": promotion["entities"], "limits": limits}
    return await update_document(tx, decider, shared, shared.sha256, promotion["content"], basis, **given)


async def _read_shared(tx: Connection, store: str, path: str, reader: str, *, lock: bool = False) -> Document | None:
    try:
        return await at_path(tx, Scope.WORKSPACE, store, path, reader, None, lock=lock)
    except CallerError as error:
        if error.code == "document_not_found":
            return None
        raise


async def _record(
    tx: Connection, kind: str, subject: object, data: dict[str, JsonValue], actor: str | None, turn_id: str | None
) -> None:
    await audit.record(tx, kind, str(subject), data, actor=actor, turn_id=turn_id)


def _show_promotion(row: asyncpg.Record) -> View:
    view = {**dict(row), "proposer_id": str(row["proposer_id"]), "entities": list(row["entities"])}
    return view | {name: str(view[name]) if view[name] is not None else None for name in _IDS}
