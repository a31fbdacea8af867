"""What goes with a person, table by table: each step a statement that takes some rows and finds none once it is done.

Here is the person's own: the conversations with all that their turns said and did. The entities, the prompts in use and
the numbers of the tenant stay.
"""

from typing import NamedTuple

from policy.audit_erasures import KEPT_KINDS
from store.quotas import FORGET_TEXTS

CHUNK_ROWS = 1_000
"""So that no statement holds its rows for long, and none reaches the API's limit of five seconds."""


class Step(NamedTuple):
    """One kind of row, and how a chunk of it is erased."""

    table: str
    sql: str
    takes: tuple[str, ...] = ("user_id",)
    """Of the erasure, in the order of the statement's parameters."""


def _bodies(which: str, *takes: str) -> Step:
    sql = (
        "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $2 WHERE audit_id = ANY(ARRAY("
        f"SELECT b.audit_id FROM audit a JOIN audit_bodies b ON b.audit_id = a.id WHERE {which} AND b.data IS NOT NULL "
        f"AND a.kind <> ALL('{{{','.join(KEPT_KINDS)}}}') LIMIT {CHUNK_ROWS}))"
    )
    return Step("audit_bodies", sql, takes)


def _of_turns(table: str, sets: str, left: str, extra: str = "") -> Step:
    """Rows of the person's turns; `left` says which have not been erased yet."""
    sql = (
        f"UPDATE {table} x SET {sets} WHERE x.ctid = ANY(ARRAY(SELECT r.ctid FROM turns t JOIN {table} r "
        f"ON r.turn_id = t.id WHERE t.user_id = $1 AND ({left}) {extra} LIMIT {CHUNK_ROWS}))"
    )
    return Step(table, sql)


OWN: tuple[Step, ...] = (
    _bodies("a.actor = $1", "user_id", "audit_id"),
    _bodies("a.turn_id = ANY($1::uuid[])", "turns", "audit_id"),  # as announced: whose a turn is can be changed
    _bodies("a.subject = $1::uuid::text", "user_id", "audit_id"),
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
    _of_turns("model_calls", "reply = NULL, said = NULL", "r.reply IS NOT NULL OR r.said IS NOT NULL"),
    # Without their nonce nobody can guess at what digests were made of; the ledger's digest has none.
    _of_turns(
        "tool_calls",
        "args = '{}', digest = '', outcome = NULL, comment = NULL, provider_call_id = ''",
        "r.args <> '{}' OR r.digest <> '' OR r.outcome IS NOT NULL OR r.comment IS NOT NULL "
        "OR r.provider_call_id <> ''",
    ),
    Step(
        "bundles",
        "DELETE FROM bundles WHERE ctid = ANY(ARRAY(SELECT b.ctid FROM turns t "
        f"JOIN bundles b ON b.turn_id = t.id WHERE t.user_id = $1 LIMIT {CHUNK_ROWS}))",
    ),
    _of_turns(
        "approvals",
        "args = '{}', nonce = '', snapshot = '{}', prompt_excerpt = '', reason = '', result = NULL, revision = NULL, "
        "decision = CASE WHEN x.decision IS NOT NULL THEN jsonb_build_object('type', x.decision->'type') END, "
        "withdrawal = CASE WHEN x.withdrawal IS NOT NULL THEN '{}'::jsonb END, "
        "preview = CASE WHEN x.preview IS NOT NULL THEN '{}'::jsonb END",
        "r.args <> '{}' OR r.nonce <> '' OR r.snapshot <> '{}' OR r.prompt_excerpt <> '' OR r.reason <> '' "
        "OR r.result IS NOT NULL OR r.revision IS NOT NULL "
        "OR r.decision <> jsonb_build_object('type', r.decision->'type') OR r.withdrawal <> '{}' OR r.preview <> '{}'",
    ),
    _of_turns(
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
    # With its versions; what the person proposed, and the own words beside what is shared (migration 0012).
    Step("memory_documents", f"SELECT FROM forget_documents_of($1, {CHUNK_ROWS})"),
    Step(
        "turns",
        "UPDATE turns SET metadata = '{}', system_prompt = NULL, memory_text = NULL, waiting = NULL, problem = NULL, "
        "answer = NULL, output = NULL, persona = NULL WHERE id = ANY(ARRAY(SELECT id FROM turns WHERE user_id = $1 "
        "AND (metadata <> '{}' "
        "OR num_nonnulls(system_prompt, memory_text, waiting, problem, answer, output, persona) > 0) "
        f"LIMIT {CHUNK_ROWS}))",
    ),
    Step(
        "conversations",
        "UPDATE conversations SET title = '', metadata = '{}', text_bytes = 0, "
        "deleted_at = coalesce(deleted_at, now()) "
        "WHERE id = ANY(ARRAY(SELECT id FROM conversations WHERE user_id = $1 "
        f"AND (title <> '' OR metadata <> '{{}}' OR text_bytes > 0 OR deleted_at IS NULL) LIMIT {CHUNK_ROWS}))",
    ),
    Step("byte_usage", FORGET_TEXTS),  # what is counted of texts; files and documents count themselves
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
"""What is the person's own."""
