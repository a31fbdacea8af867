"""Erases a user's texts. The audit chain still verifies, because its rows contain only digests.

An erasure takes many small transactions. The first one disables the user and announces the erasure in a signed row,
which accounts for the erased rows. The last one checks everything again, retires the name permanently and records
the completion. If an erasure is interrupted, a repeated request continues it.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.core.audit import ERASURE_DONE, KEPT_KINDS
from perdure.store import audit
from perdure.store.audit import announce_erasure, announced_rows
from perdure.store.budgets import FORGET_TEXTS
from perdure.store.database import Connection, Database
from perdure.store.events.live import LiveTokens
from perdure.store.identity.users import retire

_OPEN = """
SELECT id::text FROM turns WHERE user_id = $1 AND ended_at IS NULL
UNION SELECT t.id::text FROM turns t JOIN approvals a ON a.turn_id = t.id WHERE t.ended_at IS NULL
  AND (a.decided_by = $1 OR EXISTS (SELECT FROM approval_votes v WHERE v.approval_id = a.id AND v.user_id = $1))
LIMIT 20
"""
_UNKNOWN = """
SELECT k.key FROM turns t JOIN tool_calls k ON k.turn_id = t.id
WHERE t.user_id = $1 AND k.state = 'outcome_unknown' LIMIT 20
"""
CHUNK_ROWS = 1_000
"""Rows per statement. No statement locks its rows for long or reaches the API's limit of five seconds."""
NAME_KEYS = (
    "name", "by", "to", "from", "for", "edited_by", "requested_by", "decided_by", "settled_by", "assignee",
    "claimed_by", "was_claimed_by", "created_by", "invited_by", "opened_as", "roles_by", "fallback", "reviewer",
    "reviewers", "reviewers_before",
)  # fmt: skip
"""The JSON keys whose values name a user, alone or in a list."""
NAMES_USER = "$.** ? (" + " || ".join(f"@.{key} == $name" for key in NAME_KEYS) + ")"
"""The path uses lax mode, so that it matches inside lists."""
_NAMING = ("user_id", "also", "naming", "renamed", "name")
_BY_HAND = ("user_id", "also")
_UNRAISED = ("user_id", "also", "unraised")
_TEXT, _SHOWN = "k.outcome #>> '{message,text}'", "data->>'result'"
_SCAN_SECONDS = 300.0


async def check_no_open_work(tx: Connection, user_id: str) -> None:
    """Checks that the user has no open work.

    Open work would repeat the user's texts or need them.

    Raises: CallerError 409 `turns_open`, `effects_unsettled`.
    """
    turns = [row[0] for row in await tx.fetch(_OPEN, user_id)]
    if turns:
        raise CallerError(
            "turns_open",
            "The user started or decided in turns that are still open; wait, or stop each with `perdure turns "
            f"stop ID --as admin`: {', '.join(turns)}",
            {"turns": turns},
            status=409,
        )
    effects = [row["key"] for row in await tx.fetch(_UNKNOWN, user_id)]
    if effects:
        raise CallerError(
            "effects_unsettled",
            "The user has effects with an unknown outcome; settle them before you erase the user",
            {"effects": effects},
            status=409,
        )


_FIND = """
SELECT id, name FROM users WHERE name = $1 OR (gateway_id IS NOT NULL AND id::text = $1)
ORDER BY name = $1 DESC LIMIT 1 FOR UPDATE
"""
_SUBJECTS = "SELECT name FROM users WHERE gateway_id = $1 AND subject IS NOT NULL ORDER BY id LIMIT 20"
_FORGET = """
UPDATE users SET name = $2, display_name = '', subject = NULL WHERE id = $1 RETURNING gateway_id IS NOT NULL
"""


class Step(NamedTuple):
    """A kind of row and the statement that erases a chunk of it. The statement finds no row when it is done. The steps
    cover the user's conversations with all data of their turns. The tenant's entities, prompts in use and counts
    remain."""

    table: str
    sql: str
    takes: tuple[str, ...] = ("user_id",)
    """Attributes of the erasure, in the order of the statement's parameters."""


def _audit_bodies_step(condition: str, *takes: str) -> Step:
    sql = (
        "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $2 WHERE audit_id = ANY(ARRAY("
        f"SELECT b.audit_id FROM audit a JOIN audit_bodies b ON b.audit_id = a.id WHERE {condition} "
        f"AND b.data IS NOT NULL AND a.kind <> ALL('{{{','.join(KEPT_KINDS)}}}') LIMIT {CHUNK_ROWS}))"
    )
    return Step("audit_bodies", sql, takes)


def _turn_rows_step(table: str, assignments: str, condition: str, suffix: str = "") -> Step:
    """Returns a step for rows of the user's turns. `condition` is the condition for rows that are not erased yet."""
    sql = (
        f"UPDATE {table} x SET {assignments} WHERE x.ctid = ANY(ARRAY(SELECT r.ctid FROM turns t JOIN {table} r "
        f"ON r.turn_id = t.id WHERE t.user_id = $1 AND ({condition}) {suffix} LIMIT {CHUNK_ROWS}))"
    )
    return Step(table, sql)


OWN_STEPS: tuple[Step, ...] = (
    _audit_bodies_step("a.actor = $1", "user_id", "audit_id"),
    # the announced turns, because the owner of a turn can change
    _audit_bodies_step("a.turn_id = ANY($1::uuid[])", "turns", "audit_id"),
    _audit_bodies_step("a.subject = $1::uuid::text", "user_id", "audit_id"),
    Step(
        "messages",
        "UPDATE messages SET content = '', calls = '[]' WHERE id = ANY(ARRAY("
        "SELECT m.id FROM conversations c JOIN messages m ON m.conversation_id = c.id "
        f"WHERE c.user_id = $1 AND (m.content <> '' OR m.calls <> '[]') LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "events",
        "UPDATE events SET data = '{}' WHERE ctid = ANY(ARRAY("
        "SELECT e.ctid FROM conversations c JOIN events e ON e.conversation_id = c.id "
        f"WHERE c.user_id = $1 AND e.data <> '{{}}' LIMIT {CHUNK_ROWS}))",
    ),
    _turn_rows_step("model_calls", "reply = NULL, said = NULL", "r.reply IS NOT NULL OR r.said IS NOT NULL"),
    # The digest of a tool call has no nonce, so its arguments could be guessed from it: it is erased. Other digests
    # cannot be guessed once their nonce is erased.
    _turn_rows_step(
        "tool_calls",
        "args = '{}', digest = '', outcome = NULL, comment = NULL, provider_call_id = '', ends = '[]'",
        "r.args <> '{}' OR r.digest <> '' OR r.outcome IS NOT NULL OR r.comment IS NOT NULL "
        "OR r.provider_call_id <> '' OR r.ends <> '[]'",
    ),
    Step(
        "bundles",
        "DELETE FROM bundles WHERE ctid = ANY(ARRAY(SELECT b.ctid FROM turns t "
        f"JOIN bundles b ON b.turn_id = t.id WHERE t.user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    _turn_rows_step(
        "approvals",
        "args = '{}', nonce = '', snapshot = '{}', prompt_excerpt = '', reason = '', result = NULL, revision = NULL, "
        "decision = CASE WHEN x.decision IS NOT NULL THEN jsonb_build_object('type', x.decision->'type') END, "
        "withdrawal = CASE WHEN x.withdrawal IS NOT NULL THEN '{}'::jsonb END, "
        "preview = CASE WHEN x.preview IS NOT NULL THEN '{}'::jsonb END, "
        "proposed = CASE WHEN x.proposed IS NOT NULL THEN '{}'::jsonb END",
        "r.args <> '{}' OR r.nonce <> '' OR r.snapshot <> '{}' OR r.prompt_excerpt <> '' OR r.reason <> '' "
        "OR r.result IS NOT NULL OR r.revision IS NOT NULL "
        "OR r.decision <> jsonb_build_object('type', r.decision->'type') OR r.withdrawal <> '{}' OR r.preview <> '{}' "
        "OR r.proposed <> '{}'",
    ),
    _turn_rows_step(
        "questions",
        "asked = '{}', answer = CASE WHEN x.answer IS NOT NULL THEN '{}'::jsonb END",
        "r.asked <> '{}' OR r.answer <> '{}'",
    ),
    Step(
        "approval_votes",
        "UPDATE approval_votes SET record = '{}' WHERE id = ANY(ARRAY("
        "SELECT v.id FROM turns t JOIN approvals a ON a.turn_id = t.id JOIN approval_votes v ON v.approval_id = a.id "
        f"WHERE t.user_id = $1 AND v.record <> '{{}}' LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "working_memory",
        "DELETE FROM working_memory WHERE ctid = ANY(ARRAY(SELECT w.ctid FROM conversations c "
        f"JOIN working_memory w ON w.conversation_id = c.id WHERE c.user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "files",
        f"DELETE FROM files WHERE id = ANY(ARRAY(SELECT id FROM files WHERE user_id = $1 LIMIT {CHUNK_ROWS // 50}))",
    ),
    Step(
        "episodes",
        f"DELETE FROM episodes WHERE id = ANY(ARRAY(SELECT id FROM episodes WHERE user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "conversation_facts",
        "DELETE FROM conversation_facts WHERE ctid = ANY(ARRAY(SELECT f.ctid FROM conversations c "
        f"JOIN conversation_facts f ON f.conversation_id = c.id WHERE c.user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step("user_facts", f"SELECT FROM forget_facts_of($1, {CHUNK_ROWS})"),
    # With all versions, the user's proposals, and the user's own comments and evidence on shared ones (migration 0012).
    Step("memory_documents", f"SELECT FROM forget_documents_of($1, {CHUNK_ROWS})"),
    Step(
        "turns",
        "UPDATE turns SET metadata = '{}', system_prompt = NULL, memory_text = NULL, waiting = NULL, problem = NULL, "
        "stuck = NULL, answer = NULL, output = NULL, persona = NULL "
        "WHERE id = ANY(ARRAY(SELECT id FROM turns WHERE user_id = $1 "
        "AND (metadata <> '{}' "
        "OR num_nonnulls(system_prompt, memory_text, waiting, problem, stuck, answer, output, persona) > 0) "
        f"LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "conversations",
        "UPDATE conversations SET title = '', metadata = '{}', text_bytes = 0, "
        "deleted_at = coalesce(deleted_at, now()) "
        "WHERE id = ANY(ARRAY(SELECT id FROM conversations WHERE user_id = $1 "
        f"AND (title <> '' OR metadata <> '{{}}' OR text_bytes > 0 OR deleted_at IS NULL) LIMIT {CHUNK_ROWS}))",
    ),
    Step("byte_usage", FORGET_TEXTS),  # counts the bytes of texts; files and documents update their own counts
    Step(
        "idempotency",
        "DELETE FROM idempotency WHERE ctid = ANY(ARRAY("
        f"SELECT ctid FROM idempotency WHERE user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step("api_tokens", "DELETE FROM api_tokens WHERE user_id = $1"),
    Step("passwords", "DELETE FROM passwords WHERE user_id = $1"),
    Step("sessions", "DELETE FROM sessions WHERE user_id = $1"),  # with their refresh tokens
    Step("invitations", "DELETE FROM invitations WHERE user_id = $1"),
    Step("sign_in_codes", "DELETE FROM sign_in_codes WHERE user_id = $1"),
    Step("identities", "DELETE FROM identities WHERE user_id = $1"),
    Step("prompt_versions", "DELETE FROM prompt_versions WHERE author = $1 AND stage = 'draft'"),
    Step("delegations", "UPDATE delegations SET ended_at = now() WHERE $1 IN (user_id, to_user) AND ended_at IS NULL"),
)
"""The steps for the user's own rows."""


TURNS_ACTED_IN = "SELECT turn_id FROM audit WHERE (actor = $1 OR id = ANY($2)) AND turn_id IS NOT NULL"
"""The turns in which the user acted or is named. The audit trail contains every action of a user."""

_SILENCE = "jsonb_build_object('comment', '', 'reason_code', '')"


def _rename_sql(column: str) -> str:
    """Returns an assignment that replaces the user's name with the pseudonym and removes the user's comments."""
    expression = (
        f"{column} || CASE WHEN $5 IN ({column}->>'by', {column}->>'settled_by') THEN {_SILENCE} ELSE '{{}}' END"
    )
    return f"{column} = regexp_replace(({expression})::text, $3, $4, 'g')::jsonb"


# The reason of a denial comes from the user who withdrew the approval, or else from the reviewer. The tool's message
# contains it; so does the message of the same call that was made again, which names the approval. The outcome and the
# event contain the beginning of that message: JSON that may be cut at any position. A call that is still planned was
# denied when its turn broke off, before the model received the denial.
_DENIED = f"""
SELECT a.turn_id, k.call_id, a.conversation_id FROM approvals a
JOIN tool_calls k ON k.turn_id = a.turn_id AND k.state IN ('denied', 'planned') AND (k.call_id = a.call_id
  OR starts_with(k.outcome #>> '{{message,text}}', '{{"approval_id":"' || a.id::text || '"'))
WHERE a.turn_id = ANY(ARRAY({TURNS_ACTED_IN})) AND CASE WHEN a.withdrawal IS NULL THEN a.decided_by = $1 ELSE EXISTS (
  SELECT FROM audit w WHERE w.subject = a.id::text AND w.kind = 'approval.withdrawn' AND w.actor = $1) END
"""


def _reason_condition(text: str) -> str:
    """Returns an SQL condition: the denial contains a reason. Quotes inside JSON strings are escaped, so they cannot
    match."""
    return f"""position(',"reason":"' IN {text}) > 0"""


def _no_reason(text: str) -> str:
    return f"""regexp_replace({text}, ',"reason":".*', ',"status":"denied"}}')"""


# These steps clear the user's name and comments in rows of other users, and the reasons that models received. Requests
# of other users remain theirs, even if this user edited them. The engine's texts about them remain too.
OTHER_USERS_STEPS: tuple[Step, ...] = (
    Step(
        "approval_votes",
        f"UPDATE approval_votes SET {_rename_sql('record')} WHERE (user_id = $1 OR seat_id = $1 OR approval_id = ANY("
        f"ARRAY(SELECT id FROM approvals WHERE turn_id = ANY(ARRAY({TURNS_ACTED_IN}))))) AND record::text ~ $3",
        _NAMING,
    ),
    *(
        Step(
            "approvals",
            f"UPDATE approvals SET {_rename_sql(column)} WHERE (turn_id = ANY(ARRAY({TURNS_ACTED_IN})) OR id = ANY("
            f"ARRAY(SELECT approval_id FROM approval_votes WHERE seat_id = $1))) AND {column}::text ~ $3",
            _NAMING,
        )
        for column in ("decision", "revision", "withdrawal")
    ),
    Step(
        "approvals",
        "UPDATE approvals SET reviewers = array_replace(reviewers, $1, $2), "
        "fallback_reviewer = CASE WHEN fallback_reviewer = $1 THEN $2 ELSE fallback_reviewer END "
        f"WHERE id = ANY(ARRAY(SELECT id FROM approvals WHERE $1 = ANY(reviewers) OR fallback_reviewer = $1 "
        f"LIMIT {CHUNK_ROWS}))",
        ("name", "pseudonym"),
    ),
    Step(
        "approvals",
        "UPDATE approvals SET assignee = nullif(assignee, $1), claimed_by = nullif(claimed_by, $1) "
        "WHERE status = 'pending' AND $1 IN (assignee, claimed_by)",
    ),
    # snapshots of a later pause: the engine's notes have no id, and name the reviewer who rejected and the reason
    Step(
        "approvals",
        "UPDATE approvals SET snapshot = jsonb_set(snapshot, '{messages}', (SELECT jsonb_agg("
        "CASE WHEN m ? 'id' OR m ? 'skill_id' THEN m ELSE m - 'text' END ORDER BY n) "
        "FROM jsonb_array_elements(snapshot->'messages') WITH ORDINALITY AS each(m, n))) "
        f"WHERE turn_id = ANY(ARRAY({TURNS_ACTED_IN})) AND jsonb_path_exists(snapshot, "
        "'$.messages[*] ? (!exists(@.id) && !exists(@.skill_id) && exists(@.text))')",
        _BY_HAND,
    ),
    Step(
        "messages",
        f"UPDATE messages SET content = {_no_reason('content')} WHERE id = ANY(ARRAY(SELECT m.id "
        f"FROM ({_DENIED}) d JOIN messages m ON m.turn_id = d.turn_id AND m.conversation_id = d.conversation_id "
        f"AND m.call_id = d.call_id AND m.role = 'tool' WHERE {_reason_condition('m.content')} LIMIT {CHUNK_ROWS}))",
        _BY_HAND,
    ),
    Step(
        "tool_calls",
        f"UPDATE tool_calls k SET outcome = jsonb_set(k.outcome, '{{message,text}}', to_jsonb({_no_reason(_TEXT)})) "
        f"FROM ({_DENIED}) d WHERE k.turn_id = d.turn_id AND k.call_id = d.call_id AND {_reason_condition(_TEXT)}",
        _BY_HAND,
    ),
    Step(
        "events",
        f"UPDATE events SET data = jsonb_set(data, '{{result}}', to_jsonb({_no_reason(_SHOWN)})) "
        f"WHERE ctid = ANY(ARRAY(SELECT e.ctid FROM ({_DENIED}) d JOIN events e ON e.turn_id = d.turn_id "
        "AND e.conversation_id = d.conversation_id AND e.call_id = d.call_id AND e.kind = 'tool.denied' "
        f"WHERE {_reason_condition('e.' + _SHOWN)} LIMIT {CHUNK_ROWS}))",
        _BY_HAND,
    ),
    Step(  # the user who did not raise a limit, and the reason
        "turns",
        "UPDATE turns SET problem = jsonb_set(problem, '{message}', to_jsonb(regexp_replace("
        "problem->>'message', $3, '; a reviewer did not raise it'))) "
        f"WHERE id = ANY(ARRAY({TURNS_ACTED_IN})) AND problem->>'message' ~ $3",
        _UNRAISED,
    ),
    Step(
        "events",
        "UPDATE events SET data = jsonb_set(data, '{message}', to_jsonb(regexp_replace("
        "data->>'message', $3, '; a reviewer did not raise it'))) "
        f"WHERE turn_id = ANY(ARRAY({TURNS_ACTED_IN})) AND data->>'message' ~ $3",
        _UNRAISED,
    ),
    Step(
        "messages",
        'UPDATE messages m SET content = \'{"comment":"","settled_by":"\' || $3 || \'","status":"\' '
        "|| CASE k.state WHEN 'done' THEN 'happened' ELSE 'did_not_happen' END || '\"}' FROM tool_calls k "
        "WHERE k.settled_by = $1 AND m.turn_id = k.turn_id AND m.conversation_id = k.conversation_id "
        "AND m.call_id = k.call_id AND m.role = 'tool' "
        "AND position('\"settled_by\":\"' || $2 || '\"' IN m.content) > 0",
        ("user_id", "name", "pseudonym"),
    ),
    Step(
        "tool_calls",
        "UPDATE tool_calls SET comment = NULL, outcome = jsonb_set(outcome, '{message,text}', '\"\"') "
        "WHERE settled_by = $1 AND comment IS NOT NULL",
    ),
    Step(
        "events",
        f"UPDATE events SET {_rename_sql('data')} WHERE ctid = ANY(ARRAY(SELECT ctid FROM events "
        f"WHERE turn_id = ANY(ARRAY({TURNS_ACTED_IN})) AND data::text ~ $3 LIMIT {CHUNK_ROWS}))",
        _NAMING,
    ),
    Step(
        "idempotency",
        "UPDATE idempotency SET answer = '{\"erased\": true}' WHERE answer <> '{\"erased\": true}' "
        "AND (answer->>'turn_id' IN (SELECT id::text FROM turns WHERE user_id = $1) "
        # An answer to a bulk decision can contain an earlier decision, with the arguments that it changed.
        "OR jsonb_path_query_array(answer, '$.items[*].id') ?| ARRAY("
        "SELECT a.id::text FROM turns t JOIN approvals a ON a.turn_id = t.id WHERE t.user_id = $1) "
        f"OR jsonb_path_exists(answer, '{NAMES_USER}', jsonb_build_object('name', $2::text)))",
        ("user_id", "name"),
    ),
)

Histories = Callable[[Sequence[str]], Awaitable[tuple[int, int]]]
"""Deletes the histories of the given turns that are stored outside Postgres. Returns the number of deleted runs and the
number of turns with runs left."""
_TURNS = "SELECT id::text FROM turns WHERE user_id = $1 AND id <> ALL($2::uuid[])"
_NAMED = f"""
SELECT a.id FROM audit_bodies b JOIN audit a ON a.id = b.audit_id
WHERE b.data IS NOT NULL AND position('"' || $2 || '"' IN b.data::text) > 0 AND a.kind <> ALL($3)
  AND a.actor IS DISTINCT FROM $1 AND a.subject <> $1::text
  AND NOT EXISTS (SELECT FROM turns t WHERE t.id = a.turn_id AND t.user_id = $1)
  -- An escalation goes from a role to a role, and a person may be called as a role is.
  AND (a.kind <> 'approval.escalated' OR b.data::jsonb->>'fallback' = $2)
  AND jsonb_path_exists(b.data::jsonb, '{NAMES_USER}', jsonb_build_object('name', $2::text)) ORDER BY a.id
"""
_CARRIED = f"SELECT id::text FROM turns WHERE (user_id = $1 OR id IN ({TURNS_ACTED_IN})) AND ended_at IS NOT NULL"
_ALSO = "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $2 WHERE audit_id = ANY($1) AND data IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure in progress, with the parameters of its statements."""

    user_id: str
    name: str
    audit_id: int
    """The audit row that accounts for the erasure."""
    turns: tuple[str, ...] = ()
    """The user's turns, as announced."""
    also: tuple[int, ...] = ()
    """Audit rows of other users that name the user, as announced."""

    @property
    def pseudonym(self) -> str:
        """The user's name after the erasure."""
        return f"erased-{self.user_id}"

    @property
    def naming(self) -> str:
        """A pattern that matches JSON text that names the user."""
        return f'"({"|".join(NAME_KEYS)})": "{re.escape(self.name)}"'

    @property
    def unraised(self) -> str:
        """A pattern that matches the problem text of a turn whose limit the user did not raise."""
        return f"; {re.escape(self.name)} did not raise it.*"

    @property
    def renamed(self) -> str:
        """The replacement for matches of `naming`."""
        return f'"\\1": "{self.pseudonym}"'

    def parameters_of(self, step: Step) -> list[Any]:
        """Returns the values of the statement's parameters, in their order."""
        return [getattr(self, name) for name in step.takes]


async def erase(
    db: Database,
    tenant_id: str,
    name: str,
    actor: str,
    live: LiveTokens | None = None,
    histories: Histories | None = None,
) -> dict[str, object]:
    """Erases the user with this name, or the subject of a gateway with this name or id. Returns the pseudonym and the
    number of erased rows per table. The name cannot be used again, except for a subject, which is then a new user.

    `live` stores the live tokens; without it they expire within an hour. `histories` deletes what workflows passed
    between activities; without it those histories remain until their retention ends.

    Raises: CallerError 404 `user_not_found`, 409 `own_data`, `subjects_left`, `turns_open`, `effects_unsettled`. If it
    raises or is interrupted, nothing is lost: the caller can repeat the request.
    """
    async with db.transaction(tenant_id) as tx:
        erasure = await _begin(tx, name, actor)
    erased: Counter[str] = Counter()
    for step in (*OWN_STEPS, *OTHER_USERS_STEPS):
        while True:
            async with db.transaction(tenant_id) as tx:
                rows = await _run_chunk(tx, step, erasure)
            if not rows:
                break
            erased[step.table] += rows
    runs, turns_left = await _delete_histories(db, tenant_id, erasure, histories)
    history_counts: dict[str, JsonValue] = {"runs": runs, "turns_left": turns_left}
    async with db.transaction(tenant_id) as tx:
        await _end_erasure(tx, erasure, actor, erased, history_counts)
    if live is not None:
        await live.forget(tenant_id, await _conversations(db, tenant_id, erasure.user_id))
    report = {"erased": dict(sorted(erased.items())), "histories": history_counts}
    return {"name": erasure.pseudonym, "user_id": erasure.user_id, **report}


async def _delete_histories(
    db: Database, tenant_id: str, erasure: Erasure, histories: Histories | None
) -> tuple[int, int]:
    """Deletes the histories of the user's turns, and of turns in which the user acted."""
    async with db.transaction(tenant_id) as tx:
        rows = await tx.fetch(_CARRIED, erasure.user_id, list(erasure.also), timeout=_SCAN_SECONDS)
    turns = [row[0] for row in rows]
    return (0, len(turns)) if histories is None else await histories(turns)


async def _begin(tx: Connection, name: str, actor: str) -> Erasure:
    row = await tx.fetchrow(_FIND, name)
    if row is None:
        raise CallerError("user_not_found", "User not found", status=404)
    user_id, name = str(row["id"]), row["name"]
    if user_id == actor:
        raise CallerError("own_data", "You cannot erase yourself; ask another administrator", status=409)
    await _refuse_gateway(tx, user_id)
    await check_no_open_work(tx, user_id)
    await tx.execute("UPDATE users SET disabled_at = coalesce(disabled_at, now()), roles = '{}' WHERE id = $1", user_id)
    await tx.execute("DELETE FROM api_tokens WHERE user_id = $1", user_id)
    begun = Erasure(user_id, name, 0, also=tuple(await announced_rows(tx, user_id)))
    return await _announce(tx, begun, actor, again=False)


async def _refuse_gateway(tx: Connection, user_id: str) -> None:
    """Checks that no subject of this user is left. They are other people, whose texts are not erased by mistake.

    Raises: CallerError 409 `subjects_left`.
    """
    left = [row["name"] for row in await tx.fetch(_SUBJECTS, user_id)]
    if left:
        raise CallerError(
            "subjects_left",
            f"The user is a gateway and still has subjects; erase each of them first, such as {left[0]}, or close the "
            "gateway's account",
            {"subjects": left},
            status=409,
        )


async def _announce(tx: Connection, erasure: Erasure, actor: str, *, again: bool) -> Erasure:
    """Announces the turns and audit rows that have not been announced yet. With `again`, writes nothing if there are
    none."""
    turns = [row[0] for row in await tx.fetch(_TURNS, erasure.user_id, erasure.turns)]
    named = await tx.fetch(_NAMED, erasure.user_id, erasure.name, list(KEPT_KINDS), timeout=_SCAN_SECONDS)
    also = [row["id"] for row in named]
    if again and not turns and not also:
        return erasure
    audit_id = await announce_erasure(tx, erasure.user_id, actor, turns, also)
    await tx.execute(_ALSO, also, audit_id)
    return replace(erasure, audit_id=audit_id, turns=(*erasure.turns, *turns), also=(*erasure.also, *also))


async def _conversations(db: Database, tenant_id: str, user_id: str) -> list[str]:
    async with db.transaction(tenant_id) as tx:
        return [row[0] for row in await tx.fetch("SELECT id::text FROM conversations WHERE user_id = $1", user_id)]


async def _run_chunk(tx: Connection, step: Step, erasure: Erasure) -> int:
    """Runs one chunk of a step and returns the number of affected rows."""
    return int((await tx.execute(step.sql, *erasure.parameters_of(step))).rpartition(" ")[2])


async def _end_erasure(
    tx: Connection, erasure: Erasure, actor: str, erased: Counter[str], histories: dict[str, JsonValue]
) -> None:
    # Under this lock no turn can start for the user. The steps see the work of earlier lock holders.
    await tx.execute("SELECT FROM users WHERE id = $1 FOR UPDATE", erasure.user_id)
    await check_no_open_work(tx, erasure.user_id)
    erasure = await _announce(tx, erasure, actor, again=True)
    await _run_steps(tx, (*OWN_STEPS, *OTHER_USERS_STEPS), erasure, erased)
    is_subject = await tx.fetchval(_FORGET, erasure.user_id, erasure.pseudonym)
    if not is_subject:  # The same subject can come again as a new user. It appears in no policy or list.
        await retire(tx, erasure.name, actor)
    counts: dict[str, JsonValue] = {"erasure": erasure.audit_id, "rows": {**erased}, "histories": histories}
    await audit.record(tx, ERASURE_DONE, erasure.user_id, counts, actor=actor, turn_id=None)


async def _run_steps(tx: Connection, steps: Sequence[Step], erasure: Erasure, erased: Counter[str]) -> None:
    for step in steps:
        while rows := await _run_chunk(tx, step, erasure):
            erased[step.table] += rows
