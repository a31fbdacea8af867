"""Request bodies of the memory: documents, promotions, working memory and episodes."""

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from perdure.api.request_bodies import Body, Comment, NotBlank
from perdure.contracts.memory import Risk, Scope
from perdure.core.memory.documents import PromotionDecision, type_fault
from perdure.store.memory import working_memory
from perdure.store.memory.documents import Basis

MAX_HITS = 50
MAX_EPISODES = 20


def _check_document_type(document_type: str) -> str:
    fault = type_fault(document_type)
    if fault is not None:
        raise PydanticCustomError("document_type", "{fault}", {"fault": fault})
    return document_type


Title = Annotated[str, Field(max_length=200), NotBlank]
Content = Annotated[str, Field(max_length=100_000), NotBlank]
Entities = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], Field(max_length=32)]
Sources = Annotated[tuple[Annotated[str, Field(max_length=500)], ...], Field(max_length=20)]
Sha256 = Annotated[str, Field(max_length=64)]


class BasisBody(Body):
    """The evidence of a document version."""

    evidence_summary: str = Field(default="", max_length=2_000)
    """The reasons to believe the text, in a few sentences."""
    source_refs: Sources = ()
    """The sources of the text, such as addresses or ticket numbers."""

    def basis(self) -> Basis:
        """Returns the evidence in the store's form."""
        refs: list[JsonValue] = [*self.source_refs]
        return Basis(self.evidence_summary, refs)


class NewDocument(BasisBody):
    """A new document of the memory."""

    scope: Scope
    """The scope, which decides who can read it."""
    store: str | None = Field(
        default=None,
        max_length=64,
        description="The store's name. Required in the workspace scope, which can have several stores.",
    )
    conversation_id: str | None = Field(
        default=None, max_length=100, description="The conversation, if the document belongs to one."
    )
    path: str = Field(max_length=200)
    """Its path within the scope, such as `notes/rollback.md`."""
    type: Annotated[str, AfterValidator(_check_document_type)]
    """The type of the document."""
    title: Title
    """The title."""
    content: Content
    """The text, in Markdown."""
    entities: Entities = ()
    """The things that it is about, as `kind:name`."""


class UpdateBody(BasisBody):
    """A new version of a document."""

    expected_sha256: Sha256
    """The SHA-256 of the content that the caller has seen. Another one is 409."""
    content: Content
    """The whole new text."""
    title: Title | None = None
    """The new title; null keeps the old one."""
    entities: Entities | None = None
    """The new entities; null keeps the old ones."""


class EditBody(Body):
    """A text that occurs exactly once, and its replacement."""

    find: str = Field(min_length=1, max_length=100_000)
    """The text to replace; it occurs exactly once."""
    replace: str = Field(max_length=100_000)
    """The text that replaces it."""


class PatchBody(BasisBody):
    """A new version of a document, by edits of the last one."""

    expected_sha256: Sha256
    """The SHA-256 of the content that the caller has seen. Another one is 409."""
    edits: tuple[EditBody, ...] = Field(min_length=1, max_length=50)
    """The edits, in order."""


class DocumentSearchBody(Body):
    """A search in the documents that the caller can read."""

    query: Annotated[str, Field(min_length=1, max_length=4_000), NotBlank]
    """The words to search for."""
    scope: Scope | None = None
    """Only documents of this scope."""
    conversation_id: str | None = Field(default=None, max_length=100)
    """Also documents of this conversation."""
    limit: int = Field(default=6, ge=1, strict=True, description=f"Values above {MAX_HITS} are reduced to {MAX_HITS}")


class RedactionBody(Body):
    """Removes the text of one version of a document for ever."""

    reason: Annotated[str, Field(max_length=1_000), NotBlank]
    """The reason, which the audit trail keeps."""


class StoreBody(Body):
    """Archives a store of documents, or makes it available again."""

    archived: bool = Field(strict=True)
    """True to archive it."""


class ProposalBody(BasisBody):
    """Proposes that a document is copied to a shared store."""

    document_id: str = Field(max_length=100)
    """The document."""
    store: str = Field(max_length=64)
    """The store's name."""
    path: str = Field(max_length=200)
    """The path in the store."""
    risk: Risk
    """The harm that a wrong text could do."""


class PromotionDecisionBody(Body):
    """A reviewer's decision about a proposed promotion."""

    decision: PromotionDecision
    """The decision about the proposal."""
    sha256: Sha256
    """The SHA-256 of the text that the reviewer has seen."""
    comment: Comment = ""
    """The reason."""


FieldName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
EpisodeText = Annotated[str, Field(min_length=1, max_length=4_000, pattern=r"\S")]


class FieldsBody(Body):
    """Fields of a conversation's working memory."""

    fields: dict[FieldName, JsonValue]
    """Merged into the existing fields; null removes a field."""
    ttl_seconds: int = Field(default=working_memory.TTL_SECONDS, ge=1, le=working_memory.MAX_TTL_SECONDS, strict=True)
    """Seconds until the fields expire."""


class EpisodeBody(Body):
    """A summary of a conversation, for later turns to recall."""

    conversation_id: str = Field(max_length=100)
    """The conversation."""
    summary: EpisodeText
    """The text to remember."""


class SearchBody(Body):
    """A search in the summaries of the caller's conversations."""

    agent: str = Field(min_length=1, max_length=64)
    """Only conversations with this agent."""
    query: EpisodeText
    """The words or the question to search for."""
    limit: int = Field(
        default=3, ge=1, strict=True, description=f"Values above {MAX_EPISODES} are reduced to {MAX_EPISODES}"
    )
