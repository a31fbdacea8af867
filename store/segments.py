"""A turn's story as it was written down: its segments with their texts, arguments and results (S2-64)."""

import json

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
    rows = await tx.fetch(
        "SELECT kind, call_id, data FROM events WHERE turn_id = $1 AND kind = ANY($2) ORDER BY seq",
        turn_id,
        list(KINDS),
    )
    segments = segments_of(Told(row["kind"], row["call_id"], row["data"]) for row in rows)
    ids = [segment.message_id for segment in segments if segment.message_id]
    said = await tx.fetch("SELECT id::text, content FROM messages WHERE id = ANY($1::uuid[])", ids)
    calls = await tx.fetch("SELECT call_id, args FROM tool_calls WHERE turn_id = $1", turn_id)
    texts = {row["id"]: row["content"] for row in said}
    arguments = {row["call_id"]: row["args"] for row in calls}
    return [_shown(segment, texts, arguments) for segment in segments]


def _shown(segment: Segment, texts: dict[str, str], arguments: dict[str, object]) -> dict[str, object]:
    shown: dict[str, object] = {
        "kind": segment.kind,
        "call_id": segment.call_id,
        "state": segment.state,
        **segment.facts,
    }
    if segment.kind == "text":
        shown |= {"message_id": segment.message_id, "text": texts.get(segment.message_id, "")}
    if segment.kind == "tool":
        shown |= {"tool": segment.tool, "arguments": arguments.get(segment.call_id)}
        if segment.message_id:
            shown |= {"message_id": segment.message_id, "result": _plain(texts.get(segment.message_id, ""))}
    return shown


def _plain(text: str) -> object:
    """A result as it was told; what is no JSON is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
