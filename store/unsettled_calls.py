"""Attempts of model calls that end without an answer: what they used counts all the same (S0-40).

An attempt whose provider failed, or that had to leave, says what it used (`count`). One that nobody hears of again is
counted with what its claim assumed, as soon as its call is taken over or its turn ends (`count_lost`); if it comes back
after all, `correct` puts what it did use in that place. Each makes budgets.TO_CHARGE the second statement of its
transaction, and the rows of the day its last (store/budgets.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.model import ModelCall
from contracts.turns import Usage
from store import budgets
from store.database import Connection
from store.journal import NewEvent, write
from store.model_calls import ModelClaim

_COUNT = """
WITH mine AS (
  UPDATE model_calls SET errors = errors + $9, compacted = compacted OR $7, fallback = fallback OR $8, assumed = NULL,
    said = nullif($10, '')
  WHERE turn_id = $1 AND call_id = $2 AND epoch = $3 AND reply IS NULL AND assumed IS NOT NULL RETURNING turn_id
)
UPDATE turns SET input_tokens = input_tokens + $4, output_tokens = output_tokens + $5,
  cost_microusd = cost_microusd + $6 FROM mine WHERE turns.id = mine.turn_id RETURNING ended_at IS NULL AS is_open
"""


async def count(
    tx: Connection,
    call: ModelCall,
    claimed: ModelClaim,
    used: Usage,
    failed: NewEvent | None = None,
    *,
    compact: bool = False,
    fall_back: bool = False,
    said: str = "",
) -> None:
    """Count what an attempt used that will be followed by another; `failed` tells the readers of its provider's error.

    `said` is the answer's text so far, kept for the case that the turn is stopped first (`words_left`).

    With `compact` the next attempt sends half of the conversation, with `fall_back` it asks the agent's other model.
    `tx` holds the turn's lock.
    """
    is_open = await tx.fetchval(
        _COUNT,
        call.address.turn_id,
        call.call_id,
        claimed.epoch,
        used.input_tokens,
        used.output_tokens,
        used.cost_microusd,
        compact,
        fall_back,
        int(failed is not None),
        said,
    )
    if is_open is None:
        await correct(tx, call, claimed, used)
        return
    if is_open and failed is not None:
        await write(tx, call.address, [failed])
    await budgets.charge(tx, call.address.turn_id, call.call_id, claimed.epoch, used)


_CORRECT = """
UPDATE turns SET input_tokens = greatest(0, input_tokens + $2), output_tokens = greatest(0, output_tokens + $3),
  cost_microusd = greatest(0, cost_microusd + $4) WHERE id = $1
"""


async def correct(tx: Connection, call: ModelCall, claimed: ModelClaim, used: Usage) -> None:
    """Put what a lost attempt has used after all in the place of what was assumed of it."""
    more = used.less(claimed.assumed)
    await tx.execute(_CORRECT, call.address.turn_id, more.input_tokens, more.output_tokens, more.cost_microusd)
    await budgets.correct(tx, call.agent_id, claimed.day, used, claimed.assumed)


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt that was counted with what its claim had assumed."""

    call_id: str
    epoch: int
    used: Usage


_LOST = """
WITH lost AS (
  SELECT call_id, epoch, coalesce((assumed ->> 'input_tokens')::bigint, 0) AS input_tokens,
    coalesce((assumed ->> 'output_tokens')::bigint, 0) AS output_tokens,
    coalesce((assumed ->> 'cost_microusd')::bigint, 0) AS cost_microusd
  FROM model_calls WHERE turn_id = $1 AND ($2::text IS NULL OR call_id = $2) AND reply IS NULL
    AND (assumed IS NOT NULL OR held_tokens + held_cost_microusd > 0)
), counted AS (
  UPDATE model_calls m SET assumed = NULL FROM lost WHERE m.turn_id = $1 AND m.call_id = lost.call_id
), added AS (
  UPDATE turns SET input_tokens = turns.input_tokens + s.input_tokens, cost_microusd = turns.cost_microusd + s.cost,
    output_tokens = turns.output_tokens + s.output_tokens
  FROM (SELECT sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(cost_microusd) AS cost
    FROM lost HAVING count(*) > 0) s WHERE turns.id = $1
)
SELECT * FROM lost
"""


async def count_lost(tx: Connection, turn_id: str, call_id: str | None = None) -> Sequence[Lost]:
    """Count the attempt of this call, or every one of the turn, that has neither settled nor said what it used.

    `charge_lost` follows with what this returns, last before the commit. `tx` holds the turn's lock.
    """
    rows = await tx.fetch(_LOST, turn_id, call_id)
    return [
        Lost(
            row["call_id"],
            row["epoch"],
            Usage(
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                cost_microusd=row["cost_microusd"],
            ),
        )
        for row in rows
    ]


async def count_left(tx: Connection, turn_id: str) -> Sequence[Lost]:
    """`count_lost` for every call of a turn that ends, in a transaction that has not waited for settles yet."""
    await tx.execute(budgets.TO_CHARGE)
    return await count_lost(tx, turn_id)


async def words_left(tx: Connection, turn_id: str) -> str:
    """What was said in the attempt that the turn's last call had made as its provider failed; empty where it had ended.

    For a turn that is stopped while that call waits for its next attempt. `tx` holds the turn's lock.
    """
    said = await tx.fetchval(
        "SELECT said FROM model_calls WHERE turn_id = $1 AND reply IS NULL AND said IS NOT NULL "
        "ORDER BY length(call_id) DESC, call_id DESC LIMIT 1",
        turn_id,
    )
    return str(said or "")


async def charge_lost(tx: Connection, turn_id: str, lost: Sequence[Lost]) -> None:
    """Put what was assumed in the place of what these attempts held of their day's budgets."""
    for each in lost:
        await budgets.charge(tx, turn_id, each.call_id, each.epoch, each.used, each.used)
