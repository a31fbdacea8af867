"""API representations of turns."""

import json
from collections.abc import Sequence

import asyncpg

from perdure.contracts.errors import CallerError
from perdure.contracts.messages import Role
from perdure.contracts.turns import ENDED, TurnStatus
from perdure.core.approvals.refusals import ReviewRefusal, refusal_of
from perdure.core.transcript import SEGMENT_EVENTS, Segment, SegmentEvent, segments_of
from perdure.store.approvals.verdicts import refusals_of
from perdure.store.database import Connection
from perdure.store.paging import WhereBuilder, cursor_after, read_cursor

# An erased user's turn has no such events.
_COLUMNS_FROM_EVENTS = (
    "ARRAY(SELECT e.data->>'node' FROM events e WHERE e.turn_id = t.id AND e.kind = 'node_end' "
    "AND e.data->>'node' IS NOT NULL ORDER BY e.seq) AS nodes, "
    "(SELECT coalesce(e.data->>'turn_seconds', e.data->>'seconds')::float FROM events e "
    "WHERE e.turn_id = t.id AND e.kind = 'ttft' ORDER BY e.seq LIMIT 1) AS ttft_seconds, "
    "CASE WHEN t.ended_at IS NOT NULL THEN "
    "(SELECT e.data FROM events e WHERE e.turn_id = t.id AND e.kind = 'done' LIMIT 1) END AS done"
)

# The deadline in force: an escalation, or a decision on one of several requests, may have moved it since the pause
# began. A turn without a request can wait for a worker that has the tools of its calls in their versions.
WAITS_FOR = """
CASE WHEN t.waiting IS NOT NULL THEN t.waiting || jsonb_build_object('expires_at', (
  SELECT to_char(min(o.expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') FROM (
    SELECT expires_at FROM approvals WHERE turn_id = t.id AND status = 'pending' UNION ALL
    SELECT expires_at FROM questions WHERE turn_id = t.id AND status = 'pending') o))
WHEN t.ended_at IS NULL THEN (
  SELECT jsonb_build_object('kind', 'worker', 'ids', jsonb_agg(k.call_id ORDER BY k.call_id),
    'since', to_char(min(k.awaits_worker_since) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
  FROM tool_calls k WHERE k.turn_id = t.id AND k.awaits_worker_since IS NOT NULL AND k.state IN ('planned', 'reserved')
  HAVING count(*) > 0)
END AS waits_for
"""
MAX_CALLS = 500
"""The maximum number of calls returned; the latest ones are kept."""
_CALL_COLUMNS = (
    *("call_id", "kind", "name", "label", "effect", "state", "code", "attempts", "errors", "approval_id"),
    "finish_reason",
)
_CALL_TIMES = ("planned_at", "started_at", "settled_at")
_USAGE_COLUMNS = ("input_tokens", "output_tokens", "thinking_tokens", "cached_tokens", "cost_microusd")


async def get_turn(tx: Connection, turn_id: str, user_id: str | None) -> dict[str, object]:
    """Returns the turn if it belongs to this user. With None, any turn of the tenant is returned.

    Raises: CallerError 404 `turn_not_found`.
    """
    row = await tx.fetchrow(
        f"SELECT t.*, {WAITS_FOR}, {_COLUMNS_FROM_EVENTS} FROM turns t "
        "WHERE t.id = $1 AND ($2::uuid IS NULL OR t.user_id = $2)",
        turn_id,
        user_id,
    )
    if row is None:
        raise CallerError("turn_not_found", "Turn not found", status=404)
    return show_turn(row)


async def list_turns(
    tx: Connection,
    user_id: str | None,
    *,
    status: str | None,
    agent: str | None,
    conversation_id: str | None,
    limit: int,
    cursor: str | None,
) -> tuple[list[dict[str, object]], str | None]:
    """Lists turns, newest first, and the next page's cursor."""
    is_open = status is not None and status not in ENDED
    where = WhereBuilder(*(["t.ended_at IS NULL"] if is_open else []))  # has an index
    where.add_condition("t.user_id = {0}::uuid", user_id)
    where.add_state("t.status", status, [each.value for each in TurnStatus])
    where.add_condition("t.agent_id = {0}::text", agent)
    where.add_condition("t.conversation_id = {0}::uuid", conversation_id)
    where.add_condition("(t.created_at, t.id) < ({0}::timestamptz, {1}::uuid)", *read_cursor(cursor))
    limit_parameter = where.parameter(limit + 1)
    rows = await tx.fetch(
        f"SELECT t.*, {WAITS_FOR}, {_COLUMNS_FROM_EVENTS} FROM turns t {where} "
        f"ORDER BY t.created_at DESC, t.id DESC LIMIT {limit_parameter}",
        *where.given,
    )
    following = cursor_after(rows[limit - 1]["created_at"], str(rows[limit - 1]["id"])) if len(rows) > limit else None
    return [show_turn(row) for row in rows[:limit]], following


def show_turn(row: asyncpg.Record) -> dict[str, object]:
    """Returns the API representation of a turn's row."""
    tokens = row["input_tokens"] + row["output_tokens"]
    done = row["done"] or {}
    return {
        "turn_id": str(row["id"]),
        "conversation_id": str(row["conversation_id"]),
        "agent": row["agent_id"],
        "agent_version": row["agent_version"],
        "topology": row["topology"],
        "status": row["status"],
        "answer": row["answer"],
        "finish_reason": done.get("finish_reason"),
        "truncated": bool(done.get("truncated")),
        "output": row["output"],
        "error": row["problem"],
        "usage": {
            "input_tokens": row["input_tokens"],
            "output_tokens": row["output_tokens"],
            "cached_tokens": row["cached_tokens"],
            "tokens_used": tokens,
            "cost_usd": row["cost_microusd"] / 1e6,
        },
        "waiting_for": row["waits_for"],
        "stuck": show_stuck(row["stuck"]),
        "ttft_seconds": row["ttft_seconds"],
        "ttr_seconds": (row["ended_at"] - row["created_at"]).total_seconds() if row["ended_at"] else None,
        "nodes": list(row["nodes"]),
        "attempts": row["attempts"],
        "metadata": row["metadata"],
        "stop_requested_at": row["stop_requested_at"],
        "replaced_by": str(row["replaced_by"]) if row["replaced_by"] else None,
        "left_over": done.get("left_over"),
        "created_at": row["created_at"],
        "started_at": row["started_at"],
        "ended_at": row["ended_at"],
        "events": f"/v1/turns/{row['id']}/events",
    }


def show_stuck(stuck: dict[str, object] | None) -> dict[str, object] | None:
    """Returns the API representation of a failing workflow task."""
    return {name: stuck[name] for name in ("failures", "since", "message")} if stuck else None


_TURN_EXISTS = "SELECT FROM turns WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2)"
_TURN_CALLS = """
SELECT * FROM (
  SELECT call_id, 'model' AS kind, model AS name, stage AS label, NULL AS effect, epoch AS attempts, errors,
    NULL::timestamptz AS planned_at, started_at, settled_at,
    CASE WHEN reply IS NULL THEN 'running' WHEN reply->>'problem' IS NOT NULL THEN 'failed' ELSE 'done' END AS state,
    coalesce(reply->'problem'->>'code', CASE WHEN reply->>'fault' <> '' THEN 'not_the_object_asked_for' END) AS code, 
    (reply->'usage'->>'cost_microusd')::bigint AS cost_microusd, NULL AS approval_id,
    reply->>'finish_reason' AS finish_reason
  FROM model_calls WHERE turn_id = $1
  UNION ALL
  SELECT k.call_id, 'tool', k.tool, '', k.effect, k.epoch - k.voided, k.errors, k.created_at, k.first_sent_at,
    k.settled_at, CASE WHEN k.state = 'reserved' THEN 'running' ELSE k.state END, NULL, NULL, a.id::text, NULL
  FROM tool_calls k LEFT JOIN approvals a
    ON a.turn_id = k.turn_id AND a.call_id = k.call_id AND a.tenant_id = k.tenant_id
  WHERE k.turn_id = $1
  UNION ALL
  SELECT tool, 'context', tool, '', 'read', coalesce((outcome->>'attempts')::int, failed + 1), failed, NULL,
    created_at, settled_at,
    CASE WHEN settled_at IS NULL THEN 'running' WHEN outcome->>'problem' IS NOT NULL THEN 'failed' ELSE 'done' END,
    outcome->'problem'->>'code', NULL, NULL, NULL
  FROM bundles WHERE turn_id = $1
) calls ORDER BY coalesce(started_at, planned_at) DESC, length(call_id) DESC, call_id DESC LIMIT $2
"""


async def calls_of(tx: Connection, turn_id: str, user_id: str | None) -> list[dict[str, object]]:
    """Returns the calls of a turn of this user. With None, any turn of the tenant is allowed.

    Model calls, tool calls and calls for the turn's context are listed in the order in which they began. They have
    times, attempts, costs and results, but no content.

    Raises: CallerError 404 `turn_not_found`.
    """
    if await tx.fetchrow(_TURN_EXISTS, turn_id, user_id) is None:
        raise CallerError("turn_not_found", "Turn not found", status=404)
    found = []
    for row in reversed(await tx.fetch(_TURN_CALLS, turn_id, MAX_CALLS)):
        began, ended, cost = row["started_at"], row["settled_at"], row["cost_microusd"]
        found.append(
            {name: row[name] for name in (*_CALL_COLUMNS, *_CALL_TIMES)}
            | {
                "seconds": (ended - began).total_seconds() if began and ended else None,
                "cost_usd": cost / 1e6 if cost is not None else None,
            }
        )
    return found


_TURN = """
SELECT status, created_at, ended_at, metadata ? 'client_table' AS at_home, output -> 'retries' AS retries FROM turns
WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2)
"""
_MODEL_CALL_METRICS = """
SELECT call_id, stage, model, errors, epoch, started_at, settled_at, reply -> 'usage' AS usage,
  reply -> 'problem' ->> 'code' AS problem, reply ->> 'fault' AS fault,
  row_number() OVER (PARTITION BY stage ORDER BY length(call_id), call_id) AS number
FROM model_calls WHERE turn_id = $1 ORDER BY length(call_id), call_id
"""


async def metrics_of(tx: Connection, turn_id: str, user_id: str | None) -> dict[str, object]:
    """Returns the rows and their sums for a turn of this user. With None, any turn of the tenant is allowed.

    Raises: CallerError 404 `turn_not_found`.
    """
    turn = await tx.fetchrow(_TURN, turn_id, user_id)
    if turn is None:
        raise CallerError("turn_not_found", "Turn not found", status=404)
    rows = await tx.fetch(_MODEL_CALL_METRICS, turn_id)
    calls = []
    totals = dict.fromkeys(_USAGE_COLUMNS, 0)
    for row in rows:
        used = {name: int((row["usage"] or {}).get(name, 0)) for name in _USAGE_COLUMNS}
        totals = {name: totals[name] + used[name] for name in _USAGE_COLUMNS}
        seconds = (row["settled_at"] - row["started_at"]).total_seconds() if row["settled_at"] else None
        calls.append(
            {
                "call_id": row["call_id"],
                "label": row["stage"] or "model",
                "number": row["number"],
                "model": row["model"],
                "attempts": row["epoch"],
                "errors": row["errors"],
                "seconds": seconds,
                **_show_cost(used),
                "refused": row["problem"] or (row["fault"] and "not_the_object_asked_for") or None,
            }
        )
    return {
        "turn_id": turn_id,
        "source": "client" if turn["at_home"] else "server",
        "calls": calls,
        "totals": {"calls": len(calls), **_show_cost(totals)},
        "retries": turn["retries"] or {},
    }


def _show_cost(used: dict[str, int]) -> dict[str, object]:
    shown: dict[str, object] = {name: used[name] for name in _USAGE_COLUMNS if name != "cost_microusd"}
    return shown | {"cost_usd": used["cost_microusd"] / 1e6}


async def turn_segments(tx: Connection, turn_id: str, user_id: str | None) -> list[dict[str, object]]:
    """Returns the segments of the turn in the order in which they began, if it belongs to this user. With None, any
    turn of the tenant is allowed.

    Raises: CallerError 404 `turn_not_found`.
    """
    if await tx.fetchrow(_TURN_EXISTS, turn_id, user_id) is None:
        raise CallerError("turn_not_found", "Turn not found", status=404)
    return (await read_segments(tx, [turn_id]))[turn_id]


async def read_segments(tx: Connection, turn_ids: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """Returns the segments of each of these turns, in the order in which they began."""
    rows = await tx.fetch(
        "SELECT turn_id::text, kind, call_id, data FROM events WHERE turn_id = ANY($1::uuid[]) AND kind = ANY($2) "
        "ORDER BY seq",
        list(turn_ids),
        list(SEGMENT_EVENTS),
    )
    by_turn: dict[str, list[SegmentEvent]] = {turn_id: [] for turn_id in turn_ids}
    for row in rows:
        by_turn[row["turn_id"]].append(SegmentEvent(row["kind"], row["call_id"], row["data"]))
    segments = {turn_id: segments_of(events) for turn_id, events in by_turn.items()}
    ids = [segment.message_id for several in segments.values() for segment in several if segment.message_id]
    message_rows = await tx.fetch("SELECT id::text, content FROM messages WHERE id = ANY($1::uuid[])", ids)
    calls = await tx.fetch(
        "SELECT turn_id::text, call_id, args FROM tool_calls WHERE turn_id = ANY($1::uuid[])", list(turn_ids)
    )
    question_rows = await tx.fetch(
        "SELECT id::text, kind, asked, status, answer FROM questions WHERE turn_id = ANY($1::uuid[])", list(turn_ids)
    )
    questions = {row["id"]: dict(row) for row in question_rows}
    refusals = await refusals_of(tx, turn_ids)
    texts = {row["id"]: row["content"] for row in message_rows}
    arguments = {(row["turn_id"], row["call_id"]): row["args"] for row in calls}
    return {
        turn_id: [
            _show_question(questions[each.call_id])
            if each.call_id in questions
            else _show_segment(each, texts, arguments.get((turn_id, each.call_id)), refusals.get(turn_id, ()))
            for each in several
        ]
        for turn_id, several in segments.items()
    }


def _show_question(row: dict[str, object]) -> dict[str, object]:
    """Returns a question to the turn's user and its answer, from the question's own record."""
    return {
        "kind": "question",
        "call_id": row["id"],
        "state": row["status"],
        "asks_for": row["kind"],
        "asked": row["asked"],
        "answer": row["answer"],
    }


def show_refusal(refusal: ReviewRefusal | None) -> dict[str, object]:
    """Returns the fields that mark a result or an answer that was not approved."""
    if refusal is None:
        return {"approval": None, "approval_comment": ""}
    return {"approval": refusal.status, "approval_comment": refusal.reason}


def _show_segment(
    segment: Segment, texts: dict[str, str], arguments: object, refusals: Sequence[ReviewRefusal]
) -> dict[str, object]:
    shown: dict[str, object] = {
        "kind": segment.kind,
        "call_id": segment.call_id,
        "state": segment.state,
        **segment.facts,
    }
    if segment.kind in ("text", "message"):
        shown |= {"message_id": segment.message_id, "text": texts.get(segment.message_id, "")}
    if segment.kind == "text":
        shown |= show_refusal(refusal_of(Role.ASSISTANT, texts.get(segment.message_id, ""), "", refusals))
    if segment.kind == "tool":
        shown |= {"tool": segment.tool, "arguments": arguments}
        shown |= show_refusal(refusal_of(Role.TOOL, "", segment.call_id, refusals))
        if segment.message_id:
            shown |= {"message_id": segment.message_id, "result": _parse_result(texts.get(segment.message_id, ""))}
    return shown


def _parse_result(text: str) -> object:
    """Returns the parsed JSON of a result, or its text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
