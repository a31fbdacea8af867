"""Model calls: claimed, then settled once. A settled call is never paid for again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date

import asyncpg
from pydantic import JsonValue

from perdure.contracts.agents import DayLimits
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.errors import LimitReached, Problem
from perdure.contracts.events import GENERATION_START
from perdure.contracts.messages import NO_JOINED_MESSAGES, Joined
from perdure.contracts.turns import Limits, TurnStatus, Usage
from perdure.core.budgets import answer_token_limit, spent_limit
from perdure.core.calls.ledger import Attempt, Claim, LockedTurn, RecordedClaim, claim
from perdure.store import budgets
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent, NewMessage, write


@dataclass(frozen=True, slots=True)
class PastMessages:
    """The size of a conversation before a turn."""

    through_seq: int = 0
    """The `seq` of the last message before the turn; 0 if there is none."""
    messages: int = 0
    tokens: int = 0
    first_user: int = 0
    """The `seq` of the first user message; 0 if there is none."""
    has_requests: bool = False
    """True if another turn has requested an approval or a review."""


@dataclass(frozen=True, slots=True)
class ModelClaim:
    """The result of a claim: permission to act with `epoch`, or the stored reply."""

    verdict: Claim
    model: str = ""
    """The model to call: the agent's, or its fallback model after the agent's model failed."""
    epoch: int = 0
    errors: int = 0
    """Provider errors of earlier attempts. A worker's crash is not counted."""
    reply: ModelReply | None = None
    past: PastMessages = field(default_factory=PastMessages)
    """The conversation before the turn."""
    has_requests: bool = False
    """True if the turn has requested an approval or a review."""
    system_prompt: str | None = None
    memory_text: str | None = None
    persona: str = ""
    """The prompt template's text that the turn is pinned to; empty if the agent's own persona applies."""
    compacted: bool = False
    """True if an earlier attempt was too long for the model: this one sends half of the conversation."""
    on_fallback: bool = False
    """True if an earlier attempt gave up the agent's own model."""
    day_limits: DayLimits | None = None
    """The tenant's daily limits, for all of its agents together."""
    lost: bool = False
    """True if an earlier attempt ended without a result and must be counted first. Nothing is claimed then."""
    published_limits: DayLimits | None = None
    """The agent's published daily limits, if the turn is pinned to another version. Empty if that version has none."""
    most_tokens: int | None = None
    """The maximum number of tokens of the answer (see perdure/core/budgets.py)."""
    left_microusd: int | None = None
    """The rest of the turn's money."""
    is_joined: bool = False
    """True if this call must receive messages that the user sent during the turn. The caller reads them."""
    joined: Joined = NO_JOINED_MESSAGES
    """The messages of that kind, after the caller has read them."""
    turn_seconds: float = 0.0
    """Seconds since the turn was requested."""
    day: date = date.min
    """The day of the claim; the call counts in the budgets of this day."""
    assumed: Usage = field(default_factory=Usage)
    """The usage that counts if the attempt ends without a result. The caller that begins the call sets it."""


PAST_OF_TURN = """
SELECT jsonb_build_object('through_seq', t.through_seq, 'messages', count(*), 'tokens', coalesce(sum(p.tokens), 0),
  'first_user', coalesce(min(p.seq) FILTER (WHERE p.role = 'user'), 0), 'has_requests',
  EXISTS (SELECT FROM approvals a WHERE a.conversation_id = t.conversation_id AND a.turn_id <> t.id))
FROM messages p WHERE p.conversation_id = t.conversation_id AND p.seq <= t.through_seq AND p.in_transcript
"""
"""A subselect of the fields of `PastMessages` for the turn `t`."""
_CLAIM = f"""
SELECT t.ended_at IS NOT NULL AS ended, t.stop_requested_at IS NOT NULL AS stopped, t.system_prompt,
  t.memory_text, t.persona ->> 'text' AS persona, t.limits,
  extract(epoch FROM clock_timestamp() - t.created_at)::float AS turn_seconds,
  t.input_tokens, t.output_tokens, t.cached_tokens, t.cost_microusd, m.epoch, m.run_id, m.attempt, m.errors, m.reply,
  m.compacted, m.fallback, m.assumed IS NOT NULL OR m.held_tokens + m.held_cost_microusd > 0 AS lost,
  (now() AT TIME ZONE 'UTC')::date AS day,
  EXISTS (SELECT FROM messages j WHERE j.turn_id = t.id AND j.joins IS NOT NULL AND j.joins IN ('', $2)) AS joined,
  (SELECT jsonb_build_object('max_tokens', l.max_tokens, 'max_cost_microusd', l.max_cost_microusd)
  FROM day_limits l WHERE l.tenant_id = t.tenant_id) AS day_limits,
  (SELECT CASE WHEN a.version <> t.agent_version THEN (  -- a version is long: it is read where it is another one only
    SELECT coalesce(nullif(v.body #> '{{definition,day_limits}}', 'null'), '{{}}') FROM agent_versions v
    WHERE (v.tenant_id, v.agent_id, v.version) = (a.tenant_id, a.agent_id, a.version)) END
  FROM agents a WHERE a.agent_id = t.agent_id LIMIT 1) AS published_limits,
  EXISTS (SELECT FROM approvals r WHERE r.turn_id = t.id) AS has_requests, ({PAST_OF_TURN}) AS past
FROM turns t LEFT JOIN model_calls m ON m.turn_id = t.id AND m.call_id = $2 WHERE t.id = $1 FOR UPDATE OF t
"""


async def claim_call(
    tx: Connection, call: ModelCall, attempt: Attempt, model: str, fallback_model: str = ""
) -> ModelClaim:
    """Returns whether `attempt` can make `call`. If it can, `begin_call` must follow. `tx` must hold the turn's lock.

    Raises: LimitReached if the turn has spent a limit by now, even if its graph does not know it yet.
    """
    row = await tx.fetchrow(_CLAIM, call.address.turn_id, call.call_id)
    if row is None:
        return ModelClaim(Claim.ENDED)
    held = None
    if row["epoch"] is not None:
        held = RecordedClaim(row["epoch"], Attempt(row["run_id"], row["attempt"]), row["reply"] is not None)
    verdict = claim(LockedTurn(row["ended"], row["stopped"]), held, attempt)
    if verdict in (Claim.REPLAY, Claim.STOPPED) and call.events:
        await write(tx, call.address, [], pending=call.events)
    if verdict is Claim.REPLAY:
        return ModelClaim(verdict, reply=ModelReply.model_validate(row["reply"] | {"turn_used": _read_usage(row)}))
    if verdict is not Claim.ACT:
        return ModelClaim(verdict)
    if row["lost"]:
        return ModelClaim(verdict, lost=True)
    return _granted_claim(row, call, model, fallback_model, held)


def _granted_claim(
    row: asyncpg.Record, call: ModelCall, model: str, fallback_model: str, held: RecordedClaim | None
) -> ModelClaim:
    """Returns the claim of an attempt that can act, with the rest of the turn's limits.

    Raises: LimitReached.
    """
    limits, used = Limits.model_validate(row["limits"]), _read_usage(row)
    over = spent_limit(limits, tokens_used=used.tokens, cost_microusd=used.cost_microusd)
    if over is not None:
        raise LimitReached(over.code, over.message)
    on_fallback = bool(row["fallback"] and fallback_model)
    published = row["published_limits"]
    return ModelClaim(
        Claim.ACT,
        model=fallback_model if on_fallback else model,
        epoch=held.epoch + 1 if held else 1,
        errors=row["errors"] or 0,
        past=PastMessages(**row["past"]),
        has_requests=row["has_requests"],
        system_prompt=row["system_prompt"],
        memory_text=row["memory_text"],
        persona=row["persona"] or "",
        compacted=bool(row["compacted"]),
        on_fallback=on_fallback,
        day_limits=DayLimits(**row["day_limits"]) if row["day_limits"] else None,
        published_limits=None if published is None else DayLimits.model_validate(published, extra="ignore"),
        most_tokens=answer_token_limit(limits, tokens_used=used.tokens),
        left_microusd=limits.max_cost_microusd - used.cost_microusd,
        is_joined=bool(row["joined"]) and not (call.ask.stage or call.ask.output or call.ask.deaf),
        turn_seconds=row["turn_seconds"],
        day=row["day"],
    )


async def begin_call(tx: Connection, call: ModelCall, attempt: Attempt, claimed: ModelClaim) -> None:
    """Writes the call's claim to the ledger. `write_begun` must follow in the same transaction."""
    await tx.execute(
        "WITH counted AS (UPDATE turns SET attempts = attempts + 1, status = $7, waiting = NULL, "
        "started_at = coalesce(started_at, now()) WHERE id = $1 RETURNING tenant_id) "
        "INSERT INTO model_calls (tenant_id, turn_id, call_id, epoch, run_id, attempt, model, stage, assumed) "
        "SELECT tenant_id, $1, $2, $3, $4, $5, $6, $8, $9 FROM counted ON CONFLICT (turn_id, call_id) "
        "DO UPDATE SET epoch = excluded.epoch, run_id = excluded.run_id, attempt = excluded.attempt, "
        "model = excluded.model, started_at = now(), assumed = excluded.assumed",
        call.address.turn_id,
        call.call_id,
        claimed.epoch,
        attempt.run_id,
        attempt.number,
        claimed.model,
        TurnStatus.RUNNING.value,
        call.ask.stage,
        claimed.assumed.model_dump(),
    )


async def write_begun(
    tx: Connection, call: ModelCall, claimed: ModelClaim, joined_events: Sequence[NewEvent] = ()
) -> None:
    """Writes the pending events and generation.start, after `joined_events`, the events of messages that the call has
    just received.

    It must be the last statement of a claim, because it locks the conversation.
    """
    data: dict[str, JsonValue] = {"model": claimed.model, "attempt": claimed.epoch}
    if call.ask.continues:
        data["continues"] = call.ask.continues
    started = NewEvent(GENERATION_START, data, call.call_id)
    await write(tx, call.address, [*joined_events, started], pending=call.events)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call that a settled model call requested, as the ledger stores it."""

    call_id: str
    key: str
    tool: str
    tool_version: str
    effect: str
    provider_call_id: str
    args: dict[str, JsonValue]
    digest: str
    outcome: dict[str, JsonValue] | None = None
    """Set if the call is settled when it is planned: it cannot run, or the engine answers it."""


_SETTLE = """
WITH locked AS (
  SELECT id, ended_at FROM turns WHERE id = $1 FOR UPDATE  -- the turn first, as every claim does
), mine AS (
  UPDATE model_calls SET reply = $4, said = NULL, settled_at = now() FROM locked
  WHERE turn_id = locked.id AND call_id = $2 AND epoch = $3 AND reply IS NULL
  RETURNING tenant_id, (started_at AT TIME ZONE 'UTC')::date AS day, budget_of IS NOT NULL AS reserved,
    assumed IS NULL AS was_lost
), used AS (  -- what was assumed as the turn ended is counted already
  UPDATE turns SET input_tokens = input_tokens + $5 - CASE WHEN was_lost THEN $10::bigint ELSE 0 END,
    output_tokens = output_tokens + $6 - CASE WHEN was_lost THEN $11::bigint ELSE 0 END,
    cached_tokens = cached_tokens + $7,
    cost_microusd = cost_microusd + $8 - CASE WHEN was_lost THEN $12::bigint ELSE 0 END
  FROM mine WHERE turns.id = $1
  RETURNING conversation_id, agent_id, input_tokens, output_tokens, cached_tokens, cost_microusd
), planned AS (
  INSERT INTO tool_calls (tenant_id, turn_id, call_id, conversation_id, agent_id, key, tool, tool_version, effect,
    provider_call_id, args, digest, state, outcome, settled_at)
  SELECT mine.tenant_id, $1, c.call_id, used.conversation_id, used.agent_id, c.key, c.tool, c.tool_version, c.effect,
    c.provider_call_id, c.args, c.digest, coalesce(c.outcome ->> 'state', 'planned'), c.outcome,
    CASE WHEN c.outcome IS NULL THEN NULL ELSE now() END
  FROM mine, used, locked, jsonb_to_recordset($9) AS c(call_id text, key text, tool text, tool_version text,
    effect text, provider_call_id text, args jsonb, digest text, outcome jsonb)
  WHERE locked.ended_at IS NULL
  ON CONFLICT (turn_id, call_id) DO NOTHING
)
SELECT locked.ended_at IS NOT NULL AS ended, mine.was_lost, mine.reserved OR EXISTS (
  SELECT FROM day_usage d WHERE d.day = mine.day AND d.agent_id IN (used.agent_id, '')) AS counted,
  used.input_tokens, used.output_tokens, used.cached_tokens, used.cost_microusd
FROM mine, used, locked
"""


@dataclass(frozen=True, slots=True)
class SettleResult:
    """The result of a settle."""

    mine: bool
    """False if a later attempt owns the call; nothing was recorded then."""
    counted: bool = False
    """True if the usage counts in budgets of its day, including budgets that were created after the claim."""
    was_lost: bool = False
    """True if the call was already counted with its assumed usage, including in the day's budgets."""
    turn_used: Usage | None = None
    """The usage of the whole turn, including this call."""


async def settle_call(
    tx: Connection,
    call: ModelCall,
    claimed: ModelClaim,
    reply: ModelReply,
    messages: Sequence[NewMessage],
    planned: Sequence[PlannedCall],
    events: Sequence[NewEvent],
) -> SettleResult:
    """Records a model call's result if this claim still owns the call.

    If the turn has ended in the meantime, only the usage is recorded, because `done` is a turn's last event.
    """
    usage: Usage = reply.usage
    row = await tx.fetchrow(
        _SETTLE,
        call.address.turn_id,
        call.call_id,
        claimed.epoch,
        reply.model_dump(mode="json"),
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cost_microusd,
        [asdict(each) for each in planned],
        claimed.assumed.input_tokens,
        claimed.assumed.output_tokens,
        claimed.assumed.cost_microusd,
    )
    if row is None:
        return SettleResult(mine=False)
    if not row["ended"]:
        await write(tx, call.address, events, messages)
    return SettleResult(mine=True, counted=row["counted"], was_lost=row["was_lost"], turn_used=_read_usage(row))


def _read_usage(row: asyncpg.Record) -> Usage:
    """Returns the turn's usage from a row."""
    return Usage(**{name: row[name] for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_microusd")})


# Attempts that end without an answer count too. `count` records the usage of an attempt whose provider failed, or that
# had to leave. An attempt that ends without a result counts with the usage that its claim assumed (`count_lost`). That
# happens when its call is taken over or its turn ends. If it reports later, `correct` replaces the assumed usage. Each
# of these makes budgets.TO_CHARGE the second statement of its transaction, and changes the rows of the day last
# (perdure/store/budgets.py).
_COUNT = """
WITH mine AS (
  UPDATE model_calls SET errors = errors + $9, compacted = compacted OR $7, fallback = fallback OR $8, assumed = NULL,
    said = nullif($10, '')
  WHERE turn_id = $1 AND call_id = $2 AND epoch = $3 AND reply IS NULL AND assumed IS NOT NULL RETURNING turn_id
)
UPDATE turns SET input_tokens = input_tokens + $4, output_tokens = output_tokens + $5,
  cost_microusd = cost_microusd + $6 FROM mine WHERE turns.id = mine.turn_id RETURNING ended_at IS NULL AS is_open
"""


async def count(
    tx: Connection,
    call: ModelCall,
    claimed: ModelClaim,
    used: Usage,
    failed: NewEvent | None = None,
    *,
    compact: bool = False,
    fall_back: bool = False,
    text: str = "",
) -> None:
    """Counts the usage of an attempt that another attempt follows. `failed` is the event of its provider's error.

    `text` is the answer's text so far. It is stored in case the turn is stopped before the next attempt
    (`unfinished_text`).

    With `compact`, the next attempt sends half of the conversation. With `fall_back`, it uses the agent's fallback
    model. `tx` must hold the turn's lock.
    """
    is_open = await tx.fetchval(
        _COUNT,
        call.address.turn_id,
        call.call_id,
        claimed.epoch,
        used.input_tokens,
        used.output_tokens,
        used.cost_microusd,
        compact,
        fall_back,
        int(failed is not None),
        text,
    )
    if is_open is None:
        await correct(tx, call, claimed, used)
        return
    if is_open and failed is not None:
        await write(tx, call.address, [failed])
    await budgets.charge(tx, call.address.turn_id, call.call_id, claimed.epoch, used)


async def first_problem(tx: Connection, turn_id: str, call_id: str) -> Problem | None:
    """Returns the problem of the agent's own model, or None if the call did not continue with the fallback model."""
    data = await tx.fetchval(
        "SELECT data FROM events WHERE turn_id = $1 AND call_id = $2 AND data ? 'fallback_model' ORDER BY seq LIMIT 1",
        turn_id,
        call_id,
    )
    if data is None:
        return None
    details = {"model": data.get("model", ""), **data.get("details", {})}
    return Problem(code=data["code"], message=data.get("message", data["code"]), details=details)


_CORRECT = """
UPDATE turns SET input_tokens = greatest(0, input_tokens + $2), output_tokens = greatest(0, output_tokens + $3),
  cost_microusd = greatest(0, cost_microusd + $4) WHERE id = $1
"""


async def correct(tx: Connection, call: ModelCall, claimed: ModelClaim, used: Usage) -> None:
    """Replaces the assumed usage of a lost attempt with its real usage."""
    more = used - claimed.assumed
    await tx.execute(_CORRECT, call.address.turn_id, more.input_tokens, more.output_tokens, more.cost_microusd)
    await budgets.correct(tx, call.agent_id, claimed.day, used, claimed.assumed)


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that was counted with the usage that its claim had assumed."""

    call_id: str
    epoch: int
    used: Usage


_LOST = """
WITH lost AS (
  SELECT call_id, epoch, coalesce((assumed ->> 'input_tokens')::bigint, 0) AS input_tokens,
    coalesce((assumed ->> 'output_tokens')::bigint, 0) AS output_tokens,
    coalesce((assumed ->> 'cost_microusd')::bigint, 0) AS cost_microusd
  FROM model_calls WHERE turn_id = $1 AND ($2::text IS NULL OR call_id = $2) AND reply IS NULL
    AND (assumed IS NOT NULL OR held_tokens + held_cost_microusd > 0)
), counted AS (
  UPDATE model_calls m SET assumed = NULL FROM lost WHERE m.turn_id = $1 AND m.call_id = lost.call_id
), added AS (
  UPDATE turns SET input_tokens = turns.input_tokens + s.input_tokens, cost_microusd = turns.cost_microusd + s.cost,
    output_tokens = turns.output_tokens + s.output_tokens
  FROM (SELECT sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(cost_microusd) AS cost
    FROM lost HAVING count(*) > 0) s WHERE turns.id = $1
)
SELECT * FROM lost
"""


async def count_lost(tx: Connection, turn_id: str, call_id: str | None = None) -> Sequence[LostAttempt]:
    """Counts the lost attempt of this call, or all lost attempts of the turn: those without a result or a reported
    usage.

    `charge_lost` must follow with the returned attempts, as the last statement before the commit. `tx` must hold the
    turn's lock.
    """
    rows = await tx.fetch(_LOST, turn_id, call_id)
    return [
        LostAttempt(
            row["call_id"],
            row["epoch"],
            Usage(
                input_tokens=row["input_tokens"],
                output_tokens=row["output_tokens"],
                cost_microusd=row["cost_microusd"],
            ),
        )
        for row in rows
    ]


async def count_left(tx: Connection, turn_id: str) -> Sequence[LostAttempt]:
    """Runs `count_lost` for every call of a turn that ends, in a transaction that has not waited for settles yet."""
    await tx.execute(budgets.TO_CHARGE)
    return await count_lost(tx, turn_id)


_UNFINISHED = """
SELECT said, (SELECT data->>'continues' FROM events e WHERE e.turn_id = m.turn_id AND e.call_id = m.call_id
  AND e.kind = $2 ORDER BY seq DESC LIMIT 1) AS continues
FROM model_calls m WHERE turn_id = $1 AND reply IS NULL AND said IS NOT NULL
ORDER BY length(call_id) DESC, call_id DESC LIMIT 1
"""


async def unfinished_text(tx: Connection, turn_id: str) -> tuple[str, str]:
    """Returns the text that the turn's last call had streamed when its provider failed, and the id of the message that
    it continues. Both are empty if that attempt had ended.

    It is for a turn that is stopped while the call waits for its next attempt. `tx` must hold the turn's lock.
    """
    row = await tx.fetchrow(_UNFINISHED, turn_id, GENERATION_START)
    return (row["said"], row["continues"] or "") if row is not None else ("", "")


async def charge_lost(tx: Connection, turn_id: str, lost: Sequence[LostAttempt]) -> None:
    """Replaces the reservations of these attempts in their day's budgets with their assumed usage."""
    for each in lost:
        await budgets.charge(tx, turn_id, each.call_id, each.epoch, each.used, each.used)
