"""Daily budgets (what the calls of a day have used, and what open calls reserve), and the counters of byte quotas.
The rules of both are in perdure/core/budgets.py.

Budgets: all calls of an agent, or of a tenant, need the same row. It is locked last in a transaction, by one statement
that the commit follows. Each call locks it twice for 4 ms, which allows 100 calls per second on one budget. This was
measured with 200 concurrent calls on two busy cores. Several rows are locked in a fixed order, so that transactions
cannot deadlock: the earlier day first, then the agent's row before the tenant's.

Quotas (ADR 31): triggers count files and documents exactly, in the transaction that writes or deletes them. Texts of
conversations are counted in the conversation's row. Their sum for a user and a tenant is at most about a minute old.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from perdure.contracts.agents import DayLimits, PublishedAgent
from perdure.contracts.calls import ModelCall
from perdure.contracts.errors import InvariantBroken, LimitReached
from perdure.contracts.turns import Usage
from perdure.core.budgets import (
    TENANT,
    Caps,
    DayUse,
    Hold,
    Quotas,
    UsedStorage,
    check_bytes,
    check_files,
    only_reserved,
    reached_budget,
    resets_at,
)
from perdure.store import audit
from perdure.store.database import Connection

NO_USAGE = Usage()
_RESERVE = """
WITH caps AS (
  SELECT * FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS c(agent_id, max_tokens, max_cost_microusd)
), today AS (  -- of the transaction: a midnight within it changes nothing
  SELECT (now() AT TIME ZONE 'UTC')::date AS day
), locked AS (  -- all of them or none: who has to make a row must not hold another one
  SELECT d.agent_id, d.day, d.used_tokens, d.used_cost_microusd, d.held_tokens, d.held_cost_microusd, c.max_tokens,
    c.max_cost_microusd
  FROM day_usage d JOIN caps c USING (agent_id) JOIN today USING (day)
  WHERE (SELECT count(*) FROM day_usage JOIN caps USING (agent_id) JOIN today USING (day)) = cardinality($3::text[])
  ORDER BY d.agent_id DESC FOR UPDATE OF d
), fits AS (
  SELECT bool_and((max_tokens IS NULL OR used_tokens + held_tokens < max_tokens)
    AND (max_cost_microusd IS NULL OR used_cost_microusd + held_cost_microusd < max_cost_microusd)) AS all_fit
  FROM locked
), held AS (
  UPDATE day_usage d SET held_tokens = d.held_tokens + $6, held_cost_microusd = d.held_cost_microusd + $7
  FROM locked l, fits WHERE fits.all_fit AND d.day = l.day AND d.agent_id = l.agent_id
), noted AS (
  UPDATE model_calls SET budget_day = today.day, budget_of = $3, held_tokens = $6, held_cost_microusd = $7
  FROM today, fits WHERE fits.all_fit AND turn_id = $1 AND call_id = $2
)
SELECT locked.*, fits.all_fit FROM locked, fits
"""

_USED = """
called AS (
  SELECT m.turn_id, sum((m.reply->'usage'->>'input_tokens')::bigint + (m.reply->'usage'->>'output_tokens')::bigint)
    AS tokens, sum((m.reply->'usage'->>'cost_microusd')::bigint) AS cost
  FROM model_calls m WHERE m.started_at >= $2 GROUP BY m.turn_id
), used AS (  -- a turn that began today has its whole use today, that of attempts which broke off as well
  SELECT t.agent_id, CASE WHEN t.created_at >= $2 THEN t.input_tokens + t.output_tokens ELSE called.tokens END
    AS tokens, CASE WHEN t.created_at >= $2 THEN t.cost_microusd ELSE called.cost END AS cost
  FROM called JOIN turns t ON t.id = called.turn_id WHERE t.id = ANY(ARRAY(SELECT turn_id FROM called))  -- by index
), uncounted AS (
  SELECT wanted.agent_id, coalesce(sum(used.tokens), 0)::bigint AS used_tokens,
    coalesce(sum(used.cost), 0)::bigint AS used_cost_microusd
  FROM unnest($1::text[]) AS wanted(agent_id) LEFT JOIN used ON wanted.agent_id IN ('', used.agent_id)
  GROUP BY wanted.agent_id
)
"""
"""SQL for the use of a day's calls, since its start $2, in budgets without a row. The start is a parameter, so that a
plan reads only the day's calls."""
_DAY_START = "SELECT date_trunc('day', now(), 'UTC')"
"""The start of the transaction's day: a midnight within it changes nothing."""
_OPEN = f"""
WITH {_USED}
INSERT INTO day_usage (tenant_id, day, agent_id, used_tokens, used_cost_microusd)
SELECT current_setting('perdure.tenant'), ($2 AT TIME ZONE 'UTC')::date, agent_id, used_tokens, used_cost_microusd
FROM uncounted
ORDER BY agent_id DESC ON CONFLICT DO NOTHING
"""
_COUNTED = """
SELECT count(*) = cardinality($1::text[]) FROM day_usage
WHERE day = (now() AT TIME ZONE 'UTC')::date AND agent_id = ANY($1)
"""
_OPENING = "hashtextextended('day_usage ' || current_setting('perdure.tenant'), 0)"
TO_CHARGE = f"SELECT pg_advisory_xact_lock_shared({_OPENING})"
"""A shared lock for transactions that add to a turn's use. It must be a separate statement, after the lock of the
turn's row and before anything is added. Until the commit no day is opened. The statements after this one see days that
were opened before."""
SUM_SECONDS = 60


async def open_day(tx: Connection, budgets: Sequence[str]) -> None:
    """Creates today's missing rows of these budgets, with what the day's calls have used so far. Open calls then have
    no reservation, and their settles find the rows (`charge`).

    It waits for all settles of the tenant that have begun, and later ones wait for this transaction. Each settle is
    therefore either read here or charged there. While it waits it holds no row of a day, because those settles may need
    one.
    """
    if await tx.fetchval(_COUNTED, budgets):
        return
    day_start = await tx.fetchval(_DAY_START)
    await tx.execute(f"SELECT pg_advisory_xact_lock({_OPENING})")
    await tx.execute(_OPEN, budgets, day_start)


async def used_today(tx: Connection, budgets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns the tokens and micro-dollars that today's calls have used, by budget: the initial values of its row."""
    rows = await tx.fetch(f"WITH {_USED} SELECT * FROM uncounted", budgets, await tx.fetchval(_DAY_START))
    return {row["agent_id"]: (row["used_tokens"], row["used_cost_microusd"]) for row in rows}


async def reserve(tx: Connection, call: ModelCall, caps: Caps, hold: Hold) -> None:
    """Reserves `hold` in every budget of `caps`. The caller must commit next.

    Raises: LimitReached if one of them is exhausted; the claim must be rolled back. Its detail `reserved` is true if
    only the reservations of open calls exhaust it.
    """
    given = (
        call.address.turn_id,
        call.call_id,
        list(caps),
        [cap.max_tokens for cap in caps.values()],
        [cap.max_cost_microusd for cap in caps.values()],
        hold.tokens,
        hold.cost_microusd,
    )
    rows = await tx.fetch(_RESERVE, *given)
    if not rows:
        await open_day(tx, list(caps))
        rows = await tx.fetch(_RESERVE, *given)
    if rows and rows[0]["all_fit"]:
        return
    uses = [DayUse(*(row[name] for name in DayUse.__slots__)) for row in rows]
    problem = reached_budget(caps, uses)
    if problem is None:
        raise InvariantBroken("budget_not_read", "a daily budget was neither available nor reached")
    raise LimitReached(problem.code, problem.message, {"reserved": only_reserved(caps, uses)})


_CHARGE = """
WITH calls AS (
  SELECT t.agent_id, (m.started_at AT TIME ZONE 'UTC')::date AS day, m.budget_day, m.budget_of, m.held_tokens,
    m.held_cost_microusd
  FROM model_calls m JOIN turns t ON t.id = m.turn_id
  WHERE m.turn_id = $1 AND m.call_id = $2 AND m.epoch = $3
), held AS (  -- the day's rows that it holds nothing of as well: they were made while it was under way
  SELECT each.day, each.agent_id, sum(each.tokens) AS tokens, sum(each.cost) AS cost, bool_or(each.counts) AS counts
  FROM (
    SELECT c.budget_day AS day, b.agent_id, c.held_tokens AS tokens, c.held_cost_microusd AS cost,
      c.budget_day = c.day AS counts
    FROM calls c, unnest(c.budget_of) AS b(agent_id)
    UNION ALL
    SELECT c.day, b.agent_id, 0, 0, true FROM calls c, unnest(ARRAY[c.agent_id, '']) AS b(agent_id)
  ) each GROUP BY each.day, each.agent_id
), locked AS (
  SELECT d.day, d.agent_id FROM day_usage d JOIN held USING (day, agent_id)
  ORDER BY d.day, d.agent_id DESC FOR UPDATE OF d
), freed AS (
  UPDATE model_calls SET held_tokens = 0, held_cost_microusd = 0
  WHERE turn_id = $1 AND call_id = $2 AND epoch = $3 AND held_tokens + held_cost_microusd > 0
)
UPDATE day_usage d SET held_tokens = d.held_tokens - held.tokens, held_cost_microusd = d.held_cost_microusd - held.cost,
  used_tokens = greatest(0, d.used_tokens + CASE WHEN held.counts THEN $4::bigint ELSE 0 END),
  used_cost_microusd = greatest(0, d.used_cost_microusd + CASE WHEN held.counts THEN $5::bigint ELSE 0 END),
  assumed_tokens = greatest(0, d.assumed_tokens + CASE WHEN held.counts THEN $6::bigint ELSE 0 END),
  assumed_cost_microusd = greatest(0, d.assumed_cost_microusd + CASE WHEN held.counts THEN $7::bigint ELSE 0 END)
FROM locked JOIN held USING (day, agent_id) WHERE d.day = locked.day AND d.agent_id = locked.agent_id
"""


async def charge(
    tx: Connection, turn_id: str, call_id: str, epoch: int, used: Usage, assumed: Usage = NO_USAGE
) -> None:
    """Replaces the reservation of the attempt `epoch` with its use, in all rows that its day has by now. The
    reservation of a later attempt does not change.

    `assumed` is the change of the estimated part, which the rows show separately. The caller must have run TO_CHARGE as
    its second statement, and must commit next.
    """
    given = (used.tokens, used.cost_microusd, assumed.tokens, assumed.cost_microusd)
    await tx.execute(_CHARGE, turn_id, call_id, epoch, *given)


_CORRECT = """
WITH locked AS (
  SELECT day, agent_id FROM day_usage WHERE day = $1 AND agent_id IN ($2, '') ORDER BY agent_id DESC FOR UPDATE
)
UPDATE day_usage d SET used_tokens = greatest(0, d.used_tokens + $3 - $5),
  used_cost_microusd = greatest(0, d.used_cost_microusd + $4 - $6),
  assumed_tokens = greatest(0, d.assumed_tokens - $5),
  assumed_cost_microusd = greatest(0, d.assumed_cost_microusd - $6)
FROM locked WHERE d.day = locked.day AND d.agent_id = locked.agent_id
"""


async def correct(tx: Connection, agent_id: str, day: date, used: Usage, assumed: Usage) -> None:
    """Replaces the `assumed` use of a call of `agent_id` on `day` with its real use `used`. The caller follows the
    rules of `charge`."""
    given = (used.tokens, used.cost_microusd, assumed.tokens, assumed.cost_microusd)
    await tx.execute(_CORRECT, day, agent_id, *given)


async def set_day_limits(tx: Connection, limits: DayLimits, actor: str) -> None:
    """Sets the daily limits, starting with the next model call. None means no limit; the use is still counted."""
    data = limits.model_dump(mode="json")
    await tx.execute(
        "INSERT INTO day_limits (tenant_id, max_tokens, max_cost_microusd, set_by) "
        "VALUES (current_setting('perdure.tenant'), $1, $2, $3) ON CONFLICT (tenant_id) DO UPDATE SET "
        "max_tokens = excluded.max_tokens, max_cost_microusd = excluded.max_cost_microusd, "
        "set_by = excluded.set_by, set_at = now()",
        limits.max_tokens,
        limits.max_cost_microusd,
        actor,
    )
    await audit.record(tx, "day_limits.set", "day_limits", data, actor=actor, turn_id=None)


_TODAY = """
SELECT (now() AT TIME ZONE 'UTC')::date AS today, l.tenant_id IS NOT NULL AS counted, l.max_tokens, l.max_cost_microusd,
  (SELECT jsonb_object_agg(d.agent_id, jsonb_build_array(d.used_tokens, d.used_cost_microusd, d.held_tokens,
    d.held_cost_microusd, d.assumed_tokens, d.assumed_cost_microusd))
    FROM day_usage d WHERE d.day = (now() AT TIME ZONE 'UTC')::date) AS used
FROM (SELECT) AS one LEFT JOIN day_limits l ON true
"""


async def day_limits_shown(tx: Connection, agents: Sequence[PublishedAgent]) -> dict[str, object]:
    """Returns today's budgets: the tenant's, and those of the given agents that have one."""
    row = await tx.fetchrow(_TODAY)
    if row is None:
        return {}
    used: dict[str, list[int]] = row["used"] or {}
    of_tenant = DayLimits(max_tokens=row["max_tokens"], max_cost_microusd=row["max_cost_microusd"])
    limited = [
        (agent.definition.id, agent.definition.day_limits)
        for agent in agents
        if agent.definition.day_limits is not None
    ]
    of_day = [*([TENANT] if row["counted"] else []), *(agent_id for agent_id, _ in limited)]
    missing = [name for name in of_day if name not in used]  # no call has created these rows yet
    if missing:
        used |= {name: [*counted, 0, 0, 0, 0] for name, counted in (await used_today(tx, missing)).items()}
    day: date = row["today"]
    return {
        "day": day.isoformat(),
        "resets_at": resets_at(day),
        "tenant": _show_budget(of_tenant, used[TENANT]) if row["counted"] else None,
        "agents": [{"agent": agent_id, **_show_budget(limits, used[agent_id])} for agent_id, limits in limited],
    }


def _show_budget(limits: DayLimits, counted: list[int]) -> dict[str, object]:
    used_tokens, used_cost, held_tokens, held_cost, assumed_tokens, assumed_cost = counted
    return {
        "max_tokens": limits.max_tokens,
        "used_tokens": used_tokens,
        "assumed_tokens": assumed_tokens,
        "reserved_tokens": held_tokens,
        "max_cost_usd": None if limits.max_cost_microusd is None else limits.max_cost_microusd / 1e6,
        "used_cost_usd": used_cost / 1e6,
        "assumed_cost_usd": assumed_cost / 1e6,
        "reserved_cost_usd": held_cost / 1e6,
    }


TENANT_SUBJECT = "00000000-0000-0000-0000-000000000000"
"""The subject id of a tenant's counter."""
_COUNTER = "(SELECT {what} FROM byte_usage WHERE scope = '{scope}' AND subject_id = {subject})"


def _bytes_of(scope: str, subject: str) -> str:
    return f"coalesce({_COUNTER.format(what='stored_bytes + text_bytes', scope=scope, subject=subject)}, 0)"


def quota_columns(user: str, conversation: str) -> str:
    """Returns the columns of `UsedStorage` for a SELECT. The arguments are SQL expressions of ids."""
    texts = f"coalesce((SELECT text_bytes FROM conversations WHERE id = {conversation}), 0)"
    of_tenant = _bytes_of("tenant", f"'{TENANT_SUBJECT}'")
    return (
        f"{texts} + {_bytes_of('conversation', conversation)} AS conversation_bytes, "
        f"{_bytes_of('user', user)} AS user_bytes, {of_tenant} AS tenant_bytes"
    )


_READ_BYTES = (
    f"SELECT {quota_columns('$1::uuid', '$2::uuid')}, "
    f"coalesce({_COUNTER.format(what='files', scope='conversation', subject='$2::uuid')}, 0) AS files"
)
_SUM_USER = f"""
INSERT INTO byte_usage AS u (tenant_id, scope, subject_id, text_bytes, summed_at)
SELECT current_setting('perdure.tenant'), 'user', $1::uuid, coalesce(sum(text_bytes), 0), now() FROM conversations
WHERE tenant_id = current_setting('perdure.tenant') AND user_id = $1 AND deleted_at IS NULL
ON CONFLICT (tenant_id, scope, subject_id) DO UPDATE SET text_bytes = excluded.text_bytes, summed_at = now()
WHERE u.summed_at IS NULL OR u.summed_at < now() - make_interval(secs => {SUM_SECONDS - 5})
"""
_SUM_TENANT = f"""
INSERT INTO byte_usage AS u (tenant_id, scope, subject_id, text_bytes, summed_at)
SELECT current_setting('perdure.tenant'), 'tenant', '{TENANT_SUBJECT}', coalesce(sum(text_bytes), 0), now()
FROM byte_usage
WHERE scope = 'user'
ON CONFLICT (tenant_id, scope, subject_id) DO UPDATE SET text_bytes = excluded.text_bytes, summed_at = now()
WHERE u.summed_at IS NULL OR u.summed_at < now() - make_interval(secs => {SUM_SECONDS - 5})
"""
FORGET_TEXTS = """
WITH own AS MATERIALIZED (
  SELECT stored_bytes, text_bytes FROM byte_usage
  WHERE scope = 'user' AND subject_id = $1 AND stored_bytes + text_bytes > 0
), less AS (
  UPDATE byte_usage u SET stored_bytes = greatest(0, u.stored_bytes - own.stored_bytes),
    text_bytes = greatest(0, u.text_bytes - own.text_bytes)
  FROM own WHERE u.scope = 'tenant' RETURNING 1
)
UPDATE byte_usage u SET stored_bytes = 0, text_bytes = 0 FROM own
WHERE u.scope = 'user' AND u.subject_id = $1 AND (SELECT count(*) FROM less) >= 0
"""
"""Removes a user's texts from the counters. It must run after files and documents are deleted, when only texts remain
counted. The count in its last line makes Postgres lock the tenant's row first, as the triggers do."""


async def bytes_used(
    tx: Connection, user_id: str | None, conversation_id: str | None = None
) -> tuple[UsedStorage, int]:
    """Returns the bytes stored now, and the number of files in the conversation. If the transaction has written a file
    or a document, the counters include it and stay locked until the end."""
    row = await tx.fetchrow(_READ_BYTES, user_id, conversation_id)
    if row is None:
        return UsedStorage(), 0
    return UsedStorage(row["conversation_bytes"], row["user_bytes"], row["tenant_bytes"]), row["files"]


async def check_room(
    tx: Connection, quotas: Quotas, user_id: str | None, conversation_id: str | None = None, *, written_bytes: int
) -> None:
    """Checks that the stored bytes are within the quotas. This transaction has written `written_bytes` of them, and the
    error names these separately. For a workspace, `user_id` must be None.

    Raises: CallerError 429 `quota_reached`.
    """
    used, _ = await bytes_used(tx, user_id, conversation_id)
    check_bytes(used.without(written_bytes), quotas, written_bytes)


async def check_room_for_texts(
    tx: Connection, quotas: Quotas, user_id: str, conversation_id: str, bytes_before: int = 0
) -> None:
    """Checks that the texts that this transaction has written to a conversation fit into the quotas. `bytes_before` is
    what the conversation stored before. The user's and the tenant's totals do not include the texts yet.

    Raises: CallerError 429 `quota_reached`.
    """
    used, _ = await bytes_used(tx, user_id, conversation_id)
    added = used.conversation - bytes_before
    if added > 0:
        check_bytes(replace(used, conversation=bytes_before), quotas, added)


async def check_room_for_file(
    tx: Connection, quotas: Quotas, user_id: str, conversation_id: str, size_bytes: int
) -> None:
    """Checks that one more file fits into the quotas, before its upload.

    Raises: CallerError 429 `quota_reached`.
    """
    used, files = await bytes_used(tx, user_id, conversation_id)
    check_files(files, quotas)
    check_bytes(used, quotas, size_bytes)


async def sum_texts_of_user(tx: Connection, user_id: str) -> None:
    """Updates the sum of a user's texts, at most once a minute. It must be the only work of its transaction."""
    await tx.execute(_SUM_USER, user_id)


async def sum_texts_of_tenant(tx: Connection) -> None:
    """Updates the sum of the tenant's texts from the sums of its users, at most once a minute."""
    await tx.execute(_SUM_TENANT)


async def keep_texts(tx: Connection, user_id: str, text_bytes: int) -> None:
    """Counts the texts of a deleted conversation as stored bytes, because its records remain."""
    if text_bytes:
        await tx.execute("SELECT count_bytes(current_setting('perdure.tenant'), $1, NULL, $2, 0)", user_id, text_bytes)
        await tx.execute(
            "UPDATE byte_usage SET text_bytes = greatest(0, text_bytes - $2) "
            f"WHERE (scope, subject_id) IN (('tenant', '{TENANT_SUBJECT}'), ('user', $1))",
            user_id,
            text_bytes,
        )
