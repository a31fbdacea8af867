"""A conversation as a person reads it: its turns, each with what was said and done in it, as they are at one moment.

The number of the last event is read first. So whoever follows the stream after it may be told again of what stands in
the story, and misses nothing.
"""

from collections import defaultdict

from store import files, turn_views
from store.conversations import Page
from store.database import Connection
from store.segments import stories


async def last_event(tx: Connection, conversation_id: str, user_id: str) -> tuple[int, bool]:
    """The number of the conversation's last event, and whether the conversation is this user's."""
    row = await tx.fetchrow(
        "SELECT event_seq, user_id = $2 AS own FROM conversations WHERE id = $1", conversation_id, user_id
    )
    return (row["event_seq"], row["own"]) if row is not None else (0, False)


async def turns_of(tx: Connection, conversation_id: str, limit: int, cursor: str | None) -> Page:
    """The conversation's turns, newest first. Who asks may see the conversation."""
    found, following = await turn_views.listed(
        tx, None, status=None, agent=None, conversation_id=conversation_id, limit=limit, cursor=cursor
    )
    return await _told(tx, found), following


async def turn_of(tx: Connection, conversation_id: str, turn_id: str) -> list[dict[str, object]]:
    """One of them; empty where the conversation has no such turn.

    Raises: CallerError 404 `turn_not_found`.
    """
    turn = await turn_views.get(tx, turn_id, None)
    return await _told(tx, [turn] if turn["conversation_id"] == conversation_id else [])


async def _told(tx: Connection, turns: list[dict[str, object]]) -> list[dict[str, object]]:
    ids = [str(turn["turn_id"]) for turn in turns]
    segments = await stories(tx, ids)
    said: dict[str, list[dict[str, object]]] = defaultdict(list)
    # What a model call has heard in the middle of the turn is one of its segments.
    for row in await tx.fetch(
        "SELECT id::text, turn_id::text, content, joins IS NOT NULL AS waits, created_at FROM messages "
        "WHERE turn_id = ANY($1::uuid[]) AND role = 'user' AND coalesce(joins, '') = '' ORDER BY seq",
        ids,
    ):
        told = {name: row[name] for name in ("id", "content", "waits", "created_at")}
        said[row["turn_id"]].append(told)
    made: dict[str, list[dict[str, object]]] = defaultdict(list)
    for file in await files.of_turns(tx, ids):
        made[str(file["turn_id"])].append(file)
    return [
        turn | {"said": said[id], "segments": segments[id], "files": made[id]}
        for turn, id in zip(turns, ids, strict=True)
    ]
