"""What goes with a person, table by table: each step a statement that takes some rows and finds none once it is done.

A person's are the own conversations with all that their turns said and did, and the own words in the turns of others:
name, comments, what was answered to a model in the place of a result. What others asked for stays theirs, also where
the person edited it; so do the entities, the prompts in use and the numbers of the tenant.
"""

from typing import NamedTuple

CHUNK_ROWS = 1_000
"""So that no statement holds its rows for long, and none reaches the API's limit of five seconds."""
KEPT_KINDS = ("user.erasure_begun", "user.erased")
"""Rows about erasures: they hold ids and counts alone, and account for what is gone."""
NAMING = (
    "name", "by", "to", "from", "for", "edited_by", "requested_by", "decided_by", "settled_by", "assignee",
    "claimed_by", "was_claimed_by", "fallback",
)  # fmt: skip
"""The keys under which values name a person."""
NAMED = "$.** ? (" + " || ".join(f"@.{key} == $name" for key in NAMING) + ")"


class Step(NamedTuple):
    """One kind of row, and how a chunk of it is erased."""

    table: str
    sql: str
    takes: tuple[str, ...] = ("user_id",)
    """Of the erasure, in the order of the statement's parameters."""


def _bodies(which: str) -> Step:
    sql = (
        "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $2 WHERE audit_id = ANY(ARRAY("
        f"SELECT b.audit_id FROM audit a JOIN audit_bodies b ON b.audit_id = a.id WHERE {which} AND b.data IS NOT NULL "
        f"AND a.kind <> ALL('{{{','.join(KEPT_KINDS)}}}') LIMIT {CHUNK_ROWS}))"
    )
    return Step("audit_bodies", sql, ("user_id", "audit_id"))


def _of_turns(table: str, sets: str, left: str, extra: str = "") -> Step:
    """Rows of the person's turns; `left` says which have not been erased yet."""
    sql = (
        f"UPDATE {table} x SET {sets} WHERE x.ctid = ANY(ARRAY(SELECT r.ctid FROM turns t JOIN {table} r "
        f"ON r.turn_id = t.id WHERE t.user_id = $1 AND ({left}) {extra} LIMIT {CHUNK_ROWS}))"
    )
    return Step(table, sql)


_TOUCHED = "SELECT turn_id FROM audit WHERE (actor = $1 OR id = ANY($2)) AND turn_id IS NOT NULL"
"""The turns in which the person did something or is named: every act of a person is audited."""


def _renamed(column: str) -> str:
    """A value with the person's pseudonym in the place of the name, and without words of the person's."""
    said = f"{column} || CASE WHEN $5 IN ({column}->>'by', {column}->>'settled_by') THEN {_SILENCE} ELSE '{{}}' END"
    return f"{column} = regexp_replace(({said})::text, $3, $4, 'g')::jsonb"


_SILENCE = "jsonb_build_object('comment', '', 'reason_code', '')"
_NAMING = ("user_id", "also", "naming", "renamed", "name")

OWN: tuple[Step, ...] = (
    _bodies("a.actor = $1"),
    _bodies("a.turn_id = ANY(ARRAY(SELECT id FROM turns WHERE user_id = $1))"),
    _bodies("a.subject = $1::uuid::text"),
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
    _of_turns("model_calls", "reply = NULL", "r.reply IS NOT NULL"),
    _of_turns(
        "tool_calls",
        "args = '{}', outcome = NULL, comment = NULL, provider_call_id = ''",
        "r.args <> '{}' OR r.outcome IS NOT NULL OR r.comment IS NOT NULL OR r.provider_call_id <> ''",
    ),
    _of_turns(
        "approvals",
        "args = '{}', snapshot = '{}', prompt_excerpt = '', reason = '', result = NULL, revision = NULL, "
        "decision = CASE WHEN x.decision IS NOT NULL THEN jsonb_build_object('type', x.decision->'type') END, "
        "withdrawal = CASE WHEN x.withdrawal IS NOT NULL THEN '{}'::jsonb END",
        "r.args <> '{}' OR r.snapshot <> '{}' OR r.prompt_excerpt <> '' OR r.reason <> '' OR r.result IS NOT NULL "
        "OR r.revision IS NOT NULL OR r.decision <> jsonb_build_object('type', r.decision->'type') "
        "OR r.withdrawal <> '{}'",
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
        "episodes",
        f"DELETE FROM episodes WHERE id = ANY(ARRAY(SELECT id FROM episodes WHERE user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "turns",
        "UPDATE turns SET metadata = '{}', system_prompt = NULL, memory_text = NULL, waiting = NULL, problem = NULL, "
        "answer = NULL, persona = NULL WHERE id = ANY(ARRAY(SELECT id FROM turns WHERE user_id = $1 "
        "AND (metadata <> '{}' OR num_nonnulls(system_prompt, memory_text, waiting, problem, answer, persona) > 0) "
        f"LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "conversations",
        "UPDATE conversations SET title = '', metadata = '{}', deleted_at = coalesce(deleted_at, now()) "
        "WHERE id = ANY(ARRAY(SELECT id FROM conversations WHERE user_id = $1 "
        f"AND (title <> '' OR metadata <> '{{}}' OR deleted_at IS NULL) LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "idempotency",
        "DELETE FROM idempotency WHERE ctid = ANY(ARRAY("
        f"SELECT ctid FROM idempotency WHERE user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    Step("api_tokens", "DELETE FROM api_tokens WHERE user_id = $1"),
    Step("prompt_versions", "DELETE FROM prompt_versions WHERE author = $1 AND stage = 'draft'"),
    Step("delegations", "UPDATE delegations SET ended_at = now() WHERE $1 IN (user_id, to_user) AND ended_at IS NULL"),
)
"""What is the person's own."""

ELSEWHERE: tuple[Step, ...] = (
    Step(
        "approval_votes",
        f"UPDATE approval_votes SET {_renamed('record')} WHERE (user_id = $1 OR seat_id = $1 OR approval_id = ANY("
        f"ARRAY(SELECT id FROM approvals WHERE turn_id = ANY(ARRAY({_TOUCHED}))))) AND record::text ~ $3",
        _NAMING,
    ),
    *(
        Step(
            "approvals",
            f"UPDATE approvals SET {_renamed(column)} WHERE (turn_id = ANY(ARRAY({_TOUCHED})) OR id = ANY("
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
    Step(  # what a person answered or said no with, as the model of somebody else's turn was told it
        "messages",
        'UPDATE messages SET content = \'{"message":"erased with the person who decided","status":"denied"}\' '
        "WHERE id = ANY(ARRAY(SELECT m.id FROM approvals a JOIN messages m ON m.turn_id = a.turn_id "
        "AND m.conversation_id = a.conversation_id AND m.call_id = a.call_id AND m.role = 'tool' "
        f"WHERE a.decided_by = $1 AND a.requested_by <> $1 "
        "AND a.status IN ('rejected', 'responded') AND m.content NOT LIKE '%erased with the person who decided%' "
        f"LIMIT {CHUNK_ROWS}))",
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
        f"UPDATE events SET {_renamed('data')} WHERE ctid = ANY(ARRAY(SELECT ctid FROM events "
        f"WHERE turn_id = ANY(ARRAY({_TOUCHED})) AND data::text ~ $3 LIMIT {CHUNK_ROWS}))",
        _NAMING,
    ),
    Step(
        "idempotency",
        "UPDATE idempotency SET answer = '{\"erased\": true}' WHERE answer <> '{\"erased\": true}' "
        "AND (answer->>'turn_id' IN (SELECT id::text FROM turns WHERE user_id = $1) "
        f"OR jsonb_path_exists(answer, '{NAMED}', jsonb_build_object('name', $2::text)))",
        ("user_id", "name"),
    ),
)
"""What is the person's in what belongs to others."""
