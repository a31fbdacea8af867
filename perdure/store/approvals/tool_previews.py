"""The parts of an approval that a tools worker reads on demand: the call to preview, and the edit to check."""

from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.core.text import clean
from perdure.store.approvals.review import OPEN
from perdure.store.database import Connection

MAX_REASON_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class PreviewCall:
    """The call that a preview is made for: the one that is currently decided on. A preview is requested while the
    request is pending, stored with its time, and erased with the user's texts. `approvals.preview` is NULL if the tool
    has no preview, and `{}` if none has been requested yet. Otherwise it contains the result."""

    tenant_id: str
    turn_id: str
    conversation_id: str
    call_id: str
    user_id: str
    """The requester."""
    agent_id: str
    agent_version: str
    tool: str
    tool_version: str
    args: dict[str, JsonValue]
    digest: str


_CALL_TO_PREVIEW = f"""
SELECT a.tenant_id, a.turn_id::text, a.conversation_id::text, a.call_id, t.user_id::text, a.agent_id, t.agent_version,
  a.tool, a.tool_version, coalesce(a.revision->'args', a.args) AS args,
  coalesce(a.revision->>'digest', a.digest) AS digest
FROM approvals a JOIN turns t ON t.id = a.turn_id WHERE a.id = $1 AND a.preview IS NOT NULL AND {OPEN}
"""
_WHERE = f"""
SELECT tenant_id, conversation_id::text, turn_id::text, preview IS NOT NULL AS has_one, {OPEN} AS is_open
FROM approvals a WHERE id = $1
"""


async def address_for_preview(tx: Connection, approval_id: str) -> TurnAddress:
    """Returns the address of the approval's turn, if a preview can be made.

    Raises: CallerError 404 `approval_not_found`, 409 `no_preview`, `already_decided`.
    """
    row = await tx.fetchrow(_WHERE, approval_id)
    if row is None:
        raise CallerError("approval_not_found", "Approval not found", status=404)
    if not row["has_one"]:
        raise CallerError("no_preview", "The tool has no preview", status=409)
    if not row["is_open"]:
        raise CallerError("already_decided", "The request is already decided; it keeps its last preview", status=409)
    return TurnAddress(tenant_id=row["tenant_id"], conversation_id=row["conversation_id"], turn_id=row["turn_id"])


async def read_preview_call(tx: Connection, approval_id: str) -> PreviewCall | None:
    """Returns the call to preview, or None if the request is no longer pending or its tool has no preview."""
    row = await tx.fetchrow(_CALL_TO_PREVIEW, approval_id)
    return None if row is None else PreviewCall(**row)


async def store_preview(tx: Connection, approval_id: str, preview: dict[str, JsonValue]) -> bool:
    """Replaces the preview and stores the database's time with it. Returns False if the request is no longer
    pending."""
    kept = await tx.fetchval(
        "UPDATE approvals a SET preview = $2::jsonb || jsonb_build_object('at', clock_timestamp()) "
        f"WHERE id = $1 AND preview IS NOT NULL AND {OPEN} RETURNING true",
        approval_id,
        preview,
    )
    return bool(kept)


@dataclass(frozen=True, slots=True)
class ProposedEdit:
    """A reviewer's edit, or the arguments of a reissue, that is not recorded yet, because a tools worker checks it
    first. `approvals.proposed` contains such arguments by their keys, and the version of the tool for a reissue. It is
    NULL if the tool's schema says all that its types check."""

    agent_id: str
    tool: str
    tool_version: str
    args: dict[str, JsonValue]


async def propose_edit(tx: Connection, approval_id: str, key: str, args: dict[str, JsonValue]) -> bool:
    """Stores the arguments of an edit until it is checked. Returns False if the request is no longer open."""
    stored = await tx.fetchval(
        "UPDATE approvals a SET proposed = proposed || jsonb_build_object($2::text, $3::jsonb) "
        f"WHERE id = $1 AND proposed IS NOT NULL AND {OPEN} RETURNING true",
        approval_id,
        key,
        args,
    )
    return bool(stored)


async def propose_reissue(tx: Connection, approval_id: str, key: str, args: dict[str, JsonValue], version: str) -> bool:
    """Stores the arguments of a reissue until this version of the tool has checked them. Returns False if the request
    can no longer be reissued."""
    stored = await tx.fetchval(
        "UPDATE approvals SET proposed = coalesce(proposed, '{}') || jsonb_build_object($2::text, $3::jsonb, "
        "$2 || '/version', $4::text) WHERE id = $1 AND status IN ('pending', 'approved', 'edited') RETURNING true",
        approval_id,
        key,
        args,
        version,
    )
    return bool(stored)


async def read_proposed_edit(tx: Connection, approval_id: str, key: str) -> ProposedEdit | None:
    """Returns the edit, or None if it is no longer stored."""
    row = await tx.fetchrow(
        "SELECT agent_id, tool, coalesce(proposed->>($2 || '/version'), tool_version) AS tool_version, "
        "proposed->$2 AS args FROM approvals WHERE id = $1 AND proposed ? $2",
        approval_id,
        key,
    )
    return None if row is None else ProposedEdit(**row)


async def refuse_proposed_edit(tx: Connection, approval_id: str, key: str, reason: str) -> None:
    """Stores why a proposed edit is refused, in at most `MAX_REASON_CHARACTERS`."""
    await tx.execute(
        "UPDATE approvals SET proposed = proposed || jsonb_build_object($2 || '/reason', $3::text) "
        "WHERE id = $1 AND proposed ? $2",
        approval_id,
        key,
        clean(reason[:MAX_REASON_CHARACTERS]),
    )


async def remove_proposed_edit(tx: Connection, approval_id: str, key: str) -> str:
    """Removes an edit that was checked. Returns the stored reason of a refusal, or an empty text."""
    reason = await tx.fetchval(
        "UPDATE approvals a SET proposed = a.proposed - $2 - ($2 || '/reason') - ($2 || '/version') FROM ("
        "SELECT id, proposed->>($2 || '/reason') AS reason FROM approvals WHERE id = $1 FOR UPDATE) AS before "
        "WHERE a.id = before.id RETURNING before.reason",
        approval_id,
        key,
    )
    return str(reason or "")
