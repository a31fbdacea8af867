"""What a trace is made from: a turn that is over and its log, without a word of its content.

Of each event only those of its data are read that are named here, so that no content leaves Postgres for a trace.
"""

from contracts.ids import trace_id
from contracts.turns import TurnAddress
from policy.spans import Happened, TurnRecord
from store.database import Connection

MOST_EVENTS = 20_000
NAMED = (
    *("node", "tool", "model", "attempt", "code", "status", "input_tokens", "output_tokens", "cached_tokens"),
    *("seconds", "assembly", "scope", "partial", "type", "severity", "rule_id", "skill_id", "skill_ids", "tier"),
    *("description", "context"),
)
"""Of an event's data; `facts`, `hits`, `message`, `result` and whatever comes new are not among them."""
KINDS = (
    *("node_start", "node_end", "generation.start", "generation.complete", "token.usage", "ttft", "transient_error"),
    *("rate_limit", "tool.executing", "tool.result", "tool.error", "tool.denied", "tool.awaiting_approval"),
    *("memory.search", "memory.write.created", "memory.write.blocked", "memory.context.loaded"),
    *("hitl.rule_fire", "hitl.warning", "skill.selected", "skill.injected", "budget", "invariant.alarm"),
)
_EVENTS = """
SELECT kind, at, call_id,
  (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(data) WHERE key = ANY($2)) AS data
FROM events WHERE turn_id = $1 AND kind = ANY($3) ORDER BY seq LIMIT $4
"""


async def record_of(tx: Connection, address: TurnAddress) -> TurnRecord | None:
    """The record of a turn that has ended; None of one that has not."""
    turn = await tx.fetchrow("SELECT * FROM turns WHERE id = $1 AND ended_at IS NOT NULL", address.turn_id)
    if turn is None:
        return None
    events = await tx.fetch(_EVENTS, address.turn_id, list(NAMED), list(KINDS), MOST_EVENTS)
    failed = await tx.fetch(
        "SELECT call_id, reply #>> '{problem,code}' AS code FROM model_calls WHERE turn_id = $1 "
        "AND reply #>> '{problem,code}' IS NOT NULL",
        address.turn_id,
    )
    return TurnRecord(
        tenant_id=address.tenant_id,
        conversation_id=address.conversation_id,
        turn_id=address.turn_id,
        user_id=str(turn["user_id"]),
        agent_id=turn["agent_id"],
        agent_version=turn["agent_version"],
        topology=turn["topology"],
        status=turn["status"],
        began=turn["created_at"],
        ended=turn["ended_at"],
        input_tokens=turn["input_tokens"],
        output_tokens=turn["output_tokens"],
        cost_microusd=turn["cost_microusd"],
        problem_code=str((turn["problem"] or {}).get("code", "")),
        given_trace_id=trace_id(turn["metadata"].get("trace_id"), ""),
        happened=tuple(Happened(row["kind"], row["at"], row["call_id"], row["data"]) for row in events),
        failures={row["call_id"]: row["code"] for row in failed},
    )
