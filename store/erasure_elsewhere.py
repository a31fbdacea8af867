"""What is a person's in what belongs to others: the name, comments, and reasons that models were given.

What others asked for stays theirs, also where the person edited it, and what the engine said of it stays too.
"""

from store.erasure_steps import CHUNK_ROWS, Step

NAMING = (
    "name", "by", "to", "from", "for", "edited_by", "requested_by", "decided_by", "settled_by", "assignee",
    "claimed_by", "was_claimed_by", "created_by", "invited_by", "fallback", "reviewer", "reviewers", "reviewers_before",
)  # fmt: skip
"""The keys under which values name a person, alone or in a list."""
NAMED = "$.** ? (" + " || ".join(f"@.{key} == $name" for key in NAMING) + ")"
"""In lax mode, so that a list is looked into."""
TOUCHED = "SELECT turn_id FROM audit WHERE (actor = $1 OR id = ANY($2)) AND turn_id IS NOT NULL"
"""The turns in which the person did something or is named: every act of a person is audited."""

_SILENCE = "jsonb_build_object('comment', '', 'reason_code', '')"
_NAMING = ("user_id", "also", "naming", "renamed", "name")
_BY_HAND = ("user_id", "also")
_UNRAISED = ("user_id", "also", "unraised")


def _renamed(column: str) -> str:
    """A value with the person's pseudonym in the place of the name, and without words of the person's."""
    said = f"{column} || CASE WHEN $5 IN ({column}->>'by', {column}->>'settled_by') THEN {_SILENCE} ELSE '{{}}' END"
    return f"{column} = regexp_replace(({said})::text, $3, $4, 'g')::jsonb"


# The reason of a denial is the last word on its call: that of whoever took it back, else of whoever decided. It stands
# in the tool's message, and the beginning of that in the outcome and the event: JSON, cut somewhere maybe. A call
# that is still planned was denied as its turn broke off, before the model could be told.
_DENIED = f"""
SELECT a.turn_id, a.call_id, a.conversation_id FROM approvals a
JOIN tool_calls k ON k.turn_id = a.turn_id AND k.call_id = a.call_id AND k.state IN ('denied', 'planned')
WHERE a.turn_id = ANY(ARRAY({TOUCHED})) AND CASE WHEN a.withdrawal IS NULL THEN a.decided_by = $1 ELSE EXISTS (
  SELECT FROM audit w WHERE w.subject = a.id::text AND w.kind = 'approval.withdrawn' AND w.actor = $1) END
"""


def _reasoned(text: str) -> str:
    """Whether a denial gives a reason; inside of its strings the quotes are escaped."""
    return f"""position(',"reason":"' IN {text}) > 0"""


def _unreasoned(text: str) -> str:
    return f"""regexp_replace({text}, ',"reason":".*', ',"status":"denied"}}')"""


_TOLD, _SHOWN = "k.outcome #>> '{message,text}'", "data->>'result'"

ELSEWHERE: tuple[Step, ...] = (
    Step(
        "approval_votes",
        f"UPDATE approval_votes SET {_renamed('record')} WHERE (user_id = $1 OR seat_id = $1 OR approval_id = ANY("
        f"ARRAY(SELECT id FROM approvals WHERE turn_id = ANY(ARRAY({TOUCHED}))))) AND record::text ~ $3",
        _NAMING,
    ),
    *(
        Step(
            "approvals",
            f"UPDATE approvals SET {_renamed(column)} WHERE (turn_id = ANY(ARRAY({TOUCHED})) OR id = ANY("
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
    Step(  # a later pause of the turn: notes of the engine's own have no id, and say who refused, and why
        "approvals",
        "UPDATE approvals SET snapshot = jsonb_set(snapshot, '{messages}', (SELECT jsonb_agg("
        "CASE WHEN m ? 'id' OR m ? 'skill_id' THEN m ELSE m - 'text' END ORDER BY n) "
        "FROM jsonb_array_elements(snapshot->'messages') WITH ORDINALITY AS each(m, n))) "
        f"WHERE turn_id = ANY(ARRAY({TOUCHED})) AND jsonb_path_exists(snapshot, "
        "'$.messages[*] ? (!exists(@.id) && !exists(@.skill_id) && exists(@.text))')",
        _BY_HAND,
    ),
    Step(
        "messages",
        f"UPDATE messages SET content = {_unreasoned('content')} WHERE id = ANY(ARRAY(SELECT m.id "
        f"FROM ({_DENIED}) d JOIN messages m ON m.turn_id = d.turn_id AND m.conversation_id = d.conversation_id "
        f"AND m.call_id = d.call_id AND m.role = 'tool' WHERE {_reasoned('m.content')} LIMIT {CHUNK_ROWS}))",
        _BY_HAND,
    ),
    Step(
        "tool_calls",
        f"UPDATE tool_calls k SET outcome = jsonb_set(k.outcome, '{{message,text}}', to_jsonb({_unreasoned(_TOLD)})) "
        f"FROM ({_DENIED}) d WHERE k.turn_id = d.turn_id AND k.call_id = d.call_id AND {_reasoned(_TOLD)}",
        _BY_HAND,
    ),
    Step(
        "events",
        f"UPDATE events SET data = jsonb_set(data, '{{result}}', to_jsonb({_unreasoned(_SHOWN)})) "
        f"WHERE ctid = ANY(ARRAY(SELECT e.ctid FROM ({_DENIED}) d JOIN events e ON e.turn_id = d.turn_id "
        "AND e.conversation_id = d.conversation_id AND e.call_id = d.call_id AND e.kind = 'tool.denied' "
        f"WHERE {_reasoned('e.' + _SHOWN)} LIMIT {CHUNK_ROWS}))",
        _BY_HAND,
    ),
    Step(  # who did not raise a limit, and why
        "turns",
        "UPDATE turns SET problem = jsonb_set(problem, '{message}', to_jsonb(regexp_replace("
        "problem->>'message', $3, '; a reviewer did not raise it'))) "
        f"WHERE id = ANY(ARRAY({TOUCHED})) AND problem->>'message' ~ $3",
        _UNRAISED,
    ),
    Step(
        "events",
        "UPDATE events SET data = jsonb_set(data, '{message}', to_jsonb(regexp_replace("
        "data->>'message', $3, '; a reviewer did not raise it'))) "
        f"WHERE turn_id = ANY(ARRAY({TOUCHED})) AND data->>'message' ~ $3",
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
        f"UPDATE events SET {_renamed('data')} WHERE ctid = ANY(ARRAY(SELECT ctid FROM events "
        f"WHERE turn_id = ANY(ARRAY({TOUCHED})) AND data::text ~ $3 LIMIT {CHUNK_ROWS}))",
        _NAMING,
    ),
    Step(
        "idempotency",
        "UPDATE idempotency SET answer = '{\"erased\": true}' WHERE answer <> '{\"erased\": true}' "
        "AND (answer->>'turn_id' IN (SELECT id::text FROM turns WHERE user_id = $1) "
        # Of many at once an answer may tell of a decision before, with the arguments that it changed.
        "OR jsonb_path_query_array(answer, '$.items[*].id') ?| ARRAY("
        "SELECT a.id::text FROM turns t JOIN approvals a ON a.turn_id = t.id WHERE t.user_id = $1) "
        f"OR jsonb_path_exists(answer, '{NAMED}', jsonb_build_object('name', $2::text)))",
        ("user_id", "name"),
    ),
)
