"""One's conversations, and the agents with which another can begin."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError
from reviewer.routes.conversation import WAIT_SECONDS, not_sent
from reviewer.view import page
from reviewer.visit import Posted, Visitor

router = APIRouter()
_SHOWN = 20


@router.get("/chat")
async def listed(visit: Visitor, cursor: Annotated[str | None, Query(max_length=400)] = None) -> HTMLResponse:
    """The conversations, the one written to last first; on the first page the agents before them."""
    found, agents = await asyncio.gather(
        visit.api.conversations.list(limit=_SHOWN, cursor=cursor), visit.api.agents.list()
    )
    titles = {agent.id: agent.title or agent.id for agent in agents.items}
    return page(visit, "chats.html", found=found, agents=[] if cursor else agents.items, titles=titles)


@router.post("/chat")
async def begin(post: Posted) -> Response:
    """A new conversation with this agent, and its first turn where something is said."""
    form, api = post.form, post.visit.api
    message = form.get("example") or form.whole("message") or ""
    conversation = await api.conversations.create(form.get("agent"), idempotency_key=form.get("key"))
    if message.strip():
        try:
            await api.turns.start(conversation.id, message, wait_seconds=WAIT_SECONDS, idempotency_key=form.get("key"))
        except ApiError as error:
            if error.status in (401, 404):
                raise
            return await not_sent(post, conversation.id, message, error)
    return RedirectResponse(f"/chat/{conversation.id}", 303)
