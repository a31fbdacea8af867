"""What several approvals are about, before any of them is decided on."""

from collections.abc import Sequence

from policy.bulk import Asked
from policy.decision import Decider
from store.database import Connection


async def asked_about(tx: Connection, approval_ids: Sequence[str], person: Decider) -> list[Asked]:
    """One for each of these that this person may see; what an approval is about never changes."""
    rows = await tx.fetch(
        "SELECT requested_by, kind, agent_id, tool, tool_version, risk FROM approvals WHERE id = ANY($1)",
        list(approval_ids),
    )
    return [
        Asked(row["kind"], row["agent_id"], row["tool"], row["tool_version"], row["risk"])
        for row in rows
        if person.sees(str(row["requested_by"]))
    ]
