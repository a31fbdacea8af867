"""The ledger of tool calls: planned, reserved, settled. It contains the SQL; the rules are in
perdure/core/calls/ledger.py.

Every reservation locks the turn's row first, so that nothing is reserved after the turn has ended or was stopped.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg
from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import CallState, EffectClass, ToolCall
from perdure.contracts.ids import effect_key
from perdure.contracts.values import digest_of, frozen_call_digest
from perdure.core.approvals.gates import RULE_EXEMPTED
from perdure.core.approvals.validity import ApprovalValidity
from perdure.core.calls.hangs import OpenCall
from perdure.core.calls.ledger import Attempt, LockedTurn, RecordedClaim, Reservation, may_be_resumed
from perdure.store import audit
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, NewMessage, write

MAX_AUDITED_RESULT_CHARACTERS = 2_000
"""Maximum length of a result in the audit trail; the turn's message contains all of it."""
_OUTSIDE = frozenset({EffectClass.KEYED, EffectClass.OPAQUE})
_RAN = frozenset({CallState.DONE, CallState.FAILED, CallState.OUTCOME_UNKNOWN})


@dataclass(frozen=True, slots=True)
class LockedCall:
    """A tool call and its turn, locked for this transaction."""

    turn: LockedTurn
    row: Reservation
    tool_version: str
    args: dict[str, JsonValue]
    key: str
    outcome: dict[str, JsonValue] | None
    approval: ApprovalValidity | None
    user_id: str
    now: datetime
    errors: int
    """Failures of earlier attempts. A worker's crash is not counted."""
    published_version: str
    """The version of the published agent; empty if the agent is no longer published."""
    exempt_tools: tuple[str, ...]
    """The exempt tools of the turn, which run without the approval that their cards require."""
    is_given_back: bool
    """True if the last attempt gave the call back (`give_back`)."""
    ends: list[dict[str, JsonValue]]
    """Knowledge of the failed attempts that may have reached the target, newest first: code, sentence and failure."""

    def for_card(self, card: ToolCard | None) -> "LockedCall":
        """Returns the call with the limits of the card with which it runs."""
        if card is None:
            return self
        row = replace(self.row, key_ttl_seconds=card.key_ttl_seconds, timeout_seconds=card.timeout_seconds)
        return replace(self, row=row)

    def may_be_resumed(self, attempt: Attempt, card: ToolCard | None) -> bool:
        """Returns whether a worker with the call's version could run it after a lost attempt. `card` is that of the
        call's agent. If it has another version, the lifetime of the call's key is not known, and does not count."""
        is_known = card is not None and card.is_version(self.tool_version)
        row = self.for_card(card).row if is_known else replace(self.row, first_sent_at=None)
        return may_be_resumed(self.turn, row, attempt, self.now)

    def is_held_by(self, epoch: int) -> bool:
        """Returns whether the attempt of this epoch owns the call, and its turn continues."""
        held = self.row.held if self.row.state is CallState.RESERVED else None
        return held is not None and held.epoch == epoch and not (self.turn.ended or self.turn.stopped)


_READ = """
SELECT t.ended_at IS NOT NULL AS ended, t.stop_requested_at IS NOT NULL AS stopped, t.tenant_id, t.user_id, c.state,
  t.waived_tools,
  c.effect, c.epoch, c.voided, c.run_id, c.attempt, c.errors, c.first_sent_at, c.deadline, c.tool, c.tool_version,
  c.args, c.key, c.outcome, c.ends, cardinality(c.hung_epochs) AS hung,
  clock_timestamp() AS now, a.id AS approval_id, a.status AS approval_status,
  a.tool_version AS approved_version, a.args AS frozen_args, a.digest AS approved_digest, a.nonce, a.decision,
  a.withdrawal, a.policy_digest, a.ready_at, a.kind, a.risk,
  (SELECT version FROM agents g WHERE g.agent_id = c.agent_id) AS published_version
FROM turns t JOIN tool_calls c ON c.turn_id = t.id AND c.call_id = $2
  LEFT JOIN approvals a ON a.turn_id = c.turn_id AND a.call_id = c.call_id
WHERE t.id = $1 FOR UPDATE OF t
"""


async def lock(tx: Connection, call: ToolCall) -> LockedCall | None:
    """Returns the call with its turn and its approval, or None if no such call was planned. `tx` must hold the turn's
    lock. The limits of its card are not in it (`LockedCall.for_card`)."""
    row = await tx.fetchrow(_READ, call.address.turn_id, call.ask.call_id)
    if row is None:
        return None
    state = CallState(row["state"])
    was_claimed = row["run_id"] or row["epoch"]  # a call that was reopened has no attempt, but keeps its epoch
    held = RecordedClaim(row["epoch"], Attempt(row["run_id"], row["attempt"]), False) if was_claimed else None
    return LockedCall(
        LockedTurn(row["ended"], row["stopped"]),
        Reservation(
            state,
            held,
            EffectClass(row["effect"]),
            row["first_sent_at"],
            lost=row["epoch"] - row["errors"] - row["voided"],
            hung=row["hung"],
        ),
        row["tool_version"],
        row["args"],
        row["key"],
        row["outcome"],
        _approval_of(row, call) if row["approval_id"] is not None else None,
        str(row["user_id"]),
        row["now"],
        row["errors"],
        row["published_version"] or "",
        tuple(row["waived_tools"]),
        bool(row["run_id"]) and row["deadline"] is None,
        row["ends"],
    )


_PLAN = """
INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect, args,
  digest)
SELECT tenant_id, id, $2, conversation_id, $3, $4, $5, $6, $7, $8, $9 FROM turns WHERE id = $1
ON CONFLICT (turn_id, call_id) DO NOTHING
"""


async def plan(tx: Connection, call: ToolCall, card: ToolCard) -> None:
    """Adds a call that the graph itself makes to the ledger. `tx` must hold the turn's lock, or take it next."""
    turn_id, call_id, args = call.address.turn_id, call.ask.call_id, call.ask.args or {}
    key = effect_key(turn_id, call_id)
    named = (call_id, call.agent_id, key, card.name, card.version, card.effect.value)
    await tx.execute(_PLAN, turn_id, *named, args, digest_of(args))


@dataclass(frozen=True, slots=True)
class PlannedCallRow:
    """A call that has not started, or the outcome of one that was refused before it started."""

    call_id: str
    agent_id: str
    tool: str
    tool_version: str
    args: dict[str, JsonValue]
    outcome: dict[str, JsonValue] | None


async def read_planned(tx: Connection, turn_id: str, call_ids: Sequence[str]) -> list[PlannedCallRow]:
    """Returns those of these calls of an open turn that are planned or failed, in the given order."""
    rows = await tx.fetch(
        "SELECT c.call_id, c.agent_id, c.tool, c.tool_version, c.args, c.outcome FROM tool_calls c "
        "JOIN turns t ON t.id = c.turn_id WHERE c.turn_id = $1 AND c.call_id = ANY($2) AND t.ended_at IS NULL "
        "AND c.state IN ('planned', 'failed') ORDER BY array_position($2, c.call_id)",
        turn_id,
        list(call_ids),
    )
    return [PlannedCallRow(**row) for row in rows]


async def fail_planned(tx: Connection, turn_id: str, outcomes: Mapping[str, dict[str, JsonValue]]) -> set[str]:
    """Settles planned calls of an open turn as failed, without a start: `outcomes` by call id. Returns the ids of the
    calls that it settled. Takes the turn's lock."""
    await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", turn_id)
    rows = await tx.fetch(
        "UPDATE tool_calls c SET state = 'failed', outcome = $3::jsonb->c.call_id, settled_at = now() FROM turns t "
        "WHERE t.id = c.turn_id AND t.ended_at IS NULL AND c.turn_id = $1 AND c.call_id = ANY($2) "
        "AND c.state = 'planned' RETURNING c.call_id",
        turn_id,
        list(outcomes),
        dict(outcomes),
    )
    return {row["call_id"] for row in rows}


def _approval_of(row: asyncpg.Record, call: ToolCall) -> ApprovalValidity:
    """Returns the approval of the call, with its digest recomputed from the stored values."""
    decision = row["decision"] or {}
    args = decision["args"] if "args" in decision else row["frozen_args"]
    recomputed_digest = frozen_call_digest(
        tenant_id=row["tenant_id"],
        turn_id=call.address.turn_id,
        call_id=call.ask.call_id,
        tool=row["tool"],
        tool_version=row["approved_version"],
        args=args,
        nonce=row["nonce"],
    )
    record = row["withdrawal"] or decision
    return ApprovalValidity(
        str(row["approval_id"]),
        row["approval_status"],
        row["approved_version"],
        args,
        recomputed_digest == (decision.get("digest") or row["approved_digest"]),
        record.get("comment") or record.get("reason_code") or "",
        "args" in decision,
        row["policy_digest"],
        row["ready_at"],
        row["kind"],
        row["risk"],
    )


async def reserve(
    tx: Connection,
    call: ToolCall,
    locked: LockedCall,
    attempt: Attempt,
    deadline: datetime,
    card: ToolCard,
    event: NewEvent,
) -> int:
    """Makes `attempt` the owner of the call and returns its epoch. An approval of the call is reserved with it.
    `card` is the card of the tool that runs; its version is recorded. `event` is not written again for a call that was
    released without an attempt.

    The attempt can send until `deadline`. What it has sent can act for the tool's timeout after that (`quiet_at`).
    """
    epoch = locked.row.held.epoch + 1 if locked.row.held else 1
    await tx.execute(
        "WITH held AS (UPDATE approvals SET status = 'reserved', version = version + 1 "
        "WHERE id = $7 AND status IN ('approved', 'edited') "
        "AND turn_id = $1), going AS (UPDATE turns SET status = 'running', waiting = NULL "
        "WHERE id = $1 AND status <> 'running') "
        "UPDATE tool_calls SET state = 'reserved', epoch = $3, run_id = $4, attempt = $5, deadline = $6, "
        "awaits_worker_since = NULL, "
        "quiet_at = $6::timestamptz + make_interval(secs => $8), "
        "first_sent_at = coalesce(first_sent_at, clock_timestamp()), tool_version = $9 "
        "WHERE turn_id = $1 AND call_id = $2",
        call.address.turn_id,
        call.ask.call_id,
        epoch,
        attempt.run_id,
        attempt.number,
        deadline,
        locked.approval.approval_id if locked.approval else None,
        card.timeout_seconds,
        locked.tool_version if card.is_version(locked.tool_version) else card.version,
    )
    await write(tx, call.address, [] if locked.is_given_back else [event], pending=call.events)
    return epoch


async def await_worker(tx: Connection, turn_id: str, call_ids: Collection[str]) -> None:
    """Records that these calls wait for a worker that has their tools in the calls' versions. Their turn still shows
    that it waits for people, if other calls do. A call whose reviewers were asked again in the meantime does not wait
    for a worker. `tx` must hold the turn's lock."""
    await tx.execute(
        "WITH going AS (UPDATE turns t SET status = 'running', waiting = NULL "
        "WHERE id = $1 AND status <> 'running' AND ended_at IS NULL "
        "AND NOT EXISTS (SELECT FROM approvals a WHERE a.turn_id = t.id AND a.status = 'pending') "
        "AND NOT EXISTS (SELECT FROM tool_calls c WHERE c.turn_id = t.id AND c.state = 'outcome_unknown')) "
        "UPDATE tool_calls c SET awaits_worker_since = clock_timestamp() FROM turns t "
        "WHERE t.id = c.turn_id AND t.ended_at IS NULL AND c.turn_id = $1 AND c.call_id = ANY($2) "
        "AND c.state IN ('planned', 'reserved') AND c.awaits_worker_since IS NULL "
        "AND NOT EXISTS (SELECT FROM approvals a "
        "WHERE a.turn_id = c.turn_id AND a.call_id = c.call_id AND a.status = 'pending')",
        turn_id,
        list(call_ids),
    )


async def end_wait(tx: Connection, turn_id: str, call_ids: Collection[str]) -> None:
    """Records that these calls no longer wait for a worker."""
    await tx.execute(
        "UPDATE tool_calls SET awaits_worker_since = NULL WHERE turn_id = $1 AND call_id = ANY($2) "
        "AND awaits_worker_since IS NOT NULL",
        turn_id,
        list(call_ids),
    )


async def still_owned(tx: Connection, call: ToolCall, epoch: int) -> bool:
    """Returns whether `epoch` can still send. It must be checked immediately before sending, because a frozen worker
    may have lost the call."""
    return bool(
        await tx.fetchval(
            "SELECT true FROM tool_calls c JOIN turns t ON t.id = c.turn_id WHERE c.turn_id = $1 AND c.call_id = $2 "
            "AND c.epoch = $3 AND c.state = 'reserved' AND clock_timestamp() < c.deadline AND t.ended_at IS NULL "
            "AND t.stop_requested_at IS NULL",
            call.address.turn_id,
            call.ask.call_id,
            epoch,
        )
    )


async def count_lost(tx: Connection, call: ToolCall) -> None:
    """Records that an attempt that no longer owned the call tried to settle it."""
    await tx.execute(
        "UPDATE tool_calls SET lost_settles = lost_settles + 1 WHERE turn_id = $1 AND call_id = $2",
        call.address.turn_id,
        call.ask.call_id,
    )


async def count_hang(tx: Connection, call: OpenCall) -> None:
    """Records that an attempt of the call made its worker hang. Repeating it changes nothing."""
    await tx.execute(
        "UPDATE tool_calls SET hung_epochs = array_append(hung_epochs, $3::int) WHERE turn_id = $1 AND call_id = $2 "
        "AND $3::int <= epoch AND $3::int <> ALL(hung_epochs)",
        call.turn_id,
        call.call_id,
        call.epoch,
    )


async def count_error(tx: Connection, call: ToolCall, epoch: int, ends: list[dict[str, JsonValue]]) -> None:
    """Counts a failed attempt that will be repeated. The reservation remains. `ends` is what is known of the attempts
    that may have reached the target, newest first."""
    await tx.execute(
        "UPDATE tool_calls SET errors = errors + 1, ends = $4 WHERE turn_id = $1 AND call_id = $2 AND epoch = $3",
        call.address.turn_id,
        call.ask.call_id,
        epoch,
        ends,
    )


_FREE = """
WITH locked AS (SELECT id FROM turns WHERE id = $1 FOR UPDATE),
freed AS (
  UPDATE tool_calls SET state = 'planned', first_sent_at = NULL, {counts} FROM locked
  WHERE turn_id = locked.id AND call_id = $2 AND epoch = $3 AND state = 'reserved' RETURNING turn_id, call_id
)
UPDATE approvals a SET status = CASE WHEN a.decision ? 'args' THEN 'edited' ELSE 'approved' END, version = version + 1
FROM freed f WHERE a.turn_id = f.turn_id AND a.call_id = f.call_id AND a.status = 'reserved'
"""
_RELEASE = _FREE.format(counts="errors = errors + 1")
_GIVE_BACK = _FREE.format(counts="epoch = epoch - 1, deadline = NULL")


async def release(tx: Connection, call: ToolCall, epoch: int) -> None:
    """Releases a reservation if nothing was sent. It counts as a failed attempt."""
    await tx.execute(_RELEASE, call.address.turn_id, call.ask.call_id, epoch)


async def give_back(tx: Connection, call: ToolCall, epoch: int) -> None:
    """Releases a reservation if nothing was sent, as if it had not been made: the attempt counts neither as failed nor
    as lost. Only the attempt that owns `epoch` may call this, and it must not use the epoch afterwards, because the
    next attempt gets it again."""
    await tx.execute(_GIVE_BACK, call.address.turn_id, call.ask.call_id, epoch)


_SETTLE = """
WITH locked AS (SELECT id, ended_at, user_id, waived_tools FROM turns WHERE id = $1 FOR UPDATE),
mine AS (
  UPDATE tool_calls SET state = $4, outcome = $5, settled_at = CASE WHEN $4 = 'outcome_unknown' THEN NULL ELSE now() END
  FROM locked WHERE turn_id = locked.id AND call_id = $2 AND epoch = $3
    -- Its owner may still say what became of a call that was given up as unknown, until a person has.
    AND (state IN ('planned', 'reserved')
      OR (state = 'outcome_unknown' AND settled_by IS NULL AND $4 IN ('done', 'failed')))
    AND (locked.ended_at IS NULL OR effect <> 'local')
    RETURNING turn_id, call_id, locked.ended_at, locked.user_id, key, tool, effect, args,
    tool = ANY(locked.waived_tools) AS waived
), lost AS (
  UPDATE tool_calls SET lost_settles = lost_settles + 1
  WHERE turn_id = $1 AND call_id = $2 AND NOT EXISTS (SELECT FROM mine)
), closed AS (
  UPDATE approvals a SET status = $4, version = version + 1 FROM mine
  WHERE a.turn_id = mine.turn_id AND a.call_id = mine.call_id AND a.status IN ('reserved', 'outcome_unknown')
    AND $4 IN ('done', 'failed', 'outcome_unknown')
  RETURNING a.id, coalesce(a.decision->'args', a.args) AS args
)
SELECT ended_at IS NOT NULL AS ended, user_id, mine.call_id, key, tool, effect, waived, id AS approval_id,
  coalesce(closed.args, mine.args) AS args FROM mine LEFT JOIN closed ON true
"""


async def settle(
    tx: Connection,
    call: ToolCall,
    epoch: int,
    state: CallState,
    outcome: dict[str, JsonValue] | None,
    message: NewMessage | None,
    events: list[NewEvent],
) -> bool:
    """Records the result of a call if `epoch` still owns it. Otherwise counts a lost settle and returns False."""
    turn_id, call_id = call.address.turn_id, call.ask.call_id
    row = await tx.fetchrow(_SETTLE, turn_id, call_id, epoch, state.value, outcome)
    if row is None:
        return False
    await record_outcome(tx, turn_id, row, state, message.content if message else None, exempt=row["waived"])
    if not row["ended"]:  # `done` is the last event of an ended turn
        await write(tx, call.address, events, [message] if message else [])
    return True


async def record_outcome(
    tx: Connection, turn_id: str, row: asyncpg.Record, state: CallState, result: str | None, *, exempt: bool = False
) -> None:
    """Appends the outcome of the call to the audit trail, in the transaction that records it. Without a result, pass
    None as `result`.

    `row` contains call_id, key, tool, effect and the args that ran, and the turn's user_id. Its approval_id is the
    approval of the call, or None if it needed none. `exempt` is true if the tool was exempt.

    An outcome contains the tool, the arguments and the result. An approved call is recorded under its approval. A call
    without an approval is recorded under its effect, as its user's, if it changes a target or was exempt. Other calls
    without an approval, which change only this database, are not recorded here.
    """
    args: dict[str, JsonValue] = row["args"]
    body: dict[str, JsonValue] = {
        "call_id": row["call_id"],
        "tool": row["tool"],
        "args": args,
        "args_digest": digest_of(args),
        "state": state.value,
        "result": None if result is None else result[:MAX_AUDITED_RESULT_CHARACTERS],
    }
    if row["approval_id"] is not None:
        await audit.record(tx, "call.settled", str(row["approval_id"]), body, actor=None, turn_id=turn_id)
    elif exempt and state in _RAN:
        data = {**body, "rule": RULE_EXEMPTED}
        await audit.record(tx, "call.ran", row["key"], data, actor=str(row["user_id"]), turn_id=turn_id)
    elif row["effect"] in _OUTSIDE and state in _RAN:
        await audit.record(tx, "call.ran", row["key"], body, actor=str(row["user_id"]), turn_id=turn_id)
