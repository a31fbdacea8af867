"""The preview beside an approval: asked for while it is open, kept with its time, gone with the person's words.

`approvals.preview` is NULL where the tool has none, `{}` where nobody has asked for it, else what was found.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.turns import TurnAddress
from store.approval_views import OPEN
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Asked:
    """The call that a preview is of: the one that is decided on now."""

    tenant_id: str
    turn_id: str
    conversation_id: str
    call_id: str
    user_id: str
    """Who asked for the call."""
    agent_id: str
    agent_version: str
    tool: str
    tool_version: str
    args: dict[str, JsonValue]
    digest: str


_ASKED = f"""
SELECT a.tenant_id, a.turn_id::text, a.conversation_id::text, a.call_id, t.user_id::text, a.agent_id, t.agent_version,
  a.tool, a.tool_version, coalesce(a.revision->'args', a.args) AS args,
  coalesce(a.revision->>'digest', a.digest) AS digest
FROM approvals a JOIN turns t ON t.id = a.turn_id WHERE a.id = $1 AND a.preview IS NOT NULL AND {OPEN}
"""
_WHERE = f"""
SELECT tenant_id, conversation_id::text, turn_id::text, preview IS NOT NULL AS has_one, {OPEN} AS is_open
FROM approvals a WHERE id = $1
"""


async def place_of(tx: Connection, approval_id: str) -> TurnAddress:
    """Whose approval it is, where a preview of it can be made.

    Raises: CallerError 404 `approval_not_found`, 409 `no_preview`, `already_decided`.
    """
    row = await tx.fetchrow(_WHERE, approval_id)
    if row is None:
        raise CallerError("approval_not_found", "there is no such approval", status=404)
    if not row["has_one"]:
        raise CallerError("no_preview", "its tool has no preview", status=409)
    if not row["is_open"]:
        raise CallerError("already_decided", "it is decided, and keeps the preview that there was", status=409)
    return TurnAddress(tenant_id=row["tenant_id"], conversation_id=row["conversation_id"], turn_id=row["turn_id"])


async def asked(tx: Connection, approval_id: str) -> Asked | None:
    """The call, None where nobody decides on it any more."""
    row = await tx.fetchrow(_ASKED, approval_id)
    return None if row is None else Asked(**row)


async def keep(tx: Connection, approval_id: str, made: dict[str, JsonValue]) -> bool:
    """Put it in the place of the one before, with the database's time; whether the request was still open."""
    kept = await tx.fetchval(
        "UPDATE approvals a SET preview = $2::jsonb || jsonb_build_object('at', clock_timestamp()) "
        f"WHERE id = $1 AND preview IS NOT NULL AND {OPEN} RETURNING true",
        approval_id,
        made,
    )
    return bool(kept)
