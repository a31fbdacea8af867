"""What a turn's model calls took and used, a row for each call, and their sums (S4-50, S4-51)."""

from contracts.errors import CallerError
from store.database import Connection

_TURN = """
SELECT status, created_at, ended_at, metadata ? 'client_table' AS at_home, output -> 'retries' AS retries FROM turns
WHERE id = $1 AND ($2::uuid IS NULL OR user_id = $2)
"""
_CALLS = """
SELECT call_id, stage, model, errors, epoch, started_at, settled_at, reply -> 'usage' AS usage,
  reply -> 'problem' ->> 'code' AS problem, reply ->> 'fault' AS fault,
  row_number() OVER (PARTITION BY stage ORDER BY length(call_id), call_id) AS number
FROM model_calls WHERE turn_id = $1 ORDER BY length(call_id), call_id
"""
_COUNTED = ("input_tokens", "output_tokens", "thinking_tokens", "cached_tokens", "cost_microusd")


async def metrics_of(tx: Connection, turn_id: str, user_id: str | None) -> dict[str, object]:
    """The rows and their sums, of a turn of this user's (None: of anybody's of the tenant).

    Raises: CallerError 404 `turn_not_found`.
    """
    turn = await tx.fetchrow(_TURN, turn_id, user_id)
    if turn is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    rows = await tx.fetch(_CALLS, turn_id)
    calls = []
    totals = dict.fromkeys(_COUNTED, 0)
    for row in rows:
        used = {name: int((row["usage"] or {}).get(name, 0)) for name in _COUNTED}
        totals = {name: totals[name] + used[name] for name in _COUNTED}
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
                **_dollars(used),
                "refused": row["problem"] or (row["fault"] and "not_the_object_asked_for") or None,
            }
        )
    return {
        "turn_id": turn_id,
        "source": "client" if turn["at_home"] else "server",
        "calls": calls,
        "totals": {"calls": len(calls), **_dollars(totals)},
        "retries": turn["retries"] or {},
    }


def _dollars(used: dict[str, int]) -> dict[str, object]:
    shown: dict[str, object] = {name: used[name] for name in _COUNTED if name != "cost_microusd"}
    return shown | {"cost_usd": used["cost_microusd"] / 1e6}
