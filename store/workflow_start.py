"""What the workflow of a turn begins with: read by whoever delivers its start."""

from contracts.turns import Carried, Routing, TurnAddress, TurnInput, TurnStatus
from store.database import Connection


async def workflow_input(tx: Connection, turn_id: str) -> TurnInput | None:
    """What the workflow of an open turn starts with; None where the turn is gone, queued or has ended."""
    row = await tx.fetchrow("SELECT * FROM turns WHERE id = $1", turn_id)
    if row is None or row["ended_at"] is not None or row["status"] == TurnStatus.QUEUED.value:
        return None
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["id"])
    )
    stopped = row["stop_requested_at"] is not None
    return TurnInput(
        address=address,
        agent_id=row["agent_id"],
        agent_version=row["agent_version"],
        topology=row["topology"],
        routing=Routing.model_validate(row["routing"]),
        carried=Carried(state={}, requests=(), stop=True) if stopped else None,
    )
