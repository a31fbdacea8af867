"""API calls for memory. Each function builds a `Call`, to be sent like this:
`client.send(read_memory(conversation_id))`."""

from collections.abc import Mapping

from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path, post
from perdure.schemas.base import Page
from perdure.schemas.memory import Episode, Promotion, SharedDocument, WorkingMemory


def read_memory(conversation_id: str) -> Call[WorkingMemory]:
    """Returns the fields of the caller's conversation that have not expired."""
    return get(path("memory", "working", conversation_id), parsed_as(WorkingMemory))


def write_memory(
    conversation_id: str, fields: Mapping[str, JsonValue], *, ttl_seconds: int | None = None
) -> Call[WorkingMemory]:
    """Merges fields into the existing ones; None removes a field."""
    body: dict[str, JsonValue] = {"fields": dict(fields)}
    if ttl_seconds is not None:
        body["ttl_seconds"] = ttl_seconds
    return Call("PUT", path("memory", "working", conversation_id), parsed_as(WorkingMemory), body=body)


def clear_memory(conversation_id: str) -> Call[None]:
    """Removes every field."""
    return Call("DELETE", path("memory", "working", conversation_id), lambda _: None)


def search_episodes(agent: str, query: str, *, limit: int = 3) -> Call[Page[Episode]]:
    """Returns the caller's episodes with an agent that are most similar to a text."""
    return post(
        path("memory", "episodic", "search"), parsed_as(Page[Episode]), {"agent": agent, "query": query, "limit": limit}
    )


def list_episodes(conversation_id: str) -> Call[Page[Episode]]:
    """Returns the episodes of the caller's conversation, oldest first."""
    return get(path("memory", "episodic"), parsed_as(Page[Episode]), {"conversation_id": conversation_id})


def list_promotions(
    *, status: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Promotion]]:
    """Returns promotions without their texts, newest first: the caller's, or all for an administrator."""
    query = {"status": status, "limit": limit, "cursor": cursor}
    return get(path("memory", "promotions"), parsed_as(Page[Promotion]), query)


def read_promotion(promotion_id: str) -> Call[Promotion]:
    """Returns one promotion with its text."""
    return get(path("memory", "promotions", promotion_id), parsed_as(Promotion))


def decide_promotion(
    promotion_id: str, decision: str, sha256: str, comment: str = "", *, key: str | None = None
) -> Call[Promotion]:
    """Decides with `approve` or `reject`, once, on the text with this digest."""
    body = {"decision": decision, "sha256": sha256, "comment": comment}
    return post(path("memory", "promotions", promotion_id, "decision"), parsed_as(Promotion), {**body}, key=key)


def list_shared(prefix: str) -> Call[Page[SharedDocument]]:
    """Returns the workspace's documents whose path begins with `prefix`, without their texts."""
    return get(
        path("memory", "documents"),
        parsed_as(Page[SharedDocument]),
        {"scope": "workspace", "prefix": prefix, "limit": 200},
    )


def read_shared(document_id: str) -> Call[SharedDocument]:
    """Returns one document with its text."""
    return get(path("memory", "documents", document_id), parsed_as(SharedDocument))
