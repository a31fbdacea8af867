"""The injection ledger: which skills were put before the model in a conversation, by turn and tier (S0-31)."""

from collections.abc import Sequence

from contracts.turns import TurnAddress
from store.database import Connection

INJECTED = """
SELECT array_agg(DISTINCT skill_id ORDER BY skill_id) FROM injection_ledger
WHERE conversation_id = $1 AND turn_id <> $2
"""
"""A subselect: skills that other turns ($2 is this one's id) of the conversation ($1) have injected."""


async def mark(tx: Connection, address: TurnAddress, skill_ids: Sequence[str], tier: int) -> None:
    """Record that this turn injects these skills; a turn that does it again leaves one row."""
    await tx.execute(
        "INSERT INTO injection_ledger (tenant_id, conversation_id, skill_id, turn_id, tier) "
        "SELECT $1, $2, skill_id, $3, $5 FROM unnest($4::text[]) AS skill_id ON CONFLICT DO NOTHING",
        address.tenant_id,
        address.conversation_id,
        address.turn_id,
        list(skill_ids),
        tier,
    )
