"""Request bodies of documents and their promotions."""

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from api.bodies import Body, Comment, Worded
from contracts.documents import Risk, Scope
from policy.documents.kinds import type_fault
from policy.documents.promotion import PromotionDecision
from store.documents_versions import Basis

MOST_HITS = 50


def _known(document_type: str) -> str:
    fault = type_fault(document_type)
    if fault is not None:
        raise PydanticCustomError("document_type", "{fault}", {"fault": fault})
    return document_type


Title = Annotated[str, Field(max_length=200), Worded]
Content = Annotated[str, Field(max_length=100_000), Worded]
Entities = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(max_length=32)]
Sources = Annotated[tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=20)]
Sha256 = Annotated[str, Field(max_length=64)]


class BasisBody(Body):
    """What a version rests on."""

    evidence_summary: str = Field(default="", max_length=2_000)
    source_refs: Sources = ()

    def basis(self) -> Basis:
        """As the store takes it."""
        refs: list[JsonValue] = [*self.source_refs]
        return Basis(self.evidence_summary, refs)


class NewDocument(BasisBody):
    """POST /v1/memory/documents."""

    scope: Scope
    store: str | None = Field(default=None, max_length=64, description="needed for a workspace, which has several")
    conversation_id: str | None = Field(default=None, max_length=100, description="of a document of a conversation")
    path: str = Field(max_length=200)
    type: Annotated[str, AfterValidator(_known)]
    title: Title
    content: Content
    entities: Entities = ()


class UpdateBody(BasisBody):
    """PUT /v1/memory/documents/{id}."""

    expected_sha256: Sha256
    content: Content
    title: Title | None = None
    entities: Entities | None = None


class EditBody(Body):
    """A text that stands there exactly once, and what comes in its place."""

    find: str = Field(min_length=1, max_length=100_000)
    replace: str = Field(max_length=100_000)


class PatchBody(BasisBody):
    """PATCH /v1/memory/documents/{id}."""

    expected_sha256: Sha256
    edits: tuple[EditBody, ...] = Field(min_length=1, max_length=50)


class DocumentSearchBody(Body):
    """POST /v1/memory/documents/search."""

    query: Annotated[str, Field(min_length=1, max_length=4_000), Worded]
    scope: Scope | None = None
    conversation_id: str | None = Field(default=None, max_length=100)
    limit: int = Field(default=6, ge=1, strict=True, description=f"clamped to {MOST_HITS}")


class RedactionBody(Body):
    """POST /v1/memory/documents/{id}/versions/{version}/redact."""

    reason: Annotated[str, Field(max_length=1_000), Worded]


class StoreBody(Body):
    """PUT /v1/memory/stores/{slug}."""

    archived: bool = Field(strict=True)


class ProposalBody(BasisBody):
    """POST /v1/memory/promotions."""

    document_id: str = Field(max_length=100)
    store: str = Field(max_length=64)
    path: str = Field(max_length=200)
    risk: Risk


class PromotionDecisionBody(Body):
    """POST /v1/memory/promotions/{id}/decision."""

    decision: PromotionDecision
    sha256: Sha256
    comment: Comment = ""
