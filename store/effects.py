"""Effects that a crash left unknown, settled by a person (design section 4)."""

from dataclasses import dataclass

import asyncpg
from pydantic import JsonValue

from contracts.digests import canonical_json
from contracts.errors import CallerError
from contracts.events import TOOL_ERROR, TOOL_RESULT
from contracts.messages import MessageRef, Role
from contracts.tools import CallState, ToolOutcome
from contracts.turns import TurnAddress
from policy.decision import Decider
from policy.seats import Panel, Seat, seats_for
from policy.text import estimated_tokens, is_blank, preview
from policy.withdrawal import ADMIN
from store import audit
from store.database import Connection
from store.ids import new_id
from store.journal import NewEvent, NewMessage, write
from store.outbox import Note, Wake, put
from store.reviews import seated, signed_in

REVIEWER = "reviewer"
"""Who settles a call that needed no approval."""
OUTCOMES = {"happened": CallState.DONE, "did_not_happen": CallState.FAILED}
"""What a person may state, and what the ledger then says."""


async def settle_by_person(
    tx: Connection, key: str, person: Decider, outcome: str, comment: str
) -> tuple[TurnAddress, Note]:
    """State what became of an effect; the note rings its turn, which goes on with the truth.

    Whoever could decide on the call's approval now may, and an admin; of a call that needed none, whoever has the role
    reviewer. Never who asked for it.

    Raises: CallerError 404, 403, 409 already settled, 409 `too_early` for "did_not_happen" before the reservation's
    deadline has passed, 422.
    """
    row = await tx.fetchrow(
        "SELECT t.id AS turn_id, t.tenant_id, t.conversation_id, t.user_id, t.ended_at FROM turns t "
        "WHERE t.id = (SELECT turn_id FROM tool_calls WHERE key = $1) FOR UPDATE",
        key,
    )
    if row is None or not person.sees(str(row["user_id"])):
        raise CallerError("effect_not_found", "there is no such effect", status=404)
    settler = await seated(tx, person)  # after the lock: the roles of now, not those that the request came with
    seat = await _seat(tx, key, str(row["user_id"]), settler)
    if outcome not in OUTCOMES or is_blank(comment):
        raise CallerError(
            "outcome_invalid", "give outcome happened or did_not_happen, and a comment that says how you know"
        )
    call = await tx.fetchrow(
        "SELECT *, clock_timestamp() < quiet_at AS early FROM tool_calls WHERE key = $1 FOR UPDATE", key
    )
    if call is None or call["state"] != CallState.OUTCOME_UNKNOWN.value:
        raise CallerError("already_settled", "this effect is settled", status=409)
    if outcome == "did_not_happen" and call["early"]:
        raise CallerError(
            "too_early",
            "a frozen worker may still send it; wait for the deadline",
            {"deadline": call["quiet_at"].isoformat()},
            status=409,
        )
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["turn_id"])
    )
    said = _Statement(settler, seat, outcome, comment)
    return address, await _record(tx, address, call, said, ended=row["ended_at"] is not None)


async def _seat(tx: Connection, key: str, asked_by: str, settler: Decider) -> Seat:
    """The seat in which this person may settle the call.

    Raises: CallerError 403 `role_required`, `not_a_reviewer`, `own_request`.
    """
    is_admin = bool(await tx.fetchval("SELECT 'admin' = ANY(roles) FROM users WHERE id = $1", asked_by))
    approval = await tx.fetchrow(
        "SELECT a.reviewer_role, a.reviewers, a.assignee FROM approvals a JOIN tool_calls c "
        "ON c.turn_id = a.turn_id AND c.call_id = a.call_id WHERE c.key = $1",
        key,
    )
    panel = Panel(asked_by, REVIEWER, requester_is_admin=is_admin)
    if approval is not None:
        assignee = str(approval["assignee"] or "")
        panel = Panel(asked_by, approval["reviewer_role"], False, tuple(approval["reviewers"]), assignee, is_admin)
    try:
        return seats_for(panel, settler.user_id, settler.seats, settler.credential)[0]
    except CallerError:
        if approval is None or ADMIN not in settler.roles or settler.user_id == asked_by:
            raise
        if panel.is_for(settler.credential):
            raise settler.credential.own_request() from None
        return settler.seats[0]


@dataclass(frozen=True, slots=True)
class _Statement:
    """What a person said, and who, in whose place."""

    by: Decider
    seat: Seat
    outcome: str
    comment: str


async def _record(tx: Connection, address: TurnAddress, call: asyncpg.Record, said: _Statement, *, ended: bool) -> Note:
    state = OUTCOMES[said.outcome]
    body: dict[str, JsonValue] = {"status": said.outcome, "settled_by": said.by.name, "comment": said.comment}
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
        said.by.user_id,
        said.comment,
        address.turn_id,
        call["call_id"],
    )
    told = body | {"signed_in": await signed_in(tx, said.by.credential)}
    if said.seat.user_id != said.by.user_id:
        told["for"] = said.seat.name
    await audit.record(tx, "effect.settled", call["key"], told, actor=said.by.user_id, turn_id=address.turn_id)
    note = await put(tx, address.tenant_id, Wake.RING, address.turn_id, call["key"])
    kind = TOOL_RESULT if state is CallState.DONE else TOOL_ERROR
    event = NewEvent(kind, {"tool": call["tool"], **body}, call["call_id"])
    if not ended:  # the last event of an ended turn is its `done`
        await write(tx, address, [event], [message])
    return note
