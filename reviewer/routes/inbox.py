"""The inbox: what waits for a decision, narrowed by what a person asks for."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from perdure.client import Me
from perdure.client.promotion_calls import list_promotions
from reviewer.queue import DAY_SECONDS, KINDS, Asked
from reviewer.view import page
from reviewer.visit import Visit, Visitor

router = APIRouter()
SHOWN = 25
_COUNTED = 100
"""Proposals; of more it is said that there are more."""
_Name = Annotated[str, Query(max_length=64)]


def asked_for(
    all: bool = False, risk: _Name = "", agent: _Name = "", tool: _Name = "", role: _Name = "", expiring: bool = False
) -> Asked:
    """What the address asks for."""
    return Asked(not all, risk, agent, tool, role, expiring)


@router.get("/")
async def home(visit: Visitor) -> RedirectResponse:
    """Where a person begins: with what waits for a decision, or with a conversation."""
    decides = visit.me is not None and {"reviewer", "admin"}.intersection(visit.me.roles)
    return RedirectResponse("/review" if decides else "/chat", 303)


@router.get("/review")
async def inbox(
    visit: Visitor,
    asked: Annotated[Asked, Depends(asked_for)],
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> HTMLResponse:
    """What waits, newest first; for a script the part of it that changes."""
    api, me = visit.api, visit.me or await visit.api.auth.me()
    found, counts, unsettled, proposed = await asyncio.gather(
        api.approvals.list(
            status="pending",
            brief=True,
            limit=SHOWN,
            cursor=cursor,
            **asked.filters,
        ),
        api.approvals.counts(expiring_seconds=DAY_SECONDS),
        api.effects.list(limit=1),
        _proposed(visit, me),
    )
    return page(
        visit,
        "queue.html" if visit.is_live else "inbox.html",
        found=found,
        counts=counts,
        unsettled=bool(unsettled.items),
        proposed=proposed,
        asked=asked,
        narrowed=asked.narrowed,
        options={kind: sorted({*counts.by.get(kind, {}), *filter(None, [getattr(asked, kind)])}) for kind in KINDS},
        further=asked.path(mine=asked.mine, cursor=found.next),
        tabs={"mine": asked.path(mine=True), "all": asked.path(mine=False)},
        form_token=me.form_token or "",
    )


async def _proposed(visit: Visit, me: Me) -> str:
    """How many texts wait that this person may decide on for everybody's memory; empty for none."""
    if "admin" not in me.roles:
        return ""
    waiting = await visit.api.send(list_promotions(status="pending", limit=_COUNTED))
    count = sum(each.proposed_by != me.name for each in waiting.items)
    return f"{count} or more" if count and waiting.next else str(count or "")
