"""A conversation: its page, a part of it for the page's script, and what its person says in it."""

from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import Agent, ApiError, Story
from perdure.client.turn_calls import OnBusy
from reviewer.chat_page import SHOWN, Asked, shown, words_of
from reviewer.forms import most_upload_bytes
from reviewer.problems import AGAIN, PageProblem
from reviewer.turn_page import value
from reviewer.view import fresh_key, page
from reviewer.visit import Post, Posted, Typed, Visit, Visitor

router = APIRouter()
WAIT_SECONDS = 2.0
"""How long a form that no script sends is held back, so that the page which follows may have the answer already."""
_WAYS = get_args(OnBusy)


@dataclass(frozen=True, slots=True)
class Draft:
    """What the form below a conversation holds."""

    key: str
    message: str = ""
    why: str = ""
    busy: bool = False
    """Whether a turn is open, so that it must be said what becomes of it."""
    started: str = ""
    """The turn that hears what was just sent."""


@router.get("/chat/{conversation_id}")
async def conversation(
    visit: Visitor,
    conversation_id: str,
    before: Annotated[str | None, Query(max_length=400)] = None,
    whole: bool = False,
) -> HTMLResponse:
    """The page: the newest turns, or those before a cursor."""
    return await show(visit, conversation_id, before=before, whole=whole)


@router.post("/chat/{conversation_id}/draft")
async def draft(post: Typed, conversation_id: str) -> HTMLResponse:
    """The page with what was typed before; nothing is sent."""
    why = "Nothing was sent yet. What you typed is below."
    return await show(post.visit, conversation_id, Draft(fresh_key(), post.form.whole("message") or "", why))


@router.get("/chat/{conversation_id}/turns/{turn_id}")
async def turn(visit: Visitor, conversation_id: str, turn_id: str) -> Response:
    """One turn as it is now, for the page's script."""
    if not visit.is_live:
        return RedirectResponse(f"/chat/{conversation_id}#turn-{turn_id}", 303)
    return await told_anew(visit, conversation_id, turn_id)


@router.post("/chat/{conversation_id}")
async def say(post: Posted, conversation_id: str) -> Response:
    """Say something: a turn begins, or hears it where one is open."""
    form, live = post.form, post.visit.is_live
    message, way = form.whole("message") or "", form.get("on_busy")
    try:
        if not form.get("message"):
            raise ApiError(422, "message_blank", "say something first")
        started = await post.visit.api.turns.start(
            conversation_id,
            message,
            on_busy=way if way in _WAYS else None,  # type: ignore[arg-type]
            wait_seconds=None if live else WAIT_SECONDS,
            idempotency_key=form.get("key"),
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        return await not_sent(post, conversation_id, message, error)
    if live:
        return _form(post.visit, conversation_id, Draft(fresh_key(), busy=True, started=started.turn_id))
    return RedirectResponse(f"/chat/{conversation_id}#turn-{started.turn_id}", 303)


async def not_sent(post: Post, conversation_id: str, message: str, error: ApiError) -> HTMLResponse:
    """The form once more with what was typed and why it was not taken; the same key, so that it counts once."""
    why = AGAIN if error.status in (0, 503) else f"Not sent: {error.message}"
    kept = Draft(post.form.get("key") or fresh_key(), message, why, busy=error.code == "conversation_busy")
    if post.visit.is_live:
        return _form(post.visit, conversation_id, kept)
    return await show(post.visit, conversation_id, kept, status=error.status or 503)


async def show(
    visit: Visit,
    conversation_id: str,
    draft: Draft | None = None,
    *,
    before: str | None = None,
    whole: bool = False,
    refused: Asked | None = None,
    file_why: str = "",
    status: int = 200,
) -> HTMLResponse:
    """The page of a conversation, with what was typed into it before."""
    api = visit.api
    conversation = await api.conversations.get(conversation_id)
    story = await api.conversations.story(conversation_id, limit=SHOWN, cursor=before)
    agent = await agent_of(visit, conversation.agent)
    takes_files = story.own and agent is not None and agent.files
    turns = await shown(api, story.items, refused=refused, whole=whole)
    busy = any(not each.turn.has_ended for each in turns)
    given = draft or Draft(fresh_key())
    return page(
        visit,
        "conversation.html",
        status=status,
        id=conversation_id,
        conversation=conversation,
        agent=agent,
        story=story,
        turns=turns,
        before=before,
        uploads=(await api.files.list(conversation_id)).items if takes_files else [],
        most_bytes=most_upload_bytes(visit.request),
        file_why=file_why,
        draft=given,
        value=value,
        words_of=words_of,
        busy=busy or given.busy,
        following=before is None,
    )


async def told_anew(
    visit: Visit, conversation_id: str, turn_id: str, refused: Asked | None = None, *, status: int = 200
) -> HTMLResponse:
    story: Story = await visit.api.conversations.story(conversation_id, turn=turn_id)
    if not story.items:
        raise PageProblem(404, "This conversation has no such turn.")
    (told,) = await shown(visit.api, story.items, refused=refused)
    me = visit.me or await visit.api.auth.me()
    given = {"me": me, "form_token": me.form_token or "", "value": value, "words_of": words_of}
    return page(visit, "chat_turn.html", status=status, id=conversation_id, each=told, story=story, **given)


async def after(visit: Visit, conversation_id: str, turn_id: str, refused: Asked | None = None) -> Response:
    """What stands there once something was done with a turn."""
    if visit.is_live:
        return await told_anew(visit, conversation_id, turn_id, refused)
    if refused is not None:
        return await show(visit, conversation_id, refused=refused, status=422)
    return back(conversation_id, turn_id)


def back(conversation_id: str, turn_id: str = "") -> RedirectResponse:
    return RedirectResponse(f"/chat/{conversation_id}" + (f"#turn-{turn_id}" if turn_id else ""), 303)


def _form(visit: Visit, conversation_id: str, draft: Draft) -> HTMLResponse:
    return page(visit, "chat_form.html", id=conversation_id, draft=draft, busy=draft.busy)


async def agent_of(visit: Visit, agent_id: str) -> Agent | None:
    """The agent; None where the deployment has it no more."""
    return next((each for each in (await visit.api.agents.list()).items if each.id == agent_id), None)
