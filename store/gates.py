"""The gate of a turn that is started again over its records (S0-27): what it asked for, and what came before it."""

from dataclasses import dataclass

import asyncpg

from contracts.ids import step_of
from contracts.messages import CallRef, MessageRef, Role
from contracts.people import RequestRef
from contracts.turns import TurnAddress
from policy.text import preview
from policy.transcript import Round, keep_rounds
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Gate:
    """A round that waits for people."""

    requests: tuple[RequestRef, ...]
    round: MessageRef
    """The assistant message whose calls they gate."""
    earlier: tuple[MessageRef, ...]
    """The rounds before it that have run, each with its answers: a warm resume would still hold them."""


async def find_gate(tx: Connection, address: TurnAddress) -> Gate | None:
    """The gate that the turn had come to; None where nothing of what it asked for is still to run.

    A round that was refused whole stays planned for ever, so of those with an unsettled call the latest counts. All
    of its requests are the gate's, also of calls that have run by now: the round is replayed whole.
    """
    rows = await tx.fetch(
        "SELECT a.id, a.call_id, a.tool, a.expires_at, c.state NOT IN ('done', 'failed', 'denied') AS to_run "
        "FROM approvals a JOIN tool_calls c ON c.turn_id = a.turn_id AND c.call_id = a.call_id "
        "WHERE a.turn_id = $1 AND a.status <> 'cancelled' ORDER BY a.call_id",
        address.turn_id,
    )
    # By number: as text, t10.0 comes before t2.0.
    latest = max((step_of(row["call_id"]) for row in rows if row["to_run"]), default=0)
    requests = tuple(_request(row) for row in rows if step_of(row["call_id"]) == latest)
    if not requests:
        return None
    messages = await tx.fetch(
        "SELECT id, role, content, tokens, calls, call_id FROM messages WHERE conversation_id = $1 "
        "AND turn_id = $2 AND role IN ('assistant', 'tool') ORDER BY seq",
        address.conversation_id,
        address.turn_id,
    )
    said = [_message(row) for row in messages]
    places = [place for place, ref in enumerate(said) if any(call.call_id == requests[0].call_id for call in ref.calls)]
    return Gate(requests, said[places[-1]], _answered(said[: places[-1]])) if places else None


def _answered(said: list[MessageRef]) -> tuple[MessageRef, ...]:
    """The rounds that have all their answers; a refused one has none and stays stripped."""
    answers = {ref.call_id: ref.id for ref in said if ref.role is Role.TOOL}
    rounds = [Round(ref.id, tuple(call.call_id for call in ref.calls), answers) for ref in said if ref.calls]
    by_id = {ref.id: ref for ref in said}
    return tuple(by_id[message_id] for kept in keep_rounds(rounds, {}) for message_id in kept.message_ids)


def _request(row: asyncpg.Record) -> RequestRef:
    return RequestRef(request_id=str(row["id"]), call_id=row["call_id"], tool=row["tool"], expires_at=row["expires_at"])


def _message(row: asyncpg.Record) -> MessageRef:
    return MessageRef(
        id=str(row["id"]),
        role=Role(row["role"]),
        text=preview(row["content"]),
        tokens=row["tokens"],
        calls=tuple(CallRef.model_validate(call) for call in row["calls"]),
        call_id=row["call_id"] or "",
    )
