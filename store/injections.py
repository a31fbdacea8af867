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


async def injected(tx: Connection, conversation_id: str) -> dict[str, list[int]]:
    """What has been injected in a conversation: skill to the tiers of it, lowest first."""
    rows = await tx.fetch(
        "SELECT skill_id, array_agg(DISTINCT tier ORDER BY tier) AS tiers FROM injection_ledger "
        "WHERE conversation_id = $1 GROUP BY skill_id ORDER BY skill_id",
        conversation_id,
    )
    return {row["skill_id"]: list(row["tiers"]) for row in rows}


async def is_injected(tx: Connection, conversation_id: str, skill_id: str, tier: int) -> bool:
    """Whether a turn of the conversation has injected this tier of the skill."""
    return bool(
        await tx.fetchval(
            "SELECT true FROM injection_ledger WHERE conversation_id = $1 AND skill_id = $2 AND tier = $3 LIMIT 1",
            conversation_id,
            skill_id,
            tier,
        )
    )
