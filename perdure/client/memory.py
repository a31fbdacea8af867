"""The calls about memory. Each function makes a value, nothing is sent: `client.send(read_memory(conversation_id))`."""

from collections.abc import Mapping
from datetime import datetime

from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.schemas.answers import Answer, Page


class WorkingMemory(Answer):
    """The scratchpad of a conversation."""

    conversation_id: str
    fields: dict[str, JsonValue]


class Episode(Answer):
    """A summary of a turn, and how near it is where it was searched for."""

    id: str
    conversation_id: str
    summary: str
    similarity: float | None = None
    by: str = ""
    """`cosine` or `full_text`."""


def read_memory(conversation_id: str) -> Call[WorkingMemory]:
    """The live fields of one's conversation."""
    return get(path("memory", "working", conversation_id), one(WorkingMemory))


def write_memory(
    conversation_id: str, fields: Mapping[str, JsonValue], *, ttl_seconds: int | None = None
) -> Call[WorkingMemory]:
    """Merge fields over what is there; None removes one."""
    body: dict[str, JsonValue] = {"fields": dict(fields)}
    if ttl_seconds is not None:
        body["ttl_seconds"] = ttl_seconds
    return Call("PUT", path("memory", "working", conversation_id), one(WorkingMemory), body=body)


def clear_memory(conversation_id: str) -> Call[None]:
    """Forget every field."""
    return Call("DELETE", path("memory", "working", conversation_id), lambda _: None)


def search_episodes(agent: str, query: str, *, limit: int = 3) -> Call[Page[Episode]]:
    """One's episodes with an agent that come nearest to a text."""
    return post(
        path("memory", "episodic", "search"), one(Page[Episode]), {"agent": agent, "query": query, "limit": limit}
    )


def list_episodes(conversation_id: str) -> Call[Page[Episode]]:
    """The episodes of one's conversation, oldest first."""
    return get(path("memory", "episodic"), one(Page[Episode]), {"conversation_id": conversation_id})


# --- The calls about promotions: texts proposed for a whole workspace, and an administrator's word on them.


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
