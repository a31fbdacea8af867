"""Checkpoints that a turn has passed though nobody could be asked (S0-68): audited, and closed if they did open."""

from collections.abc import Iterable

from contracts.errors import UpstreamRejected
from contracts.events import HITL_WARNING, PendingEvent
from store import audit
from store.database import Connection

_CLOSE = """
UPDATE approvals SET status = 'cancelled', version = version + 1
WHERE id = $1 AND turn_id = $2 AND status = 'pending'
"""
_DECIDED = """
SELECT status FROM approvals WHERE id = $1 AND turn_id = $2 AND status NOT IN ('cancelled', 'approved')
"""
_KIND = "checkpoint.not_asked"
_RECORDED = "SELECT true FROM audit WHERE kind = $1 AND subject = $2"


async def record_unasked(tx: Connection, turn_id: str, events: Iterable[PendingEvent], *, ends: bool) -> None:
    """One audit row for each such checkpoint among `events`, however often they are handed over; no statement where
    there is none.

    One that was opened after all, and whose opening nobody heard of, is asked about no more. Where somebody has
    decided otherwise than to approve it, the turn may only end: `ends` says that it does.

    Raises: UpstreamRejected `checkpoint_decided`.
    """
    for event in events:
        if event.kind != HITL_WARNING:
            continue
        approval_id = str(event.data["approval_id"])
        await tx.execute(_CLOSE, approval_id, turn_id)
        decided = await tx.fetchval(_DECIDED, approval_id, turn_id)
        if decided is None:
            if not await tx.fetchval(_RECORDED, _KIND, approval_id):
                await audit.record(tx, _KIND, approval_id, event.data, actor=None, turn_id=turn_id)
        elif not ends:
            raise UpstreamRejected(
                "checkpoint_decided",
                f"the checkpoint was {decided} while the turn went on as if nobody could be asked, so it ends here",
            )
