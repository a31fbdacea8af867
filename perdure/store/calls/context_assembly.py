"""Results of the tools of a context assembly: one row per tool that a turn ran, shared by all workers.

A settled row never changes. The first attempt to settle it succeeds, and later ones receive its result. Tools that only
read need no owner. Later turns reuse the newest output of each tool by reference (the rules are in
perdure/core/calls/context_assembly.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.context_assembly import AssembleCall, Assembled, Bundle, Source
from perdure.contracts.turns import TurnAddress
from perdure.store.database import Connection
from perdure.store.events.event_log import write


@dataclass(frozen=True, slots=True)
class StartedTool:
    """The state of a tool's row at the start of an attempt, with the tool's inputs."""

    failed: int
    """The number of failed attempts before this one."""
    outcome: Assembled | None
    """Set if an earlier attempt has settled the row."""
    ended: bool
    stopped: bool
    user_id: str
    outputs: tuple[dict[str, JsonValue], ...]
    """The outputs of the sources, in the order of the sources."""
    user_messages: tuple[str, ...]
    """The user's messages, newest last."""


_USER_MESSAGES = """
SELECT array_agg(content ORDER BY seq) FROM (
  SELECT m.content, m.seq FROM messages m, turns t WHERE t.id = $1 AND m.conversation_id = t.conversation_id
    AND m.role = 'user' AND m.in_transcript AND (m.seq <= t.through_seq OR m.id = t.message_id)
  ORDER BY m.seq DESC LIMIT $2) newest
"""
_BEGIN = f"""
WITH made AS (
  INSERT INTO bundles (tenant_id, conversation_id, turn_id, tool)
  SELECT tenant_id, conversation_id, id, $3 FROM turns WHERE id = $1 AND ended_at IS NULL
  ON CONFLICT (turn_id, tool) DO NOTHING
)
SELECT t.ended_at IS NOT NULL AS ended, t.stop_requested_at IS NOT NULL AS stopped, t.user_id, b.failed, b.outcome,
  CASE WHEN $2 > 0 THEN ({_USER_MESSAGES}) END AS said,
  (SELECT jsonb_agg(o.output ORDER BY s.n) FROM jsonb_to_recordset($4) AS s(n int, tool text, turn_id uuid)
    JOIN bundles o ON (o.turn_id, o.tool) = (s.turn_id, s.tool) AND o.conversation_id = t.conversation_id
    WHERE o.output IS NOT NULL) AS outputs
FROM turns t LEFT JOIN bundles b ON (b.turn_id, b.tool) = (t.id, $3) WHERE t.id = $1
"""


async def begin(tx: Connection, call: AssembleCall, message_count: int) -> StartedTool | None:
    """Creates the row of this tool if there is none, and returns it with the tool's inputs, or None if the turn does
    not exist. `message_count` is the number of the user's newest messages to include. Pending events are
    written; if there are any, `tx` must hold the turn's lock."""
    sources: list[JsonValue] = [{"n": n, **source.model_dump()} for n, source in enumerate(call.ask.sources)]
    row = await tx.fetchrow(_BEGIN, call.address.turn_id, message_count, call.ask.tool, sources)
    if row is None:
        return None
    if call.events and not row["ended"]:
        await write(tx, call.address, [], pending=call.events)
    return StartedTool(
        row["failed"] or 0,
        Assembled.model_validate(row["outcome"]) if row["outcome"] else None,
        row["ended"],
        row["stopped"],
        str(row["user_id"]),
        tuple(row["outputs"] or ()),
        tuple(row["said"] or ()),
    )


async def count_failed(tx: Connection, call: AssembleCall, failed: int) -> None:
    """Counts an attempt that failed after `failed` others. A repeated report counts once."""
    await tx.execute(
        "UPDATE bundles SET failed = $3 + 1 WHERE turn_id = $1 AND tool = $2 AND failed = $3 AND settled_at IS NULL",
        call.address.turn_id,
        call.ask.tool,
        failed,
    )


async def settle(
    tx: Connection, call: AssembleCall, outcome: Assembled, output: dict[str, JsonValue] | None
) -> Assembled:
    """Records the tool's result, unless the row is settled already. Returns the recorded result."""
    stored = await tx.fetchval(
        "WITH mine AS (UPDATE bundles SET output = $3, outcome = $4, settled_at = clock_timestamp() "
        "WHERE turn_id = $1 AND tool = $2 AND settled_at IS NULL RETURNING outcome) "
        "SELECT outcome FROM mine UNION ALL "
        "SELECT outcome FROM bundles WHERE turn_id = $1 AND tool = $2 AND settled_at IS NOT NULL LIMIT 1",
        call.address.turn_id,
        call.ask.tool,
        output,
        outcome.model_dump(mode="json"),
    )
    return Assembled.model_validate(stored) if stored else outcome


async def newest_user_messages(tx: Connection, turn_id: str, limit: int) -> list[str]:
    """Returns the user's newest messages, up to the message of this turn, oldest first."""
    return list(await tx.fetchval(_USER_MESSAGES, turn_id, limit) or ())


async def newest_bundles(tx: Connection, address: TurnAddress) -> tuple[Bundle, ...]:
    """Returns the newest output of each tool in the conversation."""
    rows = await tx.fetch(
        "SELECT DISTINCT ON (tool) outcome -> 'bundle' AS bundle FROM bundles "
        "WHERE conversation_id = $1 AND output IS NOT NULL ORDER BY tool, created_at DESC",
        address.conversation_id,
    )
    return tuple(Bundle.model_validate(row["bundle"]) for row in rows)


async def read_outputs(
    tx: Connection, conversation_id: str, sources: Sequence[Source]
) -> dict[str, dict[str, JsonValue]]:
    """Returns the stored outputs of these sources, by tool. Tools without one are left out."""
    rows = await tx.fetch(
        "SELECT o.tool, o.output FROM jsonb_to_recordset($2) AS s(tool text, turn_id uuid) "
        "JOIN bundles o ON (o.turn_id, o.tool) = (s.turn_id, s.tool) "
        "WHERE o.conversation_id = $1 AND o.output IS NOT NULL",
        conversation_id,
        [source.model_dump() for source in sources],
    )
    found = {row["tool"]: row["output"] for row in rows}
    return {source.tool: found[source.tool] for source in sources if source.tool in found}
