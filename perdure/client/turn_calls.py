"""The calls that are about conversations and turns. Each function makes a value; nothing is sent here."""

from collections.abc import Mapping
from typing import Any, Literal

import httpx
from pydantic import JsonValue

from perdure.client.answers import Answer, Page
from perdure.client.calls import Call, get, one, path, post
from perdure.client.turn_answers import Conversation, Message, Metrics, Question, Segment, Story, Turn, TurnCall

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
