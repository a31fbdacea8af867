"""Messages that are added to an open turn; its next model call receives them.

Until then the message is outside the transcript, and its `joins` is empty. The claim of a model call takes all waiting
messages. In the claim's transaction they are stamped with the call's id and move after all messages written in the
meantime. A later attempt therefore receives the same messages. If no call has taken a message when the turn ends, it
becomes a queued turn.

Locks: each function holds the turn's lock and then the conversation's. Without the turn's lock, adding a message would
wait for it at the commit, where foreign keys are checked, while holding the conversation's lock (measured: a deadlock).
"""

from pydantic import JsonValue

from perdure.contracts.events import MESSAGE_JOINED, QUEUED
from perdure.contracts.messages import Joined, MessageRef, Role
from perdure.contracts.turns import Limits, TurnAddress, TurnStatus
from perdure.core.budgets import tighten_limits
from perdure.core.text import estimated_tokens, preview
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.events.event_log import NewEvent, NewMessage, write


async def add_message(tx: Connection, address: TurnAddress, text: str) -> str:
    """Adds a message that waits for the next model call of the conversation's active turn. Returns its id.

    The turn's requests whose call has not started get it, too: their reviewers see it, and their revision grows.
    """
    message_id = new_id()
    await _show_to_reviewers(tx, address, message_id)
    waits = NewMessage(message_id, Role.USER, text, tokens=estimated_tokens(text))
    await write(tx, address, [NewEvent(MESSAGE_JOINED, {"message_id": message_id, "heard": False})], [waits])
    await tx.execute("UPDATE messages SET in_transcript = false, joins = '' WHERE id = $1", message_id)
    return message_id


# An approved call that has not started can still be withdrawn, or its request opened again.
_SHOW = """
UPDATE approvals SET joined_messages = joined_messages || $2::uuid, version = version + 1
WHERE turn_id = $1 AND (status = 'pending' OR (kind = 'approval' AND status IN ('approved', 'edited')))
RETURNING id, requested_by, cardinality(joined_messages) + 1 AS revision
"""


async def _show_to_reviewers(tx: Connection, address: TurnAddress, message_id: str) -> None:
    for row in await tx.fetch(_SHOW, address.turn_id, message_id):
        data: dict[str, JsonValue] = {"message_id": message_id, "revision": row["revision"]}
        actor = str(row["requested_by"])
        await audit.record(tx, "approval.message_joined", str(row["id"]), data, actor=actor, turn_id=address.turn_id)


async def read_joined(tx: Connection, turn_id: str, call_id: str) -> Joined:
    """Returns the messages that wait for a model call of the turn, and those that an earlier attempt of `call_id` took.

    `fresh` contains the ids of the waiting ones.
    """
    rows = await tx.fetch(
        "SELECT id, content, tokens, joins FROM messages WHERE turn_id = $1 AND joins IS NOT NULL "
        "AND joins IN ('', $2) ORDER BY seq",
        turn_id,
        call_id,
    )
    return Joined(
        tuple(
            MessageRef(id=str(row["id"]), role=Role.USER, text=preview(row["content"]), tokens=row["tokens"])
            for row in rows
        ),
        tuple(str(row["id"]) for row in rows if not row["joins"]),
    )


async def move_to_transcript(tx: Connection, conversation_id: str, call_id: str, fresh: tuple[str, ...]) -> NewEvent:
    """Moves these messages into the transcript, after all messages written in the meantime, as received by this model
    call. Returns the event for it.

    The caller holds the turn's lock; this call also takes the conversation's.
    """
    await tx.execute(
        "WITH behind AS (UPDATE conversations SET message_seq = message_seq + cardinality($2::uuid[]) WHERE id = $1 "
        "RETURNING message_seq - cardinality($2::uuid[]) AS before) "
        "UPDATE messages m SET seq = before + e.place, in_transcript = true, joins = $3 "
        "FROM behind, unnest($2::uuid[]) WITH ORDINALITY AS e(id, place) WHERE m.id = e.id",
        conversation_id,
        list(fresh),
        call_id,
    )
    return NewEvent(MESSAGE_JOINED, {"message_ids": [*fresh], "heard": True}, call_id)


_LEAVE = """
INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing, limits,
  metadata, system_prompt, message_id, through_seq, created_at, asked_how, asked_by)
SELECT $2, t.tenant_id, t.conversation_id, t.user_id, t.agent_id, t.agent_version, t.topology, $4, t.routing, $5,
  t.metadata, t.system_prompt, m.id, m.seq - 1, m.created_at, t.asked_how,
  t.asked_by
FROM turns t, messages m WHERE t.id = $1 AND m.id = $3 RETURNING agent_id
"""


async def queue_unreceived(tx: Connection, address: TurnAddress) -> str | None:
    """Turns the messages that no call received into a queued turn, as old as the first of them. Returns its id, or None
    if there are none.

    The first message starts the turn, and the others are added to it. It has the settings of the ending turn, except
    limits that a reviewer raised for that turn. The caller holds the turn's and the conversation's lock.
    """
    waiting = "SELECT id FROM messages WHERE turn_id = $1 AND joins = '' ORDER BY seq"
    ids = [str(row["id"]) for row in await tx.fetch(waiting, address.turn_id)]
    if not ids:
        return None
    turn_id = new_id()
    own, agents = await tx.fetchrow(
        "SELECT t.limits, v.body #> '{definition,limits}' FROM turns t LEFT JOIN agent_versions v "
        "ON v.agent_id = t.agent_id AND v.version = t.agent_version WHERE t.id = $1",
        address.turn_id,
    ) or ({}, None)
    limits = Limits.model_validate(own)
    if agents is not None:
        limits = tighten_limits(Limits.model_validate(agents, extra="ignore"), limits)
    agent_id = await tx.fetchval(
        _LEAVE, address.turn_id, turn_id, ids[0], TurnStatus.QUEUED.value, limits.model_dump(mode="json")
    )
    await tx.execute(
        "UPDATE messages SET turn_id = $1, joins = CASE WHEN id = $2 THEN NULL ELSE '' END WHERE id = ANY($3)",
        turn_id,
        ids[0],
        ids,
    )
    waits = NewEvent(QUEUED, {"agent": agent_id, "left_over_from": address.turn_id})
    await write(tx, address.model_copy(update={"turn_id": turn_id}), [waits])
    return turn_id
