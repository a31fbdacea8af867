"""The gate of a turn that is started again over its records (S0-27): what it asked for, and what came before it."""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
from pydantic import JsonValue

from contracts.ids import step_of
from contracts.messages import CallRef, MessageRef, Role
from contracts.people import RequestKind, RequestRef
from contracts.turns import TurnAddress
from policy.text import preview
from policy.transcript import Round, keep_rounds
from store.database import Connection


@dataclass(frozen=True, slots=True)
class Gate:
    """A round that waits for people."""

    requests: tuple[RequestRef, ...]
    round: MessageRef | None
    """The assistant message whose calls they gate; None at a checkpoint, which strips nothing."""
    earlier: tuple[MessageRef, ...]
    """The rounds before it that have run, each with its answers, and what joined the turn: a warm resume would still
    hold them."""
    snapshot: dict[str, JsonValue]
    """The state as the pause kept it, where it kept all; empty elsewhere."""


async def find_gate(tx: Connection, address: TurnAddress) -> Gate | None:
    """The gate or checkpoint that the turn had come to; None where it is past all it asked for.

    A round that was refused whole stays planned for ever, so of those with an unsettled call the latest counts. All
    of its requests are the gate's, also of calls that have run by now: outcomes that a warm resume carries come from
    the ledger here, call by call. A checkpoint is passed once the model has been asked again.
    """
    rows = await tx.fetch(
        "SELECT a.id, a.kind, a.call_id, a.tool, a.expires_at, a.snapshot, "
        "coalesce(c.state NOT IN ('done', 'failed', 'denied'), false) AS to_run, "
        "(SELECT max(substr(call_id, 2)::integer) FROM model_calls WHERE turn_id = $1) AS step "
        "FROM approvals a LEFT JOIN tool_calls c ON c.turn_id = a.turn_id AND c.call_id = a.call_id "
        # A checkpoint is cancelled where the turn went on without it; a gate where its approval is void: it stays one.
        "WHERE a.turn_id = $1 AND (a.status <> 'cancelled' OR a.kind = 'approval') ORDER BY a.call_id",
        address.turn_id,
    )
    # By number: as text, t10.0 comes before t2.0.
    waiting = [row for row in rows if _waits(row)]
    if not waiting:
        return None
    latest = max(step_of(row["call_id"]) for row in waiting)
    asked = [row for row in rows if step_of(row["call_id"]) == latest]
    # A limit that is spent past a checkpoint is asked about after it, under the same step.
    limits = [row for row in waiting if row["kind"] == RequestKind.LIMIT and row in asked]
    checkpoints = limits or [row for row in waiting if row["kind"] == RequestKind.CHECKPOINT and row in asked]
    if checkpoints:
        return Gate(tuple(map(_request, checkpoints)), None, (), _whole(checkpoints))
    asked = [row for row in asked if row["kind"] == RequestKind.APPROVAL]
    requests = tuple(map(_request, asked))
    messages = await tx.fetch(
        "SELECT id, role, content, tokens, calls, call_id FROM messages WHERE conversation_id = $1 "
        "AND turn_id = $2 AND (role IN ('assistant', 'tool') OR joins <> '') ORDER BY seq",
        address.conversation_id,
        address.turn_id,
    )
    said = [_message(row) for row in messages]
    places = [place for place, ref in enumerate(said) if any(call.call_id == requests[0].call_id for call in ref.calls)]
    return Gate(requests, said[places[-1]], _answered(said[: places[-1]]), _whole(asked)) if places else None


def _waits(row: asyncpg.Record) -> bool:
    """Whether a turn that is started again has this still before it."""
    if row["kind"] in (RequestKind.CHECKPOINT, RequestKind.LIMIT):
        return bool(step_of(row["call_id"]) >= (row["step"] or 0))
    return bool(row["to_run"])


def _whole(asked: Sequence[asyncpg.Record]) -> dict[str, JsonValue]:
    """The snapshot that a cold resume takes its state from; all requests of a pause have the same."""
    kept: dict[str, JsonValue] = asked[-1]["snapshot"]
    return {name: value for name, value in kept.items() if name != "metadata"} if "messages" in kept else {}


def _answered(said: list[MessageRef]) -> tuple[MessageRef, ...]:
    """The rounds that have all their answers, and what joined between them; a refused one has none and stays
    stripped."""
    answers = {ref.call_id: ref.id for ref in said if ref.role is Role.TOOL}
    rounds = [Round(ref.id, tuple(call.call_id for call in ref.calls), answers) for ref in said if ref.calls]
    by_id = {ref.id: ref for ref in said}
    kept = {each.message_ids[0]: each.message_ids for each in keep_rounds(rounds, {})}
    kept |= {ref.id: (ref.id,) for ref in said if ref.role is Role.USER}
    return tuple(by_id[message_id] for ref in said for message_id in kept.get(ref.id, ()))


def _request(row: asyncpg.Record) -> RequestRef:
    return RequestRef(
        request_id=str(row["id"]),
        kind=RequestKind(row["kind"]),
        call_id=row["call_id"],
        tool=row["tool"],
        expires_at=row["expires_at"],
    )


def _message(row: asyncpg.Record) -> MessageRef:
    return MessageRef(
        id=str(row["id"]),
        role=Role(row["role"]),
        text=preview(row["content"]),
        tokens=row["tokens"],
        calls=tuple(CallRef.model_validate(call) for call in row["calls"]),
        call_id=row["call_id"] or "",
    )
