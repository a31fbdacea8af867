"""A version of a document as it is added: its text, who wrote it, and what it rests on. It never changes again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.digests import sha256_hex
from contracts.documents import DocumentRef, Scope, Trust
from policy.documents.safety import Finding
from policy.documents.writing import Writer
from policy.text import clean
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Basis:
    """What a version rests on, and the call that made it."""

    evidence_summary: str = ""
    source_refs: Sequence[JsonValue] = ()
    turn_id: str | None = None
    call_id: str | None = None


NO_BASIS = Basis()


@dataclass(frozen=True, slots=True)
class Written:
    """A version that was added."""

    ref: DocumentRef
    scope: Scope
    sha256: str
    number: int
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
    """Write the version; the document that names it is written by the caller."""
    given = (sha256_hex(content), content, trust.value, writer.user_id, writer.is_agent, basis.turn_id, basis.call_id)
    summary, refs = clean(basis.evidence_summary), list(basis.source_refs)
    await tx.execute(_ADD, version_id, document_id, owner_id, number, *given, summary, refs)
