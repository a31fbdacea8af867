"""The calls about promotions: texts proposed for a whole workspace, and an administrator's word on them."""

from datetime import datetime

from perdure.client.answers import Answer, Page
from perdure.client.calls import Call, get, one, path, post


class Promotion(Answer):
    """A text proposed for everybody."""

    id: str
    store: str
    path: str
    title: str
    type: str
    risk: str
    status: str
    sha256: str
    base_sha256: str | None = None
    """Of the shared document that it would change; None where it would be new."""
    content: str | None = None
    """Of one that was asked for by its id."""
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
    """Of one that was asked for by its id."""


def list_promotions(
    *, status: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Promotion]]:
    """Promotions without their texts, proposed last first: one's own, for an administrator everybody's."""
    query = {"status": status, "limit": limit, "cursor": cursor}
    return get(path("memory", "promotions"), one(Page[Promotion]), query)


def read_promotion(promotion_id: str) -> Call[Promotion]:
    """One with its text."""
    return get(path("memory", "promotions", promotion_id), one(Promotion))


def decide_promotion(
    promotion_id: str, decision: str, sha256: str, comment: str = "", *, key: str | None = None
) -> Call[Promotion]:
    """`approve` or `reject` the text of this digest, once."""
    body = {"decision": decision, "sha256": sha256, "comment": comment}
    return post(path("memory", "promotions", promotion_id, "decision"), one(Promotion), {**body}, key=key)


def list_shared(prefix: str) -> Call[Page[SharedDocument]]:
    """The workspace's documents whose path begins so, without their texts."""
    return get(
        path("memory", "documents"), one(Page[SharedDocument]), {"scope": "workspace", "prefix": prefix, "limit": 200}
    )


def read_shared(document_id: str) -> Call[SharedDocument]:
    """One with its text."""
    return get(path("memory", "documents", document_id), one(SharedDocument))
