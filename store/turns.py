"""Turns: started under their user's and their conversation's lock, stopped by a flag on their row."""

from dataclasses import dataclass, field

from pydantic import JsonValue

from contracts.agents import PublishedAgent
from contracts.errors import CallerError, InvariantBroken
from contracts.events import QUEUED, READY
from contracts.messages import Role
from contracts.turns import ENDED, Carried, FinishAsk, Limits, Routing, TurnAddress, TurnInput, TurnStatus
from policy.admission import Admission, Caps, Load, OnBusy, admit, too_many
from policy.budget import tightened
from policy.text import estimated_tokens
from store import audit
from store.database import Connection
from store.finish import finish
from store.ids import new_id
from store.journal import NewEvent, NewMessage, write
from store.outbox import HEAD_START, Note, Wake, put
from store.turn_views import WAITS_FOR


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to start in an existing conversation."""

    tenant_id: str
    conversation_id: str
    user_id: str
    message: str
    on_busy: OnBusy = OnBusy.REJECT
    limits: Limits | None = None
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    system_prompt: str | None = None
    routing: Routing = field(default_factory=Routing)


@dataclass(frozen=True, slots=True)
class Started:
    """A turn that is durable; `note` is its doorbell where it starts at once."""

    turn_id: str
    status: TurnStatus
    note: Note | None


_LOCK = """
SELECT c.active_turn_id, c.message_seq FROM users u, conversations c
WHERE u.id = $1 AND c.id = $2 AND c.deleted_at IS NULL
FOR NO KEY UPDATE OF u FOR UPDATE OF c
"""
"""The user's row before the conversation's: the user's starts count one after the other, and none of them holds up the
conversation's journal while it waits. NO KEY, as every row that names the user has a KEY SHARE lock on it."""
_COUNT = """
SELECT count(*) AS open_of_user, count(*) FILTER (WHERE status LIKE 'awaiting%') AS waiting_of_user,
  (SELECT count(*) FROM turns WHERE conversation_id = $2 AND status = 'queued') AS queued
FROM turns WHERE user_id = $1 AND ended_at IS NULL
"""
_START = f"""
WITH begun AS (
  INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing,
    limits, metadata, system_prompt, message_id, through_seq)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
), active AS (
  UPDATE conversations SET active_turn_id = $1 WHERE id = $3 AND $15
)
INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at)
SELECT $2, 'start', $1, '', now() + interval '{HEAD_START}' WHERE $15 RETURNING id
"""


async def start(tx: Connection, new: NewTurn, agent: PublishedAgent, caps: Caps) -> Started:
    """Insert the turn with its message, pinned versions and wake-up. After the commit it is durable.

    Raises: CallerError 404 `conversation_not_found`, 409 `conversation_busy`, 429 `queue_full`, `too_many_turns`.
    """
    conversation = await tx.fetchrow(_LOCK, new.user_id, new.conversation_id)
    if conversation is None:
        raise CallerError("conversation_not_found", "there is no such conversation", status=404)
    active = conversation["active_turn_id"]
    # Counted after the locks: a statement that waits for one sees what was there before.
    counted = await tx.fetchrow(_COUNT, new.user_id, new.conversation_id)
    if counted is None:
        raise InvariantBroken("nothing_counted", "a count came back without a row")
    load = Load(active is not None, counted["queued"], counted["open_of_user"], counted["waiting_of_user"])
    admission = admit(load, caps, new.on_busy)
    if admission is Admission.BUSY:
        raise await _busy(tx, str(active))
    if admission is Admission.TOO_MANY:
        raise too_many(load, caps)
    if admission is Admission.QUEUE_FULL:
        full = "as many turns wait in this conversation as may; wait for one to end"
        raise CallerError("queue_full", full, {"retry_after_seconds": 5}, status=429)
    turn_id, message_id = new_id(), new_id()
    status = TurnStatus.ACCEPTED if admission is Admission.START else TurnStatus.QUEUED
    limits = tightened(agent.definition.limits, new.limits)
    number = await tx.fetchval(
        _START,
        turn_id,
        new.tenant_id,
        new.conversation_id,
        new.user_id,
        agent.definition.id,
        agent.version,
        agent.definition.topology,
        status.value,
        new.routing.model_dump(mode="json"),
        limits.model_dump(mode="json"),
        new.metadata,
        new.system_prompt,
        message_id,
        conversation["message_seq"],
        status is TurnStatus.ACCEPTED,
    )
    address = TurnAddress(tenant_id=new.tenant_id, conversation_id=new.conversation_id, turn_id=turn_id)
    note = None
    if number is not None:
        begins = _input(address, agent.definition.id, agent.version, agent.definition.topology, new.routing)
        note = Note(number, new.tenant_id, Wake.START, turn_id, begins=begins)
    event = NewEvent(QUEUED if status is TurnStatus.QUEUED else READY, {"agent": agent.definition.id})
    message = NewMessage(message_id, Role.USER, new.message, tokens=estimated_tokens(new.message))
    await write(tx, address, [event], [message])
    if status is TurnStatus.QUEUED:  # not said yet: the turn before it must not hear it
        await tx.execute("UPDATE messages SET in_transcript = false WHERE id = $1", message_id)
    return Started(turn_id, status, note)


async def _busy(tx: Connection, turn_id: str) -> CallerError:
    row = await tx.fetchrow(f"SELECT status, {WAITS_FOR} FROM turns t WHERE id = $1", turn_id)
    details: dict[str, object] = {
        "turn_id": turn_id,
        "status": row["status"] if row else None,
        "waiting_for": row["waits_for"] if row else None,
    }
    return CallerError(
        "conversation_busy",
        "the conversation has an open turn; wait for it, or send on_busy=queue",
        details,
        status=409,
    )


async def workflow_input(tx: Connection, turn_id: str) -> TurnInput | None:
    """What the workflow of an open turn starts with; None where the turn is gone, queued or has ended."""
    row = await tx.fetchrow("SELECT * FROM turns WHERE id = $1", turn_id)
    if row is None or row["ended_at"] is not None or row["status"] == TurnStatus.QUEUED.value:
        return None
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["id"])
    )
    routing = Routing.model_validate(row["routing"])
    stopped = row["stop_requested_at"] is not None
    return _input(address, row["agent_id"], row["agent_version"], row["topology"], routing, stopped=stopped)


def _input(
    address: TurnAddress, agent_id: str, agent_version: str, topology: str, routing: Routing, *, stopped: bool = False
) -> TurnInput:
    return TurnInput(
        address=address,
        agent_id=agent_id,
        agent_version=agent_version,
        topology=topology,
        routing=routing,
        carried=Carried(state={}, requests=(), stop=True) if stopped else None,
    )


async def request_stop(tx: Connection, turn_id: str, user_id: str) -> tuple[TurnAddress, TurnStatus, Note | None]:
    """Set the stop flag, so that nothing new is claimed. Asked twice, or of an ended turn, it changes nothing.

    Raises: CallerError 404 `turn_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT status, stop_requested_at, tenant_id, conversation_id FROM turns WHERE id = $1 FOR UPDATE", turn_id
    )
    if row is None:
        raise CallerError("turn_not_found", "there is no such turn", status=404)
    status = TurnStatus(row["status"])
    address = TurnAddress(tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=turn_id)
    if status in ENDED or row["stop_requested_at"] is not None:
        return address, status, None
    await tx.execute("UPDATE turns SET stop_requested_at = clock_timestamp() WHERE id = $1", turn_id)
    await audit.record(tx, "turn.stop_requested", turn_id, {}, actor=user_id, turn_id=turn_id)
    if status is TurnStatus.QUEUED:  # nothing runs that could end it
        await finish(tx, FinishAsk(address=address, status=TurnStatus.STOPPED))
        return address, TurnStatus.STOPPED, None
    return address, status, await put(tx, address.tenant_id, Wake.STOP, turn_id)
