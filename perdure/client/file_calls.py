"""The calls that are about files of a conversation."""

import uuid
from collections.abc import AsyncIterable
from datetime import datetime

import httpx

from perdure.client.answers import Answer, Page
from perdure.client.calls import Call, get, one, path


class File(Answer):
    """A file of a conversation: uploaded, or made by a turn."""

    id: str
    conversation_id: str
    turn_id: str | None = None
    name: str
    media_type: str
    size_bytes: int
    sha256: str = ""
    created_at: datetime | None = None


class Usage(Answer):
    """What a scope keeps, and its quota."""

    scope: str
    """`conversation`, `user` or `tenant`."""
    used_bytes: int
    limit_bytes: int | None = None
    """None: there is no quota."""
    variable: str = ""
    """By which the operator sets the quota."""


def upload_file(
    conversation_id: str,
    name: str,
    content: bytes | AsyncIterable[bytes],
    media_type: str = "text/csv",
    *,
    idempotency_key: str = "",
    length: int | None = None,
) -> Call[File]:
    """A new file of the conversation. `length` is that of a stream, if it is known."""
    return Call(
        "POST",
        path("conversations", conversation_id, "files"),
        one(File),
        {"name": name},
        idempotency_key=idempotency_key or str(uuid.uuid4()),
        content=content,
        media_type=media_type,
        length=length,
    )


def list_files(conversation_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[File]]:
    """The files of the conversation, newest first."""
    return get(path("conversations", conversation_id, "files"), one(Page[File]), {"limit": limit, "cursor": cursor})


def delete_file(file_id: str) -> Call[None]:
    """Deletes an upload of yours for good. What a turn made stays on record (409 `file_of_turn`)."""
    return Call("DELETE", path("files", file_id), lambda _: None)


def usage(conversation_id: str | None = None) -> Call[Page[Usage]]:
    """What you keep; of a conversation of yours too, and for an administrator of the tenant."""
    return get(path("usage"), one(Page[Usage]), {"conversation": conversation_id})


def read_file(file_id: str) -> Call[bytes]:
    """A file's bytes."""
    return get(path("files", file_id), _bytes)


def _bytes(response: httpx.Response) -> bytes:
    return response.content
