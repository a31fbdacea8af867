"""What several approvals are about, before any of them is decided on."""

from collections.abc import Sequence

from policy.bulk import Asked
from store.database import Connection


async def asked_about(tx: Connection, approval_ids: Sequence[str]) -> list[Asked]:
    """One for each of these that is there; what an approval is about never changes."""
    rows = await tx.fetch(
        "SELECT kind, agent_id, tool, tool_version, risk FROM approvals WHERE id = ANY($1)", list(approval_ids)
    )
    return [Asked(**row) for row in rows]
