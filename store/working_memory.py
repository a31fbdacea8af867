"""Working memory: the scratchpad of one conversation, field by field (S0-29)."""

from pydantic import JsonValue

from contracts.turns import TurnAddress
from store.database import Connection

TTL_SECONDS = 86_400
"""24 h from the last write (E-09)."""


async def merge(tx: Connection, address: TurnAddress, fields: dict[str, JsonValue]) -> None:
    """Write these fields over what is there; None removes one, the others stay."""
    gone = [name for name, value in fields.items() if value is None]
    if gone:
        await tx.execute(
            "DELETE FROM working_memory WHERE conversation_id = $1 AND field = ANY($2)", address.conversation_id, gone
        )
    if len(gone) == len(fields):  # also where there are none
        return
    await tx.execute(
        "INSERT INTO working_memory (tenant_id, conversation_id, field, value, expires_at) "
        "SELECT $1, $2, f.key, f.value, now() + make_interval(secs => $4) FROM jsonb_each($3) f "
        "ON CONFLICT (conversation_id, field) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at",
        address.tenant_id,
        address.conversation_id,
        {name: value for name, value in fields.items() if value is not None},
        TTL_SECONDS,
    )
