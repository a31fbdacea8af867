"""A turn's story as it was written down: its segments with their texts, arguments and results (S2-64)."""

import json
from collections.abc import Sequence

from contracts.errors import CallerError
from policy.segments import KINDS, Segment, Told, segments_of
from store.database import Connection


async def story(tx: Connection, turn_id: str, user_id: str | None) -> list[dict[str, object]]:
    """The segments of the turn, if it is this user's (None: anybody's of the tenant), in the order they began.

    Raises: CallerError 404 `turn_not_found`.
    """
    there = "SELECT FROM turns WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2)"
    if await tx.fetchrow(there, turn_id, user_id) is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    return (await stories(tx, [turn_id]))[turn_id]


async def stories(tx: Connection, turn_ids: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """The segments of each of these turns, in the order they began."""
    rows = await tx.fetch(
        "SELECT turn_id::text, kind, call_id, data FROM events WHERE turn_id = ANY($1::uuid[]) AND kind = ANY($2) "
        "ORDER BY seq",
        list(turn_ids),
        list(KINDS),
    )
    told: dict[str, list[Told]] = {turn_id: [] for turn_id in turn_ids}
    for row in rows:
        told[row["turn_id"]].append(Told(row["kind"], row["call_id"], row["data"]))
    segments = {turn_id: segments_of(events) for turn_id, events in told.items()}
    ids = [segment.message_id for several in segments.values() for segment in several if segment.message_id]
    said = await tx.fetch("SELECT id::text, content FROM messages WHERE id = ANY($1::uuid[])", ids)
    calls = await tx.fetch(
        "SELECT turn_id::text, call_id, args FROM tool_calls WHERE turn_id = ANY($1::uuid[])", list(turn_ids)
    )
    asked = await tx.fetch(
        "SELECT id::text, kind, asked, status, answer FROM questions WHERE turn_id = ANY($1::uuid[])", list(turn_ids)
    )
    questions = {row["id"]: dict(row) for row in asked}
    texts = {row["id"]: row["content"] for row in said}
    arguments = {(row["turn_id"], row["call_id"]): row["args"] for row in calls}
    return {
        turn_id: [
            _question(questions[each.call_id])
            if each.call_id in questions
            else _shown(each, texts, arguments.get((turn_id, each.call_id)))
            for each in several
        ]
        for turn_id, several in segments.items()
    }


def _question(row: dict[str, object]) -> dict[str, object]:
    """What was asked of the turn's user, and what came back, as the question's own record has it."""
    return {
        "kind": "question",
        "call_id": row["id"],
        "state": row["status"],
        "asks_for": row["kind"],
        "asked": row["asked"],
        "answer": row["answer"],
    }


def _shown(segment: Segment, texts: dict[str, str], arguments: object) -> dict[str, object]:
    shown: dict[str, object] = {
        "kind": segment.kind,
        "call_id": segment.call_id,
        "state": segment.state,
        **segment.facts,
    }
    if segment.kind in ("text", "message"):
        shown |= {"message_id": segment.message_id, "text": texts.get(segment.message_id, "")}
    if segment.kind == "tool":
        shown |= {"tool": segment.tool, "arguments": arguments}
        if segment.message_id:
            shown |= {"message_id": segment.message_id, "result": _plain(texts.get(segment.message_id, ""))}
    return shown


def _plain(text: str) -> object:
    """A result as it was told; what is no JSON is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
