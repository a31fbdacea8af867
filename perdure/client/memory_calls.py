"""The calls about memory. Each function makes a value, nothing is sent: `client.send(read_memory(conversation_id))`."""

from collections.abc import Mapping

from pydantic import JsonValue

from perdure.client.answers import Answer, Page
from perdure.client.calls import Call, get, one, path, post


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
