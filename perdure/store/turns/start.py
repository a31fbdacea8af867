"""Starts of turns under their user's and their conversation's lock, and stop requests as a flag on their row."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import asyncpg
from pydantic import JsonValue

from perdure.contracts.agents import PublishedAgent
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.events import QUEUED, READY, STAGE
from perdure.contracts.messages import Role
from perdure.contracts.turns import ENDED, FinishRequest, Limits, Routing, TurnAddress, TurnInput, TurnStatus
from perdure.core.agents.safety_keywords import Keywords, safety_keywords_in
from perdure.core.budgets import UsedStorage, check_bytes, tighten_limits
from perdure.core.identity import OWN_CREDENTIAL, Credential
from perdure.core.text import estimated_tokens
from perdure.core.turns import Admission, AdmissionLoad, Caps, OnBusy, admit, metadata_refusal, too_many
from perdure.graph import registry
from perdure.store import audit
from perdure.store.budgets import quota_columns
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import HEAD_START, Note, Wake, put
from perdure.store.events.event_log import NewEvent, NewMessage, write
from perdure.store.identity.origins import record_requesting
from perdure.store.turns.finish import finish
from perdure.store.turns.steer import add_message
from perdure.store.turns.views import WAITS_FOR

_TRIES = 5
"""The number of times that the active turn is read again. Before each repetition, an active turn has just ended."""
_LONG_CHARACTERS = 10_000
"""A longer text takes milliseconds to search, which must not block the event loop."""


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
    asked_with: Credential = OWN_CREDENTIAL
    """The user's credential. Its creators may be the ones who ask."""

    @property
    def beside_bytes(self) -> int:
        """The bytes that the turn stores in addition to its message."""
        texts = json.dumps(self.metadata, ensure_ascii=False) + (self.system_prompt or "")
        return len(texts.encode(errors="surrogatepass"))


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """A turn that is durable after the commit."""

    turn_id: str
    status: TurnStatus
    note: Note | None
    """The wake signal of its start if it starts at once, or of the stop of the turn that it replaces."""
    message_id: str
    joined: bool = False
    """True if the message was added to the open turn and waits for its next model call."""
    gives_way: TurnAddress | None = None
    """The turn that is asked to stop because this one replaces it."""


_LOCK = """
SELECT c.active_turn_id, c.message_seq FROM users u, conversations c
WHERE u.id = $1 AND c.id = $2 AND c.deleted_at IS NULL
FOR NO KEY UPDATE OF u FOR UPDATE OF c
"""
"""Locks the user's row before the conversation's. A user's starts are then counted one after the other. While they
wait, they do not block the conversation's event log.

NO KEY, because every row that refers to the user holds a KEY SHARE lock on it.
"""
_COUNT = f"""
SELECT count(*) AS open_of_user, count(*) FILTER (WHERE status LIKE 'awaiting%') AS waiting_of_user,
  (SELECT count(*) FROM turns WHERE conversation_id = $2 AND status = 'queued')
    + (SELECT count(*) FROM messages WHERE turn_id = $3 AND joins = '') AS queued,
  coalesce((SELECT stop_requested_at IS NOT NULL FROM turns WHERE id = $3), false) AS stopping,
  (SELECT count(*) FROM turns a, turns w WHERE a.id = $3 AND w.id IN (a.id, a.replaced_by)
    AND w.ended_at IS NULL AND w.user_id = $1) AS gives_way,
  {quota_columns("$1", "$2")}
FROM turns WHERE user_id = $1 AND ended_at IS NULL
"""
_START = f"""
WITH begun AS (
  INSERT INTO turns (id, tenant_id, conversation_id, user_id, agent_id, agent_version, topology, status, routing,
    limits, metadata, system_prompt, message_id, through_seq, asked_how, asked_by)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $16, $17::uuid[])
), active AS (
  UPDATE conversations SET active_turn_id = $1 WHERE id = $3 AND $15
)
INSERT INTO outbox (tenant_id, kind, turn_id, request_id, due_at)
SELECT $2, 'start', $1, '', now() + interval '{HEAD_START}' WHERE $15 RETURNING id
"""


async def start_turn(tx: Connection, new: NewTurn, agent: PublishedAgent, caps: Caps) -> StartedTurn:
    """Inserts the turn with its message, pinned versions and wake signal. `steer` joins the open turn instead.

    A message with safety keywords is never queued or rejected because the conversation is busy or a limit is reached.
    If its turn cannot start at once, it is answered at once.

    Raises: CallerError 404 `conversation_not_found`, 409 `conversation_busy`, 429 `queue_full`, `too_many_turns`,
    `quota_reached`, 422 `bad_input_type`, `bad_trace_id`.
    """
    fault = metadata_refusal(agent.definition.topology, new.metadata)
    if fault is not None:
        raise fault
    active, message_seq = await _lock_conversation(tx, new)
    # Counted after the locks: a statement that waits for a lock sees the rows as they were before the wait.
    counted = await tx.fetchrow(_COUNT, new.user_id, new.conversation_id, active)
    if counted is None:
        raise InvariantBroken("nothing_counted", "a count returned no row")
    load = _load(new, counted, busy=active is not None)
    admission = admit(load, caps, new.on_busy)
    if admission not in (Admission.START, Admission.REPLACE):
        category = await safety_category(tx, new.conversation_id, new.message, agent)
        if category:
            return await _answer_separately(tx, new, agent, message_seq, category)
    if admission is Admission.BUSY:
        raise await _busy_error(tx, str(active))
    if admission is Admission.TOO_MANY:
        raise too_many(load, caps)
    if admission is Admission.QUOTA:
        check_bytes(load.used, caps.quotas, load.message_bytes)
    if admission is Admission.QUEUE_FULL:
        full = "This conversation's queue is full; retry when a turn ends"
        raise CallerError("queue_full", full, {"retry_after_seconds": 5}, status=429)
    if admission is Admission.JOIN and active is not None:
        return await _steer_turn(tx, new, active)
    first = Admission.START if admission is Admission.START else Admission.QUEUE
    started = await _insert(tx, new, agent, message_seq, first)
    if admission is Admission.REPLACE and active is not None:
        way = TurnAddress(tenant_id=new.tenant_id, conversation_id=new.conversation_id, turn_id=active)
        return replace(started, note=await stop_for_replacement(tx, way, started.turn_id, new.user_id), gives_way=way)
    return started


def _load(new: NewTurn, counted: asyncpg.Record, *, busy: bool) -> AdmissionLoad:
    sizes = ("conversation_bytes", "user_bytes", "tenant_bytes")
    counts = {name: value for name, value in counted.items() if name not in sizes}
    used = UsedStorage(*(counted[name] for name in sizes))
    message_bytes = len(new.message.encode(errors="surrogatepass")) + new.beside_bytes
    return AdmissionLoad(busy=busy, used=used, message_bytes=message_bytes, **counts)


async def _lock_conversation(tx: Connection, new: NewTurn) -> tuple[str | None, int]:
    """Returns the conversation's active turn and the number of its last message, under its lock. A turn that receives
    this message or is replaced by it is locked first."""
    locks_turn_first = new.on_busy in (OnBusy.STEER, OnBusy.REPLACE)
    for _ in range(_TRIES):
        held = None
        if locks_turn_first:
            await tx.execute("SAVEPOINT looking")
            held = await lock_active_turn(tx, new.conversation_id)
        conversation = await tx.fetchrow(_LOCK, new.user_id, new.conversation_id)
        if conversation is None:
            raise CallerError("conversation_not_found", "Conversation not found", status=404)
        active = str(conversation["active_turn_id"]) if conversation["active_turn_id"] is not None else None
        if not locks_turn_first or active in (None, held):
            return active, conversation["message_seq"]
        await tx.execute("ROLLBACK TO SAVEPOINT looking")  # Releases all these locks.
    raise await _busy_error(tx, str(active))


async def _steer_turn(tx: Connection, new: NewTurn, active: str) -> StartedTurn:
    address = TurnAddress(tenant_id=new.tenant_id, conversation_id=new.conversation_id, turn_id=active)
    message_id = await add_message(tx, address, new.message)
    status = await record_requesting(tx, active, new.asked_with)
    return StartedTurn(active, status, None, message_id, joined=True)


async def _answer_separately(
    tx: Connection, new: NewTurn, agent: PublishedAgent, message_seq: int, category: str
) -> StartedTurn:
    """Starts a separate turn in addition to the open one and completes it in the same transaction."""
    started = await _insert(tx, new, agent, message_seq, None)
    own = TurnAddress(tenant_id=new.tenant_id, conversation_id=new.conversation_id, turn_id=started.turn_id)
    await answer_queued(tx, own, agent, category)
    return replace(started, status=TurnStatus.COMPLETED)


def _workflow_input(address: TurnAddress, new: NewTurn, agent: PublishedAgent) -> TurnInput:
    """Returns the input of the turn's workflow."""
    return TurnInput(
        address=address,
        agent_id=agent.definition.id,
        agent_version=agent.version,
        topology=agent.definition.topology,
        topology_version=registry.spec(agent.definition.topology).version,
        routing=new.routing,
    )


async def _insert(
    tx: Connection, new: NewTurn, agent: PublishedAgent, message_seq: int, first: Admission | None
) -> StartedTurn:
    """Inserts the turn with its message. `first` is START to start it, QUEUE to queue it, or None if it is answered at
    once and no workflow starts."""
    at_once, waits = first is Admission.START, first is Admission.QUEUE
    turn_id, message_id = new_id(), new_id()
    status = TurnStatus.ACCEPTED if at_once else TurnStatus.QUEUED
    limits = tighten_limits(agent.definition.limits, new.limits)
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
        message_seq,
        at_once,
        new.asked_with.how.value,
        new.asked_with.created_by,
    )
    address = TurnAddress(tenant_id=new.tenant_id, conversation_id=new.conversation_id, turn_id=turn_id)
    note = None
    if number is not None:
        note = Note(number, new.tenant_id, Wake.START, turn_id, begins=_workflow_input(address, new, agent))
    event = NewEvent(QUEUED if waits else READY, {"agent": agent.definition.id, "run_id": turn_id})
    message = NewMessage(message_id, Role.USER, new.message, tokens=estimated_tokens(new.message))
    await write(tx, address, [event], [message], beside_bytes=new.beside_bytes)
    if waits:  # The message is not in the transcript yet: the turn before it must not receive it.
        await tx.execute("UPDATE messages SET in_transcript = false WHERE id = $1", message_id)
    return StartedTurn(turn_id, status, note, message_id)


async def _busy_error(tx: Connection, turn_id: str) -> CallerError:
    row = await tx.fetchrow(f"SELECT status, {WAITS_FOR} FROM turns t WHERE id = $1", turn_id)
    details: dict[str, object] = {
        "turn_id": turn_id,
        "status": row["status"] if row else None,
        "waiting_for": row["waits_for"] if row else None,
    }
    return CallerError(
        "conversation_busy",
        "The conversation has an open turn; wait for it, or send on_busy: queue, steer or replace",
        details,
        status=409,
    )


async def request_stop(tx: Connection, turn_id: str, user_id: str) -> tuple[TurnAddress, TurnStatus, Note | None]:
    """Sets the stop flag, so that no new call is claimed. It changes nothing if the turn has ended or was already asked
    to stop.

    Raises: CallerError 404 `turn_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT status, stop_requested_at, tenant_id, conversation_id FROM turns WHERE id = $1 FOR UPDATE", turn_id
    )
    if row is None:
        raise CallerError("turn_not_found", "Turn not found", status=404)
    status = TurnStatus(row["status"])
    address = TurnAddress(tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=turn_id)
    if status in ENDED or row["stop_requested_at"] is not None:
        return address, status, None
    await tx.execute("UPDATE turns SET stop_requested_at = clock_timestamp() WHERE id = $1", turn_id)
    await audit.record(tx, "turn.stop_requested", turn_id, {}, actor=user_id, turn_id=turn_id)
    if status is TurnStatus.QUEUED:  # A queued turn has no workflow that could end it.
        await finish(tx, FinishRequest(address=address, status=TurnStatus.STOPPED))
        return address, TurnStatus.STOPPED, None
    return address, status, await put(tx, address.tenant_id, Wake.STOP, turn_id)


async def lock_active_turn(tx: Connection, conversation_id: str) -> str | None:
    """Locks the active turn and the turn that replaces it. Returns the active turn's id, or None if there is no active
    turn.

    Another turn may be active by the time the conversation is locked. The locks are then on the wrong turns.

    Lock order: the active turn, the turn that was to replace it, then user and conversation, as everywhere.
    """
    active = await tx.fetchrow(
        "SELECT t.id, t.replaced_by FROM conversations c JOIN turns t ON t.id = c.active_turn_id WHERE c.id = $1 "
        "FOR UPDATE OF t",
        conversation_id,
    )
    if active is None:
        return None
    await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", active["replaced_by"])
    return str(active["id"])


async def stop_for_replacement(tx: Connection, active: TurnAddress, to: str, user_id: str) -> Note:
    """Asks the active turn to stop for the queued turn `to`. Returns the stop's wake signal. The caller holds all
    locks. If several turns replace the same turn, only the last one runs. Each earlier one ends as replaced without
    having run. The replaced turn ends at its own pace, and its end admits the new one
    (`perdure/store/turns/finish.py`). Its pending requests are cancelled and audited then."""
    before = await tx.fetchval(
        "SELECT r.id FROM turns t JOIN turns r ON r.id = t.replaced_by AND r.ended_at IS NULL WHERE t.id = $1",
        active.turn_id,
    )
    await tx.execute(
        "UPDATE turns SET replaced_by = $2, stop_requested_at = coalesce(stop_requested_at, clock_timestamp()) "
        "WHERE id = ANY(ARRAY[$1, $3]::uuid[])",
        active.turn_id,
        to,
        before,
    )
    await audit.record(
        tx, "turn.stop_requested", active.turn_id, {"replaced_by": to}, actor=user_id, turn_id=active.turn_id
    )
    if before is not None:  # A queued turn has no workflow that could end it.
        other = active.model_copy(update={"turn_id": str(before)})
        await finish(tx, FinishRequest(address=other, status=TurnStatus.STOPPED))
    return await put(tx, active.tenant_id, Wake.STOP, active.turn_id)


async def safety_category(tx: Connection, conversation_id: str, message: str, agent: PublishedAgent) -> str:
    """Returns the category of the safety keywords in a new message, alone or together with the user's last message. It
    is empty if there is none, or if the agent has no safety keywords."""
    assembly = agent.definition.assembly
    if assembly is None or not assembly.danger:
        return ""
    last = "SELECT content FROM messages WHERE conversation_id = $1 AND role = 'user' ORDER BY seq DESC LIMIT 1"
    return await find_safety_keywords(message, await tx.fetchval(last, conversation_id) or "", assembly.danger)


async def find_safety_keywords(message: str, before: str, words: Keywords) -> str:
    """Calls `safety_keywords_in` without blocking the event loop."""
    if len(message) + len(before) < _LONG_CHARACTERS:
        return safety_keywords_in(message, before, words)
    return await asyncio.to_thread(safety_keywords_in, message, before, words)


async def answer_queued(tx: Connection, address: TurnAddress, agent: PublishedAgent, category: str) -> None:
    """Ends the queued turn with the fixed text. It writes the same two stage events as any other turn, although no node
    has run. The text is its agent's. The answer is a separate turn that ends in the same transaction. The open turn and
    its pending requests are not affected (ADR 25)."""
    assembly = agent.definition.assembly
    if assembly is None:
        return
    verdict: dict[str, JsonValue] = {"intent": assembly.default_intent, "safety_hijacked": True}
    checked = NewEvent(STAGE, {"stage": "preflight", **verdict, "safety_category": category, "at_once": True})
    await write(tx, address, [checked, NewEvent(STAGE, {"stage": "safety_intervention", "category": category})])
    await finish(tx, FinishRequest(address=address, status=TurnStatus.COMPLETED, answer=assembly.intervention))
