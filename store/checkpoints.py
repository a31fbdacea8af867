"""Checkpoints: what a person looks at there, and the call that an edit makes again (S0-65, S0-67).

The approval of a checkpoint has a call id of its own. It covers no call until a reviewer edits one: then the decision
plans the call anew under that id, approved as edited, and the ledger runs it like any other.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
from pydantic import JsonValue

from contracts.approvals import OpenAsk
from contracts.digests import canonical_json, digest_of
from contracts.errors import InvariantBroken
from contracts.ids import effect_key, reviewed_call
from contracts.messages import CallRef, MessageRef, Role
from contracts.people import GatedCall, RequestKind
from policy.arguments import Unfit, canonical
from store.database import Connection
from store.journal import NewMessage


@dataclass(frozen=True, slots=True)
class Subject:
    """What an approval is about."""

    args: dict[str, JsonValue]
    effect: str
    tool_version: str
    result: JsonValue = None
    """At a checkpoint: what the call answered, or the answer so far."""


_CALL = "SELECT args, effect, tool_version FROM tool_calls WHERE turn_id = $1 AND call_id = $2"
_DONE = """
SELECT coalesce(a.decision->'args', c.args) AS args, c.effect, c.tool_version, m.content FROM tool_calls c
LEFT JOIN approvals a ON a.turn_id = c.turn_id AND a.call_id = c.call_id
LEFT JOIN messages m ON m.conversation_id = c.conversation_id AND m.turn_id = c.turn_id AND m.call_id = c.call_id
  AND m.role = 'tool'
WHERE c.turn_id = $1 AND c.call_id = $2
"""
_LIMITS = """
SELECT jsonb_build_object('tokens_used', input_tokens + output_tokens, 'max_tokens', limits->'max_tokens',
  'cost_microusd', cost_microusd, 'max_cost_microusd', limits->'max_cost_microusd') FROM turns WHERE id = $1
"""
_ANSWER = """
SELECT content FROM messages WHERE conversation_id = $1 AND turn_id = $2 AND role = 'assistant' AND content <> ''
ORDER BY seq DESC LIMIT 1
"""


async def subject_of(tx: Connection, ask: OpenAsk, gated: GatedCall) -> Subject:
    """What a person is shown: the call that would run, the result of one that has, or the answer so far.

    Raises: InvariantBroken `call_not_planned`.
    """
    turn_id, call_id = ask.address.turn_id, gated.call_id
    if gated.kind is RequestKind.LIMIT:
        return Subject(await tx.fetchval(_LIMITS, turn_id), "read", "")
    if gated.kind is RequestKind.CHECKPOINT:
        seen = reviewed_call(call_id)
        if seen is None:
            answer = await tx.fetchval(_ANSWER, ask.address.conversation_id, turn_id)
            return Subject({}, "read", "", answer or "")
        row, call_id = await tx.fetchrow(_DONE, turn_id, seen), seen
    else:
        row = await tx.fetchrow(_CALL, turn_id, call_id)
    if row is None:
        raise InvariantBroken("call_not_planned", f"the call {call_id} is not in the ledger")
    result = _parsed(row["content"] or "") if gated.kind is RequestKind.CHECKPOINT else None
    return Subject(row["args"], row["effect"], row["tool_version"], result)


def covered(kind: str, args: dict[str, Any], result: object) -> dict[str, Any]:
    """What the digest of an approval covers beside whose it is: the arguments, at a checkpoint the result too."""
    return {"args": args, "result": result} if kind == RequestKind.CHECKPOINT else args


def call_told_of(kind: str, call_id: str) -> str | None:
    """The call that an event of this approval names: at a checkpoint the one whose outcome it is about."""
    return call_id if kind == RequestKind.APPROVAL else reviewed_call(call_id)


_PLAN = """
INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect, args,
  digest)
SELECT tenant_id, turn_id, call_id, conversation_id, agent_id, $2, tool, tool_version, effect, $3, $4
FROM approvals WHERE id = $1 ON CONFLICT (turn_id, call_id) DO NOTHING
"""


async def plan_again(tx: Connection, approval: asyncpg.Record, decision: Mapping[str, Any]) -> NewMessage:
    """Plan the call of a checkpoint anew as a reviewer edited it; the message that makes it is still to write."""
    args = decision["args"]
    key = effect_key(str(approval["turn_id"]), approval["call_id"])
    await tx.execute(_PLAN, approval["id"], key, args, digest_of(args))
    call: dict[str, JsonValue] = {
        "call_id": approval["call_id"],
        "key": key,
        "tool": approval["tool"],
        "arguments": canonical_json(args),
        "digest": digest_of(args),
        "provider_id": "",
        "settled": False,
    }
    return NewMessage(decision["message_id"], Role.ASSISTANT, "", calls=[call])


def edited_round(approval: asyncpg.Record) -> MessageRef | None:
    """The round in which an edited checkpoint's call is made again; None where it was not edited."""
    decision = approval["decision"] or {}
    if approval["kind"] != RequestKind.CHECKPOINT or "args" not in decision:
        return None
    call = CallRef(call_id=approval["call_id"], tool=approval["tool"], digest=digest_of(decision["args"]))
    return MessageRef(id=decision["message_id"], role=Role.ASSISTANT, calls=(call,))


def _parsed(content: str) -> JsonValue:
    """The value as jsonb gives it back, so that its digest is the record's too (measured: `-0.0` and `1e16` came back
    as other numbers, and the approved checkpoint was unreadable for ever)."""
    try:
        return canonical(json.loads(content))
    except (ValueError, RecursionError, Unfit):  # one that was cut, or that jsonb cannot hold, is shown as its text
        return content
