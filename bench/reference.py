"""The reference turn: memory and skills, a model call, two parallel tool calls, a model call, the answer.

The product is what a turn leaves in Postgres. Every stack must leave the same, or the comparison is invalid.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.store.database import Database, new_id

AGENT: Final = "bench"
MESSAGE: Final = "Good morning! What is the cost of the lamp, and could I take one home today?"
WORKING_MEMORY: Final[dict[str, JsonValue]] = {
    "preferred_currency": "EUR",
    "visitor_mood": "in a hurry",
    "recent_articles": ["chair", "table", "shelf"],
}
MODEL_ACTIVITIES: Final = ("model.complete", "bench.model")
"""Names of the activity that calls the model, whose input is measured."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of the turns."""

    tenant_id: str
    user_id: str


@dataclass(frozen=True, slots=True)
class Product:
    """The rows that one turn left in Postgres, without ids and times."""

    status: str
    answer: str
    usage: tuple[int, ...]
    roles: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    events: tuple[tuple[str, int], ...]

    def differences(self, other: "Product") -> list[str]:
        """Returns the parts of `other` that differ."""
        return [
            f"{name}: {getattr(self, name)} and {getattr(other, name)}"
            for name in self.__slots__
            if getattr(self, name) != getattr(other, name)
        ]


async def conversations(db: Database, visitor: Visitor, count: int) -> list[str]:
    """Creates new conversations with their working memory, before anything is measured."""
    ids = [new_id() for _ in range(count)]
    async with db.transaction(visitor.tenant_id) as tx:
        await tx.execute(
            "INSERT INTO conversations (id, tenant_id, user_id, agent_id) "
            "SELECT c, $2, $3, $4 FROM unnest($1::uuid[]) c",
            ids,
            visitor.tenant_id,
            visitor.user_id,
            AGENT,
        )
        await tx.execute(
            "INSERT INTO working_memory (tenant_id, conversation_id, field, value, expires_at) "
            "SELECT $2, c, f.key, f.value, now() + interval '1 day' FROM unnest($1::uuid[]) c, jsonb_each($3) f",
            ids,
            visitor.tenant_id,
            WORKING_MEMORY,
        )
    return ids


async def product(db: Database, visitor: Visitor, turn_id: str) -> Product:
    """Returns the product of this turn."""
    async with db.transaction(visitor.tenant_id) as tx:
        turn = await tx.fetchrow("SELECT * FROM turns WHERE id = $1", turn_id)
        messages = await tx.fetch(
            "SELECT role, jsonb_array_length(calls) AS calls FROM messages WHERE turn_id = $1 ORDER BY seq", turn_id
        )
        calls = await tx.fetch("SELECT tool, state FROM tool_calls WHERE turn_id = $1 ORDER BY call_id", turn_id)
        events = await tx.fetch("SELECT kind FROM events WHERE turn_id = $1", turn_id)
    if turn is None:
        raise LookupError(f"there is no turn {turn_id}")
    kinds = Counter(row["kind"] for row in events)
    return Product(
        status=turn["status"],
        answer=turn["answer"] or "",
        usage=(turn["input_tokens"], turn["output_tokens"], turn["cost_microusd"]),
        roles=tuple(f"{row['role']}+{row['calls']}" if row["calls"] else row["role"] for row in messages),
        calls=tuple((row["tool"], row["state"]) for row in calls),
        events=tuple(sorted(kinds.items())),
    )
