"""Responses about memory, promotions and the documents of a workspace."""

from datetime import datetime

from pydantic import JsonValue

from perdure.schemas.base import Answer


class WorkingMemory(Answer):
    """The working memory of a conversation."""

    conversation_id: str
    fields: dict[str, JsonValue]


class Episode(Answer):
    """A summary of a turn; in search results, with its similarity."""

    id: str
    conversation_id: str
    summary: str
    similarity: float | None = None
    by: str = ""
    """`cosine` or `full_text`."""


class Promotion(Answer):
    """A text that is proposed for the workspace. An administrator decides on it."""

    id: str
    store: str
    path: str
    title: str
    type: str
    risk: str
    status: str
    sha256: str
    base_sha256: str | None = None
    """The digest of the shared document that it would change, or None for a new document."""
    content: str | None = None
    """The text, if the promotion was requested by its id."""
    evidence_summary: str = ""
    proposed_by: str
    by_agent: bool = False
    created_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    comment: str | None = None


class SharedDocument(Answer):
    """A document of the workspace."""

    id: str
    store: str
    path: str
    sha256: str
    content: str | None = None
    """The text, if the document was requested by its id."""
