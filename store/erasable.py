"""Whether a person may be erased now: nothing of theirs is under way that would say their words again, or need them."""

from contracts.errors import CallerError
from store.database import Connection

_OPEN = """
SELECT id::text FROM turns WHERE user_id = $1 AND ended_at IS NULL
UNION SELECT t.id::text FROM turns t JOIN approvals a ON a.turn_id = t.id WHERE t.ended_at IS NULL
  AND (a.decided_by = $1 OR EXISTS (SELECT FROM approval_votes v WHERE v.approval_id = a.id AND v.user_id = $1))
LIMIT 20
"""
_UNKNOWN = """
SELECT k.key FROM turns t JOIN tool_calls k ON k.turn_id = t.id
WHERE t.user_id = $1 AND k.state = 'outcome_unknown' LIMIT 20
"""


async def may_be_erased(tx: Connection, user_id: str) -> None:
    """Raises: CallerError 409 `turns_open`, `effects_unsettled`."""
    turns = [row[0] for row in await tx.fetch(_OPEN, user_id)]
    if turns:
        raise CallerError(
            "turns_open",
            "turns that the person began or decided in are open: wait, or stop each with "
            f"`perdure turns stop ID --as admin`: {', '.join(turns)}",
            {"turns": turns},
            status=409,
        )
    effects = [row["key"] for row in await tx.fetch(_UNKNOWN, user_id)]
    if effects:
        raise CallerError(
            "effects_unsettled",
            "nobody could settle these any more; settle them first",
            {"effects": effects},
            status=409,
        )
