"""A queued turn's admission: it becomes its conversation's active one, and its wake-up is written."""

from contracts.events import READY
from contracts.turns import TurnAddress
from store.database import Connection
from store.journal import NewEvent, write
from store.outbox import Note, Wake, put

_ADMIT = """
WITH behind AS (
  UPDATE conversations SET active_turn_id = $1, message_seq = message_seq + 1 WHERE id = $2 RETURNING message_seq
), said AS (
  UPDATE messages m SET seq = message_seq, in_transcript = true FROM behind, turns t
  WHERE t.id = $1 AND m.id = t.message_id
)
UPDATE turns SET status = 'accepted', through_seq = message_seq - 1 FROM behind WHERE id = $1 RETURNING agent_id
"""


async def admit(tx: Connection, address: TurnAddress) -> Note:
    """Start a turn that waited; its message moves behind all that was said meanwhile.

    The caller holds the turn's and the conversation's lock, and has written what comes before this turn's `ready`.
    """
    agent_id = await tx.fetchval(_ADMIT, address.turn_id, address.conversation_id)
    note = await put(tx, address.tenant_id, Wake.START, address.turn_id)
    await write(tx, address, [NewEvent(READY, {"agent": agent_id, "run_id": address.turn_id})])
    return note
