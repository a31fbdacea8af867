"""The calls that are about conversations and turns. Each function makes a value; nothing is sent here."""

import uuid
from collections.abc import AsyncIterable, Mapping
from datetime import datetime
from typing import Any, Literal

import httpx
from pydantic import JsonValue

from perdure.client.requests import Call, get, one, path, post
from perdure.contracts.turns import ENDED
from perdure.schemas.answers import Answer, Page

# --- The calls that are about files of a conversation.


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


# --- What the API answers about conversations and turns.

_ENDED = frozenset(status.value for status in ENDED)
_AWAITING = "awaiting_"


class Conversation(Answer):
    """A conversation with one agent."""

    id: str
    agent: str
    title: str = ""
    metadata: Mapping[str, Any] = {}
    updated_at: datetime | None = None


class Message(Answer):
    """A message of the transcript."""

    id: str
    role: str
    content: str = ""
    turn_id: str | None = None
    turn_status: str = ""
    heard: bool = True
    """False where its turn ended before it began: no model was told of it."""


class Failure(Answer):
    """Why a turn did not complete."""

    code: str
    message: str


class Waiting(Answer):
    """What a turn waits for."""

    kind: str
    ids: list[str] = []
    since: datetime | None = None
    expires_at: datetime | None = None


class TurnUsage(Answer):
    """What a turn used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens_used: int = 0
    cost_usd: float = 0.0


class Turn(Answer):
    """A turn; just started, it has its ids, status and `events` only."""

    turn_id: str
    conversation_id: str
    status: str
    agent: str = ""
    topology: str = ""
    answer: str | None = None
    output: Mapping[str, Any] | None = None
    """What the turn hands out beside its answer."""
    error: Failure | None = None
    usage: TurnUsage = TurnUsage()
    waiting_for: Waiting | None = None
    ttft_seconds: float | None = None
    """From the start of the turn to the first token that its reader sees."""
    ttr_seconds: float | None = None
    """From the start of the turn to its end."""
    nodes: list[str] = []
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stop_requested_at: datetime | None = None
    events: str | None = None
    links: Mapping[str, str] = {}
    message_id: str | None = None
    joined: bool = False
    """Of an answer to a message with `on_busy="steer"`: the turn was under way, and hears it at its next model call, or
    leaves it to a turn of its own (`done` names it)."""
    replaces: str | None = None
    """Of an answer to one with `on_busy="replace"`: the turn that ends for this one."""
    replaced_by: str | None = None
    left_over: str | None = None
    """The turn that goes on with messages which joined this one and were not heard by its end."""

    @property
    def has_ended(self) -> bool:
        """No status follows this one."""
        return self.status in _ENDED

    @property
    def is_paused(self) -> bool:
        """It waits for a person."""
        return self.status.startswith(_AWAITING)


class Question(Answer):
    """What a turn asks of its own user."""

    id: str
    turn_id: str
    kind: str
    asked: Mapping[str, Any] = {}
    answer_schema: Mapping[str, Any] = {}
    status: str
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    answered_at: datetime | None = None


class Segment(Answer):
    """A part of a turn's story: what it thought, said or did, or heard of its user while it ran."""

    kind: str
    """`thinking`, `text`, `tool`, `message` or `question`."""
    call_id: str = ""
    state: str = ""
    text: str = ""
    """Of a `text` or a `message`, or as much of a `thinking` as is kept; the rest is of a `tool`."""
    tool: str = ""
    arguments: Any = None
    result: Any = None
    approval_id: str | None = None
    asks_for: str = ""
    """Of a `question`: `clarification` or `client_run`, what was asked, and the answer once it is there."""
    asked: Mapping[str, Any] = {}
    answer: Mapping[str, Any] | None = None


class ModelUse(Answer):
    """What one model call took and used."""

    call_id: str
    label: str = ""
    number: int = 1
    """Among those of its label."""
    model: str = ""
    attempts: int = 0
    seconds: float | None = None
    """None while it runs."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    refused: str | None = None
    """Why its answer did not count."""


class TurnCall(Answer):
    """One call of a turn."""

    call_id: str
    kind: str
    """`model`, `tool`, or `context`: a tool that puts the context together."""
    name: str = ""
    """The model's or the tool's."""
    label: str = ""
    """What the model was asked for, where it was for one thing."""
    effect: str | None = None
    state: str = ""
    code: str | None = None
    """Why it failed, or its answer did not count."""
    attempts: int = 0
    errors: int = 0
    planned_at: datetime | None = None
    started_at: datetime | None = None
    """None of a call that was not begun, or was answered as it was planned."""
    settled_at: datetime | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    approval_id: str | None = None


class Metrics(Answer):
    """A turn's model calls, one by one."""

    calls: list[ModelUse] = []


class Said(Answer):
    """What a turn's user said, by which it was asked for or which waits to be heard."""

    id: str
    content: str = ""
    waits: bool = False
    """It was sent into the turn, and no model call has heard it yet."""


class ToldTurn(Turn):
    """A turn with all that a reader of its conversation is shown."""

    said: list[Said] = []
    segments: list[Segment] = []
    files: list[File] = []
    """What it made."""


class Story(Page[ToldTurn]):
    """A conversation's turns, newest first, as they are at one moment."""

    seq: int = 0
    """The number of the last event by then: whoever follows the stream after it misses nothing."""
    own: bool = False
    """Whether it is the caller's conversation."""


OnBusy = Literal["reject", "queue", "steer", "replace"]
_EXECUTE_SECONDS = 120.0
"""How long the API holds the answer of an execute back (api.md)."""


def _nothing(_: httpx.Response) -> None:
    return None


def create_conversation(
    agent: str, *, title: str | None = None, metadata: Mapping[str, Any] | None = None, idempotency_key: str = ""
) -> Call[Conversation]:
    """A new conversation with this agent."""
    body: dict[str, JsonValue] = {"agent": agent, "title": title, "metadata": dict(metadata) if metadata else None}
    return post(path("conversations"), one(Conversation), body, key=idempotency_key)


def list_conversations(
    *, title: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Conversation]]:
    """The caller's conversations, newest first."""
    query = {"title": title, "limit": limit, "cursor": cursor}
    return get(path("conversations"), one(Page[Conversation]), query)


def get_conversation(conversation_id: str) -> Call[Conversation]:
    """One conversation."""
    return get(path("conversations", conversation_id), one(Conversation))


def rename_conversation(conversation_id: str, title: str) -> Call[Conversation]:
    """Another title."""
    return Call("PATCH", path("conversations", conversation_id), one(Conversation), body={"title": title})


def delete_conversation(conversation_id: str) -> Call[None]:
    """Out of sight; its records stay."""
    return Call("DELETE", path("conversations", conversation_id), _nothing)


def list_messages(conversation_id: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[Message]]:
    """The transcript, oldest first."""
    return get(path("conversations", conversation_id, "messages"), one(Page[Message]), _part(limit, cursor))


def conversation_story(
    conversation_id: str, *, turn: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Story]:
    """The conversation's turns with what was said and done in each, newest first; with `turn` that one alone."""
    query = {"turn": turn, **_part(limit, cursor)}
    return get(path("conversations", conversation_id, "story"), one(Story), query)


def start_turn(
    conversation_id: str,
    message: str,
    *,
    on_busy: OnBusy | None = None,
    limits: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    wait_seconds: float | None = None,
    idempotency_key: str = "",
) -> Call[Turn]:
    """A turn; once it is answered, it is durable. With `wait_seconds` the answer may be the final or paused turn."""
    body: dict[str, JsonValue] = {
        "message": message,
        "on_busy": on_busy,
        "limits": dict(limits) if limits else None,
        "metadata": dict(metadata) if metadata else None,
    }
    return post(
        path("conversations", conversation_id, "turns"),
        one(Turn),
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
    idempotency_key: str = "",
) -> Call[Turn]:
    """A turn in one request: answered when it has ended or waits for a person, or still running after 120 s."""
    body: dict[str, JsonValue] = {
        "agent": agent,
        "message": message,
        "conversation_id": conversation_id,
        "system_prompt": system_prompt,
        "limits": dict(limits) if limits else None,
        "metadata": dict(metadata) if metadata else None,
    }
    return post(path("execute"), one(Turn), body, key=idempotency_key, wait_seconds=_EXECUTE_SECONDS)


def get_turn(turn_id: str) -> Call[Turn]:
    """One turn as it is now."""
    return get(path("turns", turn_id), one(Turn))


def list_turns(
    *,
    status: str | None = None,
    agent: str | None = None,
    conversation: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Turn]]:
    """Turns, newest first."""
    query = {"status": status, "agent": agent, "conversation": conversation}
    return get(path("turns"), one(Page[Turn]), {**query, **_part(limit, cursor)})


def turn_segments(turn_id: str) -> Call[Page[Segment]]:
    """What the turn thought, said and did, in order."""
    return get(path("turns", turn_id, "segments"), one(Page[Segment]))


def list_calls(turn_id: str) -> Call[Page[TurnCall]]:
    """The turn's calls as they began, of the model and of tools, the last 500."""
    return get(path("turns", turn_id, "calls"), one(Page[TurnCall]))


def turn_metrics(turn_id: str) -> Call[Metrics]:
    """What the turn's model calls took and used, one by one."""
    return get(path("turns", turn_id, "metrics"), one(Metrics))


def stop_turn(turn_id: str, *, idempotency_key: str = "") -> Call[Answer]:
    """Ask it to stop; nothing new is begun from then on."""
    return post(path("turns", turn_id, "stop"), one(Answer), key=idempotency_key)


def get_question(turn_id: str, request_id: str) -> Call[Question]:
    """What a turn asks of its own user."""
    return get(path("turns", turn_id, "answers", request_id), one(Question))


def answer_question(
    turn_id: str, request_id: str, kind: str, payload: Mapping[str, Any], *, idempotency_key: str = ""
) -> Call[Question]:
    """The answer; the first that fits counts. `kind` is `clarification` or `client_run`."""
    body: dict[str, JsonValue] = {"kind": kind, "payload": dict(payload)}
    return post(path("turns", turn_id, "answers", request_id), one(Question), body, key=idempotency_key)


def raise_limits(
    turn_id: str, *, max_tokens: int | None = None, max_cost_usd: float | None = None, idempotency_key: str = ""
) -> Call[Answer]:
    """Raise a limit of a turn that waits for it, by a reviewer; what is not given stays as it is."""
    body: dict[str, JsonValue] = {"max_tokens": max_tokens, "max_cost_usd": max_cost_usd}
    return post(path("turns", turn_id, "limits"), one(Answer), body, key=idempotency_key)


def _part(limit: int | None, cursor: str | None) -> dict[str, str | int | None]:
    return {"limit": limit, "cursor": cursor}
