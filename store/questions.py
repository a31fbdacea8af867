"""What a turn asks of its own user: opened with the pause, answered once, read fresh when the run goes on.

The turn's row is locked before a question's, as everywhere. The first answer that fits the question's schema counts.
"""

from datetime import datetime

import asyncpg
from pydantic import JsonValue

from contracts.approvals import OpenAsk, VerdictsAsk
from contracts.errors import CallerError
from contracts.events import CLARIFICATION_REQUESTED, CLIENT_RUN_REQUESTED
from contracts.frozen import Frozen
from contracts.ids import approval_id
from contracts.people import Question, RequestKind, RequestRef, Verdict, VerdictState
from contracts.turns import TurnAddress
from policy.answering import Asked, answer_refusal
from store import audit
from store.database import Connection
from store.journal import NewEvent
from store.outbox import Note, Wake, put

EVENTS = {RequestKind.CLARIFICATION: CLARIFICATION_REQUESTED, RequestKind.CLIENT_RUN: CLIENT_RUN_REQUESTED}
_INSERT = """
INSERT INTO questions (id, tenant_id, conversation_id, turn_id, call_id, kind, asked, answer_schema, expires_at)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8::int))
ON CONFLICT (id) DO NOTHING RETURNING expires_at
"""
_LOCK = """
SELECT q.*, t.user_id, t.stop_requested_at IS NOT NULL OR t.ended_at IS NOT NULL AS over, clock_timestamp() AS now
FROM turns t JOIN questions q ON q.turn_id = t.id WHERE t.id = $1 AND q.id = $2 FOR UPDATE OF t, q
"""
_ANSWER = """
UPDATE questions SET status = 'answered', answer = $2, answered_by = $3, closed_at = clock_timestamp() WHERE id = $1
"""


class Answered(Frozen):
    """An answer that now stands."""

    request_id: str
    turn_id: str
    conversation_id: str


async def open_questions(
    tx: Connection, ask: OpenAsk, expires_seconds: int
) -> tuple[list[RequestRef], list[NewEvent], bool]:
    """The open questions of a pause, the events of those that are new, and whether one is answered already.

    To ask again for what is open changes nothing of it. `tx` holds the turn's lock.
    """
    requests, events, decided = list[RequestRef](), list[NewEvent](), False
    for question in ask.questions:
        request_id = approval_id(ask.address.turn_id, question.call_id)
        expires_at = await tx.fetchval(
            _INSERT,
            request_id,
            ask.address.conversation_id,
            ask.address.turn_id,
            question.call_id,
            question.kind.value,
            question.asked,
            question.answer_schema,
            expires_seconds,
        )
        if expires_at is not None:
            events.append(_told(question, request_id, expires_at))
        else:
            for found in await tx.fetch("SELECT expires_at, status FROM questions WHERE id = $1", request_id):
                expires_at, decided = found["expires_at"], decided or found["status"] != "pending"
        requests.append(
            RequestRef(
                request_id=request_id, kind=question.kind, call_id=question.call_id, tool="", expires_at=expires_at
            )
        )
    return requests, events, decided


def _told(question: Question, request_id: str, expires_at: datetime) -> NewEvent:
    body: dict[str, JsonValue] = {
        **question.asked,
        "request_id": request_id,
        "answer_schema": question.answer_schema,
        "expires_at": expires_at.isoformat(),
    }
    return NewEvent(EVENTS[question.kind], body)


async def read_answers(tx: Connection, ask: VerdictsAsk) -> dict[str, Verdict]:
    """By request, what the records say of the turn's questions now; overdue ones expire here."""
    turn_id = ask.address.turn_id
    expired = await tx.fetch(
        "UPDATE questions SET status = 'expired', closed_at = clock_timestamp() "
        "WHERE turn_id = $1 AND status = 'pending' AND expires_at <= clock_timestamp() RETURNING id",
        turn_id,
    )
    for row in expired:
        await audit.record(tx, "question.expired", str(row["id"]), {}, actor=None, turn_id=turn_id)
    rows = await tx.fetch("SELECT id, call_id, status, answer FROM questions WHERE turn_id = $1", turn_id)
    return {
        str(row["id"]): Verdict(
            request_id=str(row["id"]),
            call_id=row["call_id"],
            state=VerdictState(row["status"]),
            answer=row["answer"] or {},
        )
        for row in rows
    }


async def look(tx: Connection, turn_id: str, request_id: str, user_id: str | None) -> dict[str, object]:
    """One question, to the user whose turn it is (None: to anybody of the tenant).

    Raises: CallerError 404 `question_not_found`.
    """
    row = await tx.fetchrow(
        "SELECT q.* FROM questions q JOIN turns t ON t.id = q.turn_id "
        "WHERE q.id = $1 AND q.turn_id = $2 AND ($3::uuid IS NULL OR t.user_id = $3)",
        request_id,
        turn_id,
        user_id,
    )
    if row is None:
        raise _not_found()
    return {
        "id": str(row["id"]),
        "turn_id": turn_id,
        "kind": row["kind"],
        "asked": row["asked"],
        "answer_schema": row["answer_schema"],
        "status": row["status"],
        "asked_at": row["asked_at"],
        "expires_at": row["expires_at"],
        "answered_at": row["closed_at"] if row["status"] == "answered" else None,
    }


async def answer(
    tx: Connection, turn_id: str, request_id: str, user_id: str, kind: str, payload: dict[str, JsonValue]
) -> tuple[Answered, Note]:
    """Take this as the answer; the note rings the turn.

    Raises: CallerError 404, 409 `already_answered`, 410, 409 `turn_stopped`, 422, in this order.
    """
    row = await tx.fetchrow(_LOCK, turn_id, request_id)
    if row is None or str(row["user_id"]) != user_id:
        raise _not_found()
    refused = answer_refusal(_asked(row), kind, payload)
    if refused is not None:
        raise refused
    await tx.execute(_ANSWER, request_id, payload, user_id)
    address = TurnAddress(
        tenant_id=row["tenant_id"], conversation_id=str(row["conversation_id"]), turn_id=str(row["turn_id"])
    )
    await audit.record(tx, "question.answered", request_id, {"kind": kind}, actor=user_id, turn_id=turn_id)
    note = await put(tx, address.tenant_id, Wake.RING, turn_id, request_id)
    return Answered(request_id=request_id, turn_id=turn_id, conversation_id=address.conversation_id), note


def _asked(row: asyncpg.Record) -> Asked:
    return Asked(row["kind"], row["status"], row["answer_schema"], row["expires_at"], row["now"], row["over"])


def _not_found() -> CallerError:
    return CallerError("question_not_found", "there is no such question of a turn of yours", status=404)
