"""Whether an answer to a turn's question counts: the first that fits, in time, of a turn that goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from contracts.digests import canonical_json
from contracts.errors import CallerError
from contracts.people import RequestKind
from policy.arguments import check_arguments
from policy.client_tables import handed_in_fault

MOST_CHARACTERS = 65_536
"""Of an answer, as JSON: it rides through the turn's history once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as its record says."""

    kind: str
    status: str
    answer_schema: Mapping[str, JsonValue]
    expires_at: datetime
    now: datetime
    over: bool = False
    """Its turn has ended, or is to stop."""


def answer_refusal(asked: Asked, kind: str, payload: dict[str, JsonValue]) -> CallerError | None:
    """Why this answer does not count, the first reason in the contract's order; None where it does."""
    if asked.status == "answered":
        return CallerError("already_answered", "it was answered before; the first answer counts", status=409)
    if asked.status == "expired" or (asked.status == "pending" and asked.expires_at <= asked.now):
        return CallerError("question_expired", "nobody answered in time", status=410)
    if asked.over or asked.status != "pending":
        return CallerError("turn_stopped", "the turn does not go on; nothing waits for this answer", status=409)
    if kind != asked.kind:
        return CallerError("wrong_kind", f"this is a {asked.kind}, not a {kind[:40]}", status=422)
    if len(canonical_json(payload)) > MOST_CHARACTERS:
        return CallerError("answer_too_large", f"an answer has {MOST_CHARACTERS} characters at most", status=422)
    checked = check_arguments(payload, asked.answer_schema)
    if checked.fault is not None:
        return CallerError("answer_invalid", checked.fault.replace("the arguments", "the answer", 1), status=422)
    fault = handed_in_fault(payload) if kind == RequestKind.CLIENT_RUN else ""
    return CallerError("answer_invalid", f"the answer does not add up: {fault}", status=422) if fault else None
