"""The page of one approval: the exact call first, then what a person needs to decide on it, then the rest."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.responses import HTMLResponse

from perdure.client import Approval
from policy.printable import printable
from reviewer.argument_fields import fields_of
from reviewer.differences import Line, differences
from reviewer.forms import Form
from reviewer.queue import Asked, opened_from
from reviewer.view import page
from reviewer.visit import Visit

LONG_CHARACTERS = 6_000
"""Longer arguments (as JSON, hidden characters written out) must be opened before anything can be decided on them."""
_BEGINNING_CHARACTERS = 1_500
_QUEUE = 100
"""How far the way to the next and the previous one is looked for."""
REASONS = ("The arguments are wrong.", "This is not needed.", "This is not allowed here.")
"""Why a call is rejected, where its agent's policy offers nothing else."""
PRESENT = {"approve": "Approve", "edit": "Edit", "reject": "Reject", "respond": "Respond"}
PAST = {"approve": "approved", "edit": "edited and approved", "reject": "rejected", "respond": "responded to"}


@dataclass(frozen=True, slots=True)
class Sent:
    """What a form on the page held that is not done, and why."""

    form: Form | None = None
    why: str = ""
    faults: Mapping[str, str] | None = None
    """By argument."""


async def show(visit: Visit, approval: Approval, sent: Sent | None = None, *, status: int = 200) -> HTMLResponse:
    """The page of this approval, with what was typed into it before."""
    sent = sent or Sent()
    text = _written(approval)
    opened = not is_long(approval) or _asks_for_all(visit, sent)
    args = (approval.decision or {}).get("args") or approval.args
    before = (approval.revision or {}).get("args_before") or (approval.args if args is not approval.args else None)
    asked = opened_from(visit, sent.form)
    previous, following = await _beside(visit, approval, asked)
    return page(
        visit,
        "approval.html",
        status=status,
        approval=approval,
        args=args,
        opened=opened,
        long_characters=len(text),
        beginning=text[:_BEGINNING_CHARACTERS],
        changed=differences(before, args) if before is not None else None,
        compared=compared(approval, args),
        previewed=previewed(approval),
        fields=fields_of(approval.args, approval.args_schema, sent.form, sent.faults),
        may=approval.allowed_decisions if opened else [],
        sent=sent,
        typed=sent.form or Form(()),
        previous=previous,
        following=following,
        past=PAST,
        reasons=reasons_for(approval),
        roles=visit.me.roles if visit.me else [],
        asked=asked,
        within=asked.within,
        at=f"/review/{approval.id}{asked.within}",
    )


def reasons_for(*approvals: Approval) -> list[str]:
    """The ready reasons for a rejection of these."""
    return list(dict.fromkeys(reason for each in approvals for reason in each.reject_reasons)) or list(REASONS)


def is_long(approval: Approval) -> bool:
    """Whether it must be opened before anything can be decided about it."""
    text = _written(approval)
    return len(text) > LONG_CHARACTERS or len(printable(text)) > LONG_CHARACTERS


def _written(approval: Approval) -> str:
    """All that is decided on, as JSON."""
    shown = approval.args if approval.kind != "checkpoint" else {"result": approval.result, "args": approval.args}
    return json.dumps(shown, indent=2, ensure_ascii=False)


def compared(approval: Approval, args: Mapping[str, Any]) -> list[Line] | None:
    """The call against the one of its tool that was approved last before; None where there is none."""
    last = approval.last_approved
    return differences(last["args"], args) if last else None


def previewed(approval: Approval) -> list[Line] | None:
    """What its tool saw that the call would change; None or empty where it saw nothing."""
    found = approval.preview
    return differences(found["before"], found["after"]) if found and not found.get("fault") else None


def _asks_for_all(visit: Visit, sent: Sent) -> bool:
    """Whether the person has opened all of it, here or before the form was sent."""
    return visit.request.query_params.get("whole") == "1" or (sent.form is not None and sent.form.get("whole") == "1")


async def _beside(visit: Visit, approval: Approval, asked: Asked) -> tuple[Approval | None, Approval | None]:
    """The one before and the one after it in the list that it was opened from; from one that is not in it any more, the
    first."""
    listed = visit.api.approvals.list(status="pending", brief=True, limit=_QUEUE, **asked.filters)
    found = (await listed).items
    at = next((place for place, each in enumerate(found) if each.id == approval.id), None)
    if at is None:
        return None, found[0] if found else None
    return found[at - 1] if at else None, found[at + 1] if at + 1 < len(found) else None
