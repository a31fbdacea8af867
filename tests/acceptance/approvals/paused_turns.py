"""Many paused turns in little time: one runs to its pause, the others are copies with their own rows, pinned call and
`TurnWait` on the real server. Except for ids, they equal the first one byte for byte."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from perdure.contracts.activities import TURN_WAIT, search_values
from perdure.contracts.ids import approval_id, effect_key, turn_workflow_id
from perdure.contracts.turns import TurnInput
from perdure.contracts.values import frozen_call_digest
from perdure.store.database import Connection, Database, new_id
from perdure.temporal.workflow_client import TASK_TIMEOUT
from tests.eventually import until

CALL = "t1.0"
"""The pending call."""
AT_ONCE = 24
ROWS_AT_ONCE = 250
WAITING_SECONDS = 600.0
"""The time at which every wait has had its first task."""
_TABLES = ("conversations", "turns", "messages", "model_calls", "tool_calls", "approvals", "events")
"""The tables in the order of their references."""
_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped
  AND attidentity = '' AND attgenerated = '' ORDER BY attnum
"""


@dataclass(frozen=True, slots=True)
class Paused:
    turn_id: str
    conversation_id: str
    approval_id: str
    digest: str
    key: str
    """The key of its effect."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    turn_id: str
    rows: dict[str, str]
    """The rows per table, as JSON."""
    ids: tuple[str, ...]
    """The ids that a copy replaces."""
    waits: str
    """The wait's input, as JSON."""
    call: dict[str, Any]
    """Its approval's row."""


async def paused_turns(db: Database, client: Client, turn_id: str, count: int) -> list[Paused]:
    """So many turns like this one, which waits for one approval and stays as it is."""
    pattern = await _pattern(db, client, turn_id)
    copies = [_copy(pattern) for _ in range(count)]
    for start in range(0, count, ROWS_AT_ONCE):
        async with db.transaction("local") as tx:
            await _insert(tx, [rows for _, rows, _ in copies[start : start + ROWS_AT_ONCE]])
    gate = asyncio.Semaphore(AT_ONCE)

    async def of_each(step: Callable[[Client, TurnInput], Awaitable[None]]) -> None:
        async def one(turn: TurnInput) -> None:
            async with gate:
                await step(client, turn)

        await asyncio.gather(*(one(turn) for _, _, turn in copies))

    await of_each(_begin)
    # Runs start faster than workers take their first tasks. Until then they wait for a worker and not for a person,
    # and the next measurement would include them.
    await of_each(_come_to_wait)
    return [paused for paused, _, _ in copies]


async def _come_to_wait(client: Client, turn: TurnInput) -> None:
    """Back when the turn's wait has had its first task."""
    handle = client.get_workflow_handle(turn_workflow_id(turn.address.turn_id))

    async def has_no_task() -> bool:
        return not (await handle.describe()).raw_description.HasField("pending_workflow_task")

    await until(has_no_task, WAITING_SECONDS, every=0.1)


async def _pattern(db: Database, client: Client, turn_id: str) -> _Pattern:
    handle = client.get_workflow_handle(turn_workflow_id(turn_id))
    begun = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
    assert begun.workflow_type.name == TURN_WAIT
    rows: dict[str, str] = {}
    async with db.transaction("local") as tx:
        for table in _TABLES:
            column = {"conversations": "id = (SELECT conversation_id FROM turns WHERE id = $1)", "turns": "id = $1"}
            where = column.get(table, "turn_id = $1")
            rows[table] = json.dumps(
                await tx.fetchval(f"SELECT jsonb_agg(to_jsonb(t)) FROM {table} t WHERE {where}", turn_id)
            )
    ids = [row["id"] for of in ("conversations", "turns", "messages", "approvals") for row in json.loads(rows[of])]
    (call,) = json.loads(rows["approvals"])
    return _Pattern(turn_id, rows, tuple(ids), begun.input.payloads[0].data.decode(), call)


def _copy(pattern: _Pattern) -> tuple[Paused, dict[str, list[dict[str, Any]]], TurnInput]:
    """One more turn: its ids, its rows and its wait's input."""
    names = {each: new_id() for each in pattern.ids}
    turn_id, call = names[pattern.turn_id], pattern.call
    names[call["id"]] = approval_id(turn_id, CALL)
    names[effect_key(pattern.turn_id, CALL)] = key = effect_key(turn_id, CALL)
    names[call["digest"]] = digest = frozen_call_digest(
        tenant_id=call["tenant_id"], turn_id=turn_id, call_id=CALL, tool=call["tool"],
        tool_version=call["tool_version"], args=call["args"], nonce=call["nonce"],
    )  # fmt: skip

    def named(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    rows = {table: json.loads(named(text)) for table, text in pattern.rows.items()}
    turn = TurnInput.model_validate_json(named(pattern.waits))
    return Paused(turn_id, turn.address.conversation_id, names[call["id"]], digest, key), rows, turn


async def _insert(tx: Connection, copies: Sequence[dict[str, list[dict[str, Any]]]]) -> None:
    for table in _TABLES:
        columns = ", ".join(f'"{row["attname"]}"' for row in await tx.fetch(_COLUMNS, table))
        await tx.execute(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, $1)",
            [row for rows in copies for row in rows[table] or ()],
        )


async def _begin(client: Client, turn: TurnInput) -> None:
    values = search_values(turn, "awaiting_approval").items()
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values]
    await client.start_workflow(
        TURN_WAIT, turn, id=turn_workflow_id(turn.address.turn_id), task_queue=turn.routing.waits,
        task_timeout=TASK_TIMEOUT, static_summary=f"{turn.agent_id} · {turn.topology}",
        search_attributes=TypedSearchAttributes(pairs),
    )  # fmt: skip
