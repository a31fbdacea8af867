"""API calls for conversations, turns and files. Each function builds a `Call`; a client sends it."""

import uuid
from collections.abc import AsyncIterable, Mapping
from typing import Any, Literal, Required, TypedDict

import httpx
from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path, post
from perdure.schemas.base import Answer, Page
from perdure.schemas.turns import (
    Conversation,
    ConversationView,
    File,
    Message,
    Metrics,
    Question,
    Segment,
    Turn,
    TurnCall,
    Usage,
)

_EXECUTE_SECONDS = 120.0
"""The time after which the API responds to `execute`, even if the turn is still running."""


def upload_file(
    conversation_id: str,
    name: str,
    content: bytes | AsyncIterable[bytes],
    media_type: str = "text/csv",
    *,
    idempotency_key: str = "",
    length: int | None = None,
) -> Call[File]:
    """Uploads a file to the conversation. `length` is the size in bytes of a streamed `content`, if it is known."""
    return Call(
        "POST",
        path("conversations", conversation_id, "files"),
        parsed_as(File),
        {"name": name},
        idempotency_key=idempotency_key or str(uuid.uuid4()),
        content=content,
        media_type=media_type,
        length=length,
    )


def list_files(conversation_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[File]]:
    """Returns the files of the conversation, newest first."""
    return get(
        path("conversations", conversation_id, "files"), parsed_as(Page[File]), {"limit": limit, "cursor": cursor}
    )


def delete_file(file_id: str) -> Call[None]:
    """Permanently deletes an upload of the caller. A file that a turn created is kept (409 `file_of_turn`)."""
    return Call("DELETE", path("files", file_id), lambda _: None)


def usage(conversation_id: str | None = None) -> Call[Page[Usage]]:
    """Returns the storage that the caller uses. With `conversation_id`, it includes that conversation of the caller.
    For an administrator, it includes the tenant."""
    return get(path("usage"), parsed_as(Page[Usage]), {"conversation": conversation_id})


def read_file(file_id: str) -> Call[bytes]:
    """Returns the bytes of a file."""
    return get(path("files", file_id), _content)


def _content(response: httpx.Response) -> bytes:
    return response.content


OnBusy = Literal["reject", "queue", "steer", "replace"]


def _no_content(_: httpx.Response) -> None:
    return None


class OnBehalfOf(TypedDict, total=False):
    """The person on whose behalf a gateway acts."""

    subject: Required[str]
    """The gateway's own id of the person."""
    name: str
    """The name that models and reviewers see."""
    role: Literal["requester"]


def _behalf(given: OnBehalfOf | None) -> JsonValue:
    return {**given} if given is not None else None  # type: ignore[dict-item]


def create_conversation(
    agent: str,
    *,
    title: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    on_behalf_of: OnBehalfOf | None = None,
    idempotency_key: str = "",
) -> Call[Conversation]:
    """Creates a conversation with this agent. A gateway names the person on whose behalf it acts."""
    body: dict[str, JsonValue] = {
        "agent": agent,
        "title": title,
        "metadata": dict(metadata) if metadata else None,
        "on_behalf_of": _behalf(on_behalf_of),
    }
    return post(path("conversations"), parsed_as(Conversation), body, key=idempotency_key)


def list_conversations(
    *,
    title: str | None = None,
    on_behalf_of: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Conversation]]:
    """Returns the caller's conversations, newest first. A gateway can name one of its subjects."""
    query = {"title": title, "on_behalf_of": on_behalf_of, "limit": limit, "cursor": cursor}
    return get(path("conversations"), parsed_as(Page[Conversation]), query)


def get_conversation(conversation_id: str) -> Call[Conversation]:
    """Returns one conversation."""
    return get(path("conversations", conversation_id), parsed_as(Conversation))


def rename_conversation(conversation_id: str, title: str) -> Call[Conversation]:
    """Changes the title of a conversation."""
    return Call("PATCH", path("conversations", conversation_id), parsed_as(Conversation), body={"title": title})


def delete_conversation(conversation_id: str) -> Call[None]:
    """Hides a conversation; its records remain."""
    return Call("DELETE", path("conversations", conversation_id), _no_content)


def list_messages(conversation_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Message]]:
    """Returns the transcript, oldest first."""
    return get(path("conversations", conversation_id, "messages"), parsed_as(Page[Message]), _page_query(limit, cursor))


def conversation_view(
    conversation_id: str, *, turn: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[ConversationView]:
    """Returns the conversation view: the turns with their texts, calls and files, newest first. With `turn`, it returns
    that turn only."""
    query = {"turn": turn, **_page_query(limit, cursor)}
    return get(path("conversations", conversation_id, "story"), parsed_as(ConversationView), query)


def start_turn(
    conversation_id: str,
    message: str,
    *,
    on_busy: OnBusy | None = None,
    limits: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    on_behalf_of: OnBehalfOf | None = None,
    wait_seconds: float | None = None,
    idempotency_key: str = "",
) -> Call[Turn]:
    """Starts a turn, which is durable once the API has responded. With `wait_seconds`, the response can be the ended or
    paused turn."""
    body: dict[str, JsonValue] = {
        "message": message,
        "on_busy": on_busy,
        "limits": dict(limits) if limits else None,
        "metadata": dict(metadata) if metadata else None,
        "on_behalf_of": _behalf(on_behalf_of),
    }
    return post(
        path("conversations", conversation_id, "turns"),
        parsed_as(Turn),
        body,
        key=idempotency_key,
        query={"wait": None if wait_seconds is None else f"{wait_seconds:g}"},
        wait_seconds=wait_seconds or 0.0,
    )


def execute(
    agent: str,
    message: str,
    *,
    conversation_id: str | None = None,
    system_prompt: str | None = None,
    limits: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    on_behalf_of: OnBehalfOf | None = None,
    idempotency_key: str = "",
) -> Call[Turn]:
    """Runs a turn in one request. The API responds when the turn has ended or is paused, or after 120 s while it still
    runs."""
    body: dict[str, JsonValue] = {
        "agent": agent,
        "message": message,
        "conversation_id": conversation_id,
        "system_prompt": system_prompt,
        "limits": dict(limits) if limits else None,
        "metadata": dict(metadata) if metadata else None,
        "on_behalf_of": _behalf(on_behalf_of),
    }
    return post(path("execute"), parsed_as(Turn), body, key=idempotency_key, wait_seconds=_EXECUTE_SECONDS)


def get_turn(turn_id: str) -> Call[Turn]:
    """Returns the current state of a turn: status, answer, usage, and what it waits for."""
    return get(path("turns", turn_id), parsed_as(Turn))


def list_turns(
    *,
    status: str | None = None,
    agent: str | None = None,
    conversation: str | None = None,
    on_behalf_of: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Turn]]:
    """Returns turns, newest first. A gateway can name one of its subjects."""
    query = {"status": status, "agent": agent, "conversation": conversation, "on_behalf_of": on_behalf_of}
    return get(path("turns"), parsed_as(Page[Turn]), {**query, **_page_query(limit, cursor)})


def turn_segments(turn_id: str) -> Call[Page[Segment]]:
    """Returns the thinking, the texts and the calls of a turn, in order."""
    return get(path("turns", turn_id, "segments"), parsed_as(Page[Segment]))


def list_calls(turn_id: str) -> Call[Page[TurnCall]]:
    """Returns the turn's last 500 model and tool calls, in the order in which they began."""
    return get(path("turns", turn_id, "calls"), parsed_as(Page[TurnCall]))


def turn_metrics(turn_id: str) -> Call[Metrics]:
    """Returns the duration, the tokens and the cost of each model call of the turn."""
    return get(path("turns", turn_id, "metrics"), parsed_as(Metrics))


def stop_turn(turn_id: str, *, idempotency_key: str = "") -> Call[Answer]:
    """Requests that the turn stop. It starts nothing new after that."""
    return post(path("turns", turn_id, "stop"), parsed_as(Answer), key=idempotency_key)


def get_question(turn_id: str, request_id: str) -> Call[Question]:
    """Returns a question of a turn, with the schema of its answer. Only the turn's user can read it."""
    return get(path("turns", turn_id, "answers", request_id), parsed_as(Question))


def answer_question(
    turn_id: str, request_id: str, kind: str, payload: Mapping[str, Any], *, idempotency_key: str = ""
) -> Call[Question]:
    """Answers a question; the first valid answer counts. `kind` is `clarification` or `client_run`."""
    body: dict[str, JsonValue] = {"kind": kind, "payload": dict(payload)}
    return post(path("turns", turn_id, "answers", request_id), parsed_as(Question), body, key=idempotency_key)


def raise_limits(
    turn_id: str, *, max_tokens: int | None = None, max_cost_usd: float | None = None, idempotency_key: str = ""
) -> Call[Answer]:
    """Raises limits of a turn that is paused at a limit; for reviewers. None leaves a limit as it is."""
    body: dict[str, JsonValue] = {"max_tokens": max_tokens, "max_cost_usd": max_cost_usd}
    return post(path("turns", turn_id, "limits"), parsed_as(Answer), body, key=idempotency_key)


def _page_query(limit: int | None, cursor: str | None) -> dict[str, str | int | None]:
    return {"limit": limit, "cursor": cursor}
