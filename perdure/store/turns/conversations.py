"""Conversations of a user with one agent, and their messages."""

from collections import defaultdict

import asyncpg
from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.messages import Role
from perdure.core.approvals.refusals import refusal_of
from perdure.store import budgets
from perdure.store.approvals.verdicts import refusals_of
from perdure.store.database import Connection, new_id
from perdure.store.memory import episodes, facts, files
from perdure.store.paging import cursor_after, read_cursor
from perdure.store.turns import views
from perdure.store.turns.views import read_segments, show_refusal

Page = tuple[list[dict[str, object]], str | None]
_SIZE = "octet_length($4) + octet_length($5::jsonb::text)"
_COLUMNS = "id, agent_id, title, metadata, active_turn_id, created_at, updated_at, user_id"


async def create_conversation(
    tx: Connection, user_id: str, agent_id: str, title: str, metadata: dict[str, JsonValue]
) -> dict[str, object]:
    """Creates a conversation of the transaction's tenant, and returns it in the API's form."""
    row = await tx.fetchrow(
        "INSERT INTO conversations (id, tenant_id, user_id, agent_id, title, metadata, text_bytes) "
        f"VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, {_SIZE}) RETURNING {_COLUMNS}",
        new_id(),
        user_id,
        agent_id,
        title,
        metadata,
    )
    return _show_conversation(_require_row(row))


async def get_conversation(tx: Connection, conversation_id: str, user_id: str | None) -> dict[str, object]:
    """Returns the conversation if it belongs to this user. With None, any conversation of the tenant is returned.

    Raises: CallerError 404 `conversation_not_found`.
    """
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS} FROM conversations WHERE id = $1 AND deleted_at IS NULL "
        "AND ($2::uuid IS NULL OR user_id = $2)",
        conversation_id,
        user_id,
    )
    return _show_conversation(_require_row(row))


async def list_conversations(tx: Connection, user_id: str, title: str | None, limit: int, cursor: str | None) -> Page:
    """Lists a user's conversations, last updated first, and the next page's cursor."""
    at, last_id = read_cursor(cursor)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM conversations WHERE user_id = $1 AND deleted_at IS NULL "
        "AND ($2::text IS NULL OR strpos(lower(title), lower($2)) > 0) "
        "AND ($3::timestamptz IS NULL OR (updated_at, id) < ($3, $4::uuid)) "
        "ORDER BY updated_at DESC, id DESC LIMIT $5",
        user_id,
        title,
        at,
        last_id,
        limit + 1,
    )
    following = cursor_after(rows[limit - 1]["updated_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [_show_conversation(row) for row in rows[:limit]], following


async def patch_conversation(
    tx: Connection, conversation_id: str, user_id: str, title: str | None, metadata: dict[str, JsonValue] | None
) -> dict[str, object]:
    """Changes the title or metadata.

    Raises: CallerError 404 `conversation_not_found`.
    """
    row = await tx.fetchrow(
        "UPDATE conversations SET title = coalesce($3, title), metadata = coalesce($4, metadata), updated_at = now(), "
        "text_bytes = text_bytes + coalesce(octet_length($3) - octet_length(title), 0) "
        "+ coalesce(octet_length($4::jsonb::text) - octet_length(metadata::text), 0) "
        f"WHERE id = $1 AND user_id = $2 AND deleted_at IS NULL RETURNING {_COLUMNS}",
        conversation_id,
        user_id,
        title,
        metadata,
    )
    return _show_conversation(_require_row(row))


async def delete_conversation(tx: Connection, conversation_id: str, user_id: str) -> None:
    """Hides a conversation. Its turns and their records stay; its uploads are deleted.

    Raises: CallerError 404 `conversation_not_found`, 409 `conversation_busy` while a turn is open.
    """
    row = _require_row(
        await tx.fetchrow(
            "SELECT active_turn_id, text_bytes FROM conversations WHERE id = $1 AND user_id = $2 "
            "AND deleted_at IS NULL FOR UPDATE",
            conversation_id,
            user_id,
        )
    )
    if row["active_turn_id"] is not None:
        raise CallerError(
            "conversation_busy",
            "The conversation has an open turn; stop it first",
            {"turn_id": str(row["active_turn_id"])},
            status=409,
        )
    await tx.execute("UPDATE conversations SET deleted_at = now(), text_bytes = 0 WHERE id = $1", conversation_id)
    await files.delete_uploads(tx, conversation_id)
    await budgets.keep_texts(tx, user_id, row["text_bytes"])
    await facts.forget_facts(tx, conversation_id)
    await episodes.forget(tx, conversation_id)  # Deleted content must not appear in another conversation.


# A continued message has the end of its last part that has one.
_FINISH_REASON = (
    "CASE WHEN m.role = 'assistant' AND m.calls <> '[]' THEN 'tool_calls' WHEN m.role = 'assistant' THEN ("
    "SELECT reply->>'finish_reason' FROM model_calls c WHERE c.turn_id = m.turn_id "
    "AND reply #>> '{message,id}' = m.id::text AND reply ? 'finish_reason' "
    "ORDER BY length(c.call_id) DESC, c.call_id DESC LIMIT 1) END"
)


async def list_messages(tx: Connection, conversation_id: str, limit: int, after_seq: int) -> Page:
    """Lists the transcript in order. It includes user messages of turns that ended before they began, which no model
    call received."""
    rows = await tx.fetch(
        "SELECT m.id, turn_id, seq, role, content, calls, call_id, partial, m.created_at, t.status, in_transcript, "
        f"{_FINISH_REASON} AS finish_reason "
        "FROM messages m JOIN turns t ON t.id = m.turn_id WHERE m.conversation_id = $1 AND seq > $2 "
        "AND (in_transcript OR (role = 'user' AND t.ended_at IS NOT NULL)) ORDER BY seq LIMIT $3",
        conversation_id,
        after_seq,
        limit + 1,
    )
    shown_rows = rows[:limit]
    refusals = await refusals_of(tx, {str(row["turn_id"]) for row in shown_rows if row["role"] != "user"})
    shown: list[dict[str, object]] = [
        {
            "id": str(row["id"]),
            "turn_id": str(row["turn_id"]),
            "seq": row["seq"],
            "role": row["role"],
            "content": row["content"],
            "tool_calls": [
                {"call_id": call["call_id"], "tool": call["tool"], "arguments": call["arguments"]}
                for call in row["calls"]
            ],
            "call_id": row["call_id"],
            "partial": row["partial"],
            "finish_reason": row["finish_reason"],
            "created_at": row["created_at"],
            "turn_status": row["status"],
            "heard": row["in_transcript"],
            **show_refusal(
                refusal_of(
                    Role(row["role"]), row["content"], row["call_id"] or "", refusals.get(str(row["turn_id"]), ())
                )
            ),
        }
        for row in shown_rows
    ]
    return shown, str(rows[limit - 1]["seq"]) if len(rows) > limit else None


def _require_row(row: asyncpg.Record | None) -> asyncpg.Record:
    if row is None:
        raise CallerError("conversation_not_found", "Conversation not found", status=404)
    return row


def _show_conversation(row: asyncpg.Record) -> dict[str, object]:
    return {
        "id": str(row["id"]),
        "agent": row["agent_id"],
        "title": row["title"],
        "metadata": row["metadata"],
        "active_turn_id": str(row["active_turn_id"]) if row["active_turn_id"] else None,
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


async def last_event(tx: Connection, conversation_id: str, user_id: str) -> tuple[int, bool]:
    """Returns the number of the conversation's last event, and whether the conversation belongs to this user. A view
    reads it first. A reader that follows the stream after that number may receive events that the view already
    contains, but misses none."""
    row = await tx.fetchrow(
        "SELECT event_seq, user_id = $2 AS own FROM conversations WHERE id = $1", conversation_id, user_id
    )
    return (row["event_seq"], row["own"]) if row is not None else (0, False)


async def turns_of(tx: Connection, conversation_id: str, limit: int, cursor: str | None) -> Page:
    """Lists the conversation's turns, newest first. The caller has checked access to the conversation."""
    found, following = await views.list_turns(
        tx, None, status=None, agent=None, conversation_id=conversation_id, limit=limit, cursor=cursor
    )
    return await _with_details(tx, found), following


async def turn_of(tx: Connection, conversation_id: str, turn_id: str) -> list[dict[str, object]]:
    """Returns one turn of the conversation; empty if the turn belongs to another conversation.

    Raises: CallerError 404 `turn_not_found`.
    """
    turn = await views.get_turn(tx, turn_id, None)
    return await _with_details(tx, [turn] if turn["conversation_id"] == conversation_id else [])


async def _with_details(tx: Connection, turns: list[dict[str, object]]) -> list[dict[str, object]]:
    ids = [str(turn["turn_id"]) for turn in turns]
    segments = await read_segments(tx, ids)
    messages: dict[str, list[dict[str, object]]] = defaultdict(list)
    # A message that a model call received during the turn is one of its segments.
    for row in await tx.fetch(
        "SELECT id::text, turn_id::text, content, joins IS NOT NULL AS waits, created_at FROM messages "
        "WHERE turn_id = ANY($1::uuid[]) AND role = 'user' AND coalesce(joins, '') = '' ORDER BY seq",
        ids,
    ):
        message = {name: row[name] for name in ("id", "content", "waits", "created_at")}
        messages[row["turn_id"]].append(message)
    files_by_turn: dict[str, list[dict[str, object]]] = defaultdict(list)
    for file in await files.of_turns(tx, ids):
        files_by_turn[str(file["turn_id"])].append(file)
    return [
        turn | {"said": messages[id], "segments": segments[id], "files": files_by_turn[id]}
        for turn, id in zip(turns, ids, strict=True)
    ]
