"""Effects whose outcome a crash left unknown, and their settlement by a user."""

from dataclasses import dataclass

import asyncpg
from pydantic import JsonValue

from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.events import TOOL_ERROR, TOOL_RESULT
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.core.approvals.assignments import ADMIN
from perdure.core.approvals.decisions import Decider, Panel, Reviewer, represented_reviewers
from perdure.core.text import estimated_tokens, is_blank, preview
from perdure.store import audit
from perdure.store.approvals.review import signed_in, with_delegations
from perdure.store.database import Connection, new_id
from perdure.store.delivery.outbox import Note, Wake, put
from perdure.store.events.event_log import NewEvent, NewMessage, write
from perdure.store.paging import WhereBuilder, cursor_after, read_key_cursor

REVIEWER = "reviewer"
"""The role that settles calls without an approval."""
OUTCOMES = {"happened": CallState.DONE, "did_not_happen": CallState.FAILED}
"""The outcomes that a user can state, with their states in the ledger."""


async def settle_by_person(
    tx: Connection, key: str, decider: Decider, outcome: str, comment: str
) -> tuple[TurnAddress, Note]:
    """Records the outcome of an effect. The returned note wakes its turn, which continues with that outcome.

    Users who can decide on the call's approval now can settle it, and so can admins. Reviewers settle a call without an
    approval. The requester cannot.

    Raises: CallerError 404, 403, 409 already settled, 409 `too_early` for "did_not_happen" before the reservation's
    deadline has passed, 422.
    """
    row = await tx.fetchrow(
        "SELECT t.id AS turn_id, t.tenant_id, t.conversation_id, t.user_id, t.ended_at FROM turns t "
        "WHERE t.id = (SELECT turn_id FROM tool_calls WHERE key = $1) FOR UPDATE",
        key,
    )
    if row is None or not decider.sees(str(row["user_id"])):
        raise CallerError("effect_not_found", "Effect not found", status=404)
    settler = await with_delegations(
        tx, decider
    )  # reads the roles after the lock, because those of the request may be outdated
    reviewer = await _settling_reviewer(tx, key, str(row["user_id"]), settler)
    if outcome not in OUTCOMES or is_blank(comment):
        raise CallerError(
            "outcome_invalid", "Send the outcome (happened or did_not_happen) and a comment that says how you know"
        )
    call = await _lock_unsettled(tx, key, outcome)
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["turn_id"])
    )
    statement = _Statement(settler, reviewer, outcome, comment)
    return address, await _record(tx, address, call, statement, ended=row["ended_at"] is not None)


async def _lock_unsettled(tx: Connection, key: str, outcome: str) -> asyncpg.Record:
    """Returns the call of an effect whose outcome is unknown, locked.

    Raises: CallerError 409 `already_settled`, `too_early`.
    """
    call = await tx.fetchrow(
        "SELECT *, clock_timestamp() < quiet_at AS early FROM tool_calls WHERE key = $1 FOR UPDATE", key
    )
    if call is None or call["state"] != CallState.OUTCOME_UNKNOWN.value:
        raise CallerError("already_settled", "This effect is already settled", status=409)
    if outcome == "did_not_happen" and call["early"]:
        raise CallerError(
            "too_early",
            "A suspended worker may still send this call; settle it after the deadline",
            {"deadline": call["quiet_at"].isoformat()},
            status=409,
        )
    return call


async def _settling_reviewer(tx: Connection, key: str, requester_id: str, settler: Decider) -> Reviewer:
    """Returns the user on whose behalf this user can settle the call: themselves, or the user who delegated to them.

    Raises: CallerError 403 `role_required`, `not_a_reviewer`, `own_request`.
    """
    is_admin = bool(await tx.fetchval("SELECT 'admin' = ANY(roles) FROM users WHERE id = $1", requester_id))
    approval = await tx.fetchrow(
        "SELECT a.reviewer_role, a.reviewers, a.assignee FROM approvals a JOIN tool_calls c "
        "ON c.turn_id = a.turn_id AND c.call_id = a.call_id WHERE c.key = $1",
        key,
    )
    panel = Panel(requester_id, REVIEWER, requester_is_admin=is_admin)
    if approval is not None:
        assignee = str(approval["assignee"] or "")
        panel = Panel(requester_id, approval["reviewer_role"], False, tuple(approval["reviewers"]), assignee, is_admin)
    try:
        return represented_reviewers(panel, settler.user_id, settler.represents, settler.credential)[0]
    except CallerError:
        if approval is None or ADMIN not in settler.roles or settler.user_id == requester_id:
            raise
        if panel.is_for(settler.credential):
            raise settler.credential.own_request() from None
        return settler.represents[0]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A stated outcome, its author, and the user on whose behalf the author acts."""

    by: Decider
    reviewer: Reviewer
    outcome: str
    comment: str


async def _record(
    tx: Connection, address: TurnAddress, call: asyncpg.Record, statement: _Statement, *, ended: bool
) -> Note:
    state = OUTCOMES[statement.outcome]
    body: dict[str, JsonValue] = {
        "status": statement.outcome,
        "settled_by": statement.by.name,
        "comment": statement.comment,
    }
    content = canonical_json(body)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call["call_id"], tokens=estimated_tokens(content))
    ref = MessageRef(
        id=message.id, role=Role.TOOL, text=preview(content), tokens=message.tokens, call_id=call["call_id"]
    )
    settled = ToolOutcome(call_id=call["call_id"], state=state, message=ref)
    await tx.execute(
        "WITH closed AS (UPDATE approvals SET status = $3, version = version + 1 "
        "WHERE turn_id = $6 AND call_id = $7 AND status = 'outcome_unknown') "
        "UPDATE tool_calls SET state = $3, outcome = $2, settled_at = now(), settled_by = $4, comment = $5 "
        "WHERE key = $1",
        call["key"],
        settled.model_dump(mode="json"),
        state.value,
        statement.by.user_id,
        statement.comment,
        address.turn_id,
        call["call_id"],
    )
    data = body | {"signed_in": await signed_in(tx, statement.by.credential)}
    if statement.reviewer.user_id != statement.by.user_id:
        data["for"] = statement.reviewer.name
    await audit.record(tx, "effect.settled", call["key"], data, actor=statement.by.user_id, turn_id=address.turn_id)
    note = await put(tx, address.tenant_id, Wake.REQUEST, address.turn_id, call["key"])
    kind = TOOL_RESULT if state is CallState.DONE else TOOL_ERROR
    event = NewEvent(kind, {"tool": call["tool"], **body}, call["call_id"])
    if not ended:  # `done` is the last event of an ended turn
        await write(tx, address, [event], [message])
    return note


_SELECT = (
    "SELECT c.*, s.name AS settler, clock_timestamp() < c.quiet_at AS early, "
    "CASE WHEN c.state = 'outcome_unknown' THEN (SELECT e.data FROM events e WHERE e.turn_id = c.turn_id "
    "AND e.call_id = c.call_id AND e.kind = 'tool.error' ORDER BY e.seq DESC LIMIT 1) END AS said FROM tool_calls c "
    "JOIN turns t ON t.id = c.turn_id LEFT JOIN users s ON s.id = c.settled_by"
)


async def list_effects(
    tx: Connection, user_id: str | None, state: str | None, limit: int, cursor: str | None
) -> tuple[list[dict[str, object]], str | None]:
    """Returns a page of calls that are not reads, newest first, and the cursor of the next page. With `user_id`, only
    calls of that user's turns."""
    rows = await tx.fetch(*_page(user_id, state, limit, cursor))
    last = rows[limit - 1] if len(rows) > limit else None
    shown = [_show_effect(row) for row in rows[:limit]]
    return shown, cursor_after(last["created_at"], last["key"]) if last else None


def _page(user_id: str | None, state: str | None, limit: int, cursor: str | None) -> tuple[str, *tuple[object, ...]]:
    """Returns the SQL of one page plus one row, and its parameters."""
    where = WhereBuilder("c.effect <> 'read'")
    where.add_state("c.state", state, frozenset(CallState))
    where.add_condition("t.user_id = {0}", user_id)
    # All calls of a round have the same time, so the key orders them.
    where.add_condition("(c.created_at, c.key) < ({0}, {1})", *read_key_cursor(cursor))
    limit_parameter = where.parameter(limit + 1)
    return f"{_SELECT} {where} ORDER BY c.created_at DESC, c.key DESC LIMIT {limit_parameter}", *where.given


async def get_effect(tx: Connection, key: str, user_id: str | None) -> dict[str, object]:
    """Returns one effect with its approval and events. With `user_id`, only effects of that user's turns are found.

    Raises: CallerError 404 `effect_not_found`.
    """
    row = await tx.fetchrow(
        f"{_SELECT} WHERE c.key = $1 AND c.effect <> 'read' AND ($2::uuid IS NULL OR t.user_id = $2)", key, user_id
    )
    if row is None:
        raise CallerError("effect_not_found", "Effect not found", status=404)
    return _show_effect(row) | {
        # Until the deadline, a frozen worker may still send the call.
        "may_be_settled_as": ["happened"] + ([] if row["early"] else ["did_not_happen"])
        if row["state"] == "outcome_unknown"
        else [],
        "failed_tries": row["errors"],
        "late_answers": row["lost_settles"],
        "outcome": row["outcome"],
        "approval": await _read_approval(tx, row),
        "events": await _read_events(tx, row),
    }


def _show_effect(row: asyncpg.Record) -> dict[str, object]:
    said = row["said"] or {}
    return {
        "key": row["key"],
        "state": row["state"],
        "tool": row["tool"],
        "effect": row["effect"],
        "args": row["args"],
        "agent": row["agent_id"],
        "turn_id": str(row["turn_id"]),
        "call_id": row["call_id"],
        "attempts": row["epoch"],
        "first_sent_at": row["first_sent_at"],
        "deadline": row["quiet_at"],
        "settled_at": row["settled_at"],
        "settled_by": row["settler"],
        "comment": row["comment"],
        "known": said.get("known"),
        "failure": said.get("failure"),
        "created_at": row["created_at"],
    }


async def _read_approval(tx: Connection, call: asyncpg.Record) -> dict[str, object] | None:
    """Returns the approval of the call. Its decision contains the arguments that were sent if a reviewer edited
    them."""
    row = await tx.fetchrow(
        "SELECT a.id, a.status, a.decision, a.decided_at, u.name AS decider FROM approvals a "
        "LEFT JOIN users u ON u.id = a.decided_by WHERE a.turn_id = $1 AND a.call_id = $2",
        call["turn_id"],
        call["call_id"],
    )
    if row is None:
        return None
    return {
        "id": str(row["id"]),
        "status": row["status"],
        "decision": row["decision"],
        "decided_by": row["decider"],
        "decided_at": row["decided_at"],
    }


async def _read_events(tx: Connection, call: asyncpg.Record) -> list[dict[str, object]]:
    """Returns the events of the call, oldest first, at most 100."""
    rows = await tx.fetch(
        "SELECT kind, at, data FROM events WHERE turn_id = $1 AND call_id = $2 ORDER BY seq LIMIT 100",
        call["turn_id"],
        call["call_id"],
    )
    return [dict(row) for row in rows]
