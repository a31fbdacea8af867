"""The product writes of the hand-written stacks: the same tables, with as few statements as a careful engineer needs.

There is no ledger, claim or outbox: those are Perdure's own and not part of the product. A conversation is locked while
a turn starts and ends, since it has only one active turn. Everything runs under row-level security.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bench.baselines import trace
from bench.reference import AGENT, MESSAGE, Visitor
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.messages import Role
from perdure.contracts.turns import Limits, Routing, TurnAddress, Usage
from perdure.core.text import estimated_tokens
from perdure.core.transcript import READ_CHARACTERS, title_of
from perdure.store.calls.model_calls import PlannedCall
from perdure.store.database import Connection, new_id
from perdure.store.events.event_log import NewEvent, NewMessage, write


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A stored turn."""

    address: TurnAddress
    agent_version: str


async def begin_turn(tx: Connection, visitor: Visitor, conversation_id: str) -> StoredTurn:
    """Locks the conversation, rejects a second active turn, and writes turn and message."""
    row = await tx.fetchrow(
        "SELECT c.active_turn_id, c.message_seq, a.version FROM conversations c JOIN agents a ON a.agent_id = $2 "
        "WHERE c.id = $1 AND c.deleted_at IS NULL FOR UPDATE OF c",
        conversation_id,
        AGENT,
    )
    if row is None or row["active_turn_id"] is not None:
        raise CallerError("conversation_busy", "no such conversation, or it has an open turn", status=409)
    turn_id, message_id = new_id(), new_id()
    await tx.execute(
        "WITH active AS (UPDATE conversations SET active_turn_id = $1 WHERE id = $3) "
        "INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, "
        "routing, limits, message_id, through_seq) "
        "VALUES ($1, $2, $3, $4, $5, $6, 'by_hand', 'accepted', $7, $8, $9, $10)",
        turn_id,
        visitor.tenant_id,
        conversation_id,
        visitor.user_id,
        AGENT,
        row["version"],
        Routing.compact().model_dump(mode="json"),
        Limits().model_dump(mode="json"),
        message_id,
        row["message_seq"],
    )
    address = TurnAddress(tenant_id=visitor.tenant_id, conversation_id=conversation_id, turn_id=turn_id)
    message = NewMessage(message_id, Role.USER, MESSAGE, tokens=estimated_tokens(MESSAGE))
    await write(tx, address, [NewEvent("ready", {"agent": AGENT})], [message])
    return StoredTurn(address, row["version"])


@dataclass(frozen=True, slots=True)
class TurnInput:
    """The input of a turn."""

    user_text: str
    user_name: str
    user_role: str
    working: dict[str, JsonValue]


async def read_turn_input(tx: Connection, turn_id: str) -> TurnInput:
    """Reads user, message and working memory in one statement."""
    row = await tx.fetchrow(
        "SELECT m.content, u.name, u.display_name, u.roles, (SELECT jsonb_object_agg(w.field, w.value) "
        "FROM working_memory w WHERE w.conversation_id = t.conversation_id AND w.expires_at > now()) AS working "
        "FROM turns t JOIN messages m ON m.id = t.message_id JOIN users u ON u.id = t.user_id WHERE t.id = $1",
        turn_id,
    )
    if row is None:
        raise InvariantBroken("turn_not_found", "there is no such turn")
    return TurnInput(
        row["content"],
        row["display_name"] or row["name"],
        row["roles"][0] if row["roles"] else "",
        row["working"] or {},
    )


async def mark_running(tx: Connection, turn_id: str) -> None:
    """Sets the turn to running, together with the first model call."""
    await tx.execute("UPDATE turns SET status = 'running', started_at = now() WHERE id = $1", turn_id)


_ANSWER_SQL = """
WITH used AS (
  UPDATE turns SET input_tokens = input_tokens + $2, output_tokens = output_tokens + $3,
    cached_tokens = cached_tokens + $4, cost_microusd = cost_microusd + $5, attempts = attempts + 1
  WHERE id = $1 RETURNING tenant_id, conversation_id, agent_id
)
INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect,
  provider_call_id, args, digest)
SELECT used.tenant_id, $1, c.call_id, used.conversation_id, used.agent_id, c.key, c.tool, c.tool_version, c.effect,
  c.provider_call_id, c.args, c.digest
FROM used, jsonb_to_recordset($6) AS c(call_id text, key text, tool text, tool_version text, effect text,
  provider_call_id text, args jsonb, digest text)
"""


async def record_answer(tx: Connection, turn_id: str, usage: Usage, calls: Sequence[PlannedCall]) -> None:
    """Writes the usage of a model call and the tool calls that it requested."""
    await tx.execute(
        _ANSWER_SQL,
        turn_id,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cost_microusd,
        [
            {
                "call_id": call.call_id,
                "key": call.key,
                "tool": call.tool,
                "tool_version": call.tool_version,
                "effect": call.effect,
                "provider_call_id": call.provider_call_id,
                "args": call.args,
                "digest": call.digest,
            }
            for call in calls
        ],
    )


async def record_tool_result(tx: Connection, turn_id: str, call_id: str, outcome: JsonValue) -> None:
    """Writes the result of a tool call."""
    await tx.execute(
        "UPDATE tool_calls SET state = 'done', outcome = $3, settled_at = now() WHERE turn_id = $1 AND call_id = $2",
        turn_id,
        call_id,
        outcome,
    )


async def finish_turn(
    tx: Connection, address: TurnAddress, answer: str, said: str, messages: Sequence[NewMessage] = ()
) -> None:
    """Ends the turn, admits the next queued one, and writes the last messages and events."""
    row = await tx.fetchrow(
        "UPDATE turns SET status = 'completed', ended_at = clock_timestamp(), answer = $2 WHERE id = $1 RETURNING "
        "input_tokens + output_tokens AS tokens, cost_microusd, "
        "(extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint AS duration_ms, "
        "(SELECT left(m.content, $3) FROM conversations c, messages m WHERE c.id = turns.conversation_id "
        "AND c.title = '' AND m.id = turns.message_id) AS untitled",
        address.turn_id,
        answer,
        READ_CHARACTERS,
    )
    if row is None:
        raise InvariantBroken("turn_not_found", "there is no such turn")
    title = title_of(row["untitled"] or "")
    await tx.execute(
        "UPDATE conversations SET title = coalesce(nullif($2, ''), title), active_turn_id = (SELECT id FROM turns "
        "WHERE conversation_id = $1 AND status = 'queued' ORDER BY created_at, id LIMIT 1) WHERE id = $1",
        address.conversation_id,
        title,
    )
    last = trace.finished(address.turn_id, row["tokens"], row["cost_microusd"], row["duration_ms"], said, title)
    await write(tx, address, last, messages)
