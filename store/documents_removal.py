"""Taking documents away: an administrator's soft delete, and the redaction of one version (S2-73).

Whoever does it need not be able to read what is taken away, and is shown none of it.
"""

from pydantic import JsonValue

from contracts.errors import CallerError
from store import audit
from store.database import Connection
from store.documents_reading import EVERYBODY, read_as


async def delete(tx: Connection, document_id: str, actor: str) -> None:
    """Hide a document from everybody; its versions stay, and its path is free again.

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
        raise CallerError("document_not_found", "there is no such document", status=404)
    told: dict[str, JsonValue] = {"sha256": row["sha256"], "scope": row["scope"], "version_id": str(row["version_id"])}
    await audit.record(tx, "memory.document_deleted", document_id, told, actor=actor, turn_id=None)


async def redact(tx: Connection, document_id: str, version_id: str, reason: str, actor: str) -> dict[str, object]:
    """Blank the content of one version, for good; where it is the current one, nothing finds it any more.

    A pending promotion of that text is withdrawn and blanked with it; decided ones are blanked.

    Raises: CallerError 404 `version_not_found`, 409 `version_redacted` where that is done already.
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
        raise CallerError("version_not_found", "there is no such version of a document", status=404)
    if row["redacted_at"] is not None:
        raise CallerError("version_redacted", "this version was redacted already", status=409)
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
    told: dict[str, JsonValue] = {"version_id": version_id, "sha256": row["sha256"], "reason": reason}
    await audit.record(tx, "memory.version_redacted", document_id, told, actor=actor, turn_id=None)
    return {"id": version_id, "document_id": document_id, "number": row["number"], "redacted_at": redacted_at}
