"""The page of a conversation: its turns as the user sees them, and what each turn waits for."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from perdure.client import ApiError, AsyncClient
from perdure.client.turns import OnBusy
from perdure.contracts.approvals import ANSWERED_BY_CLIENT
from perdure.core.memory.files import BY_ENDING
from perdure.core.text import truncate
from perdure.pages.approvals.argument_form import Field, Shape, fields_of, read_fields
from perdure.pages.approvals.page import is_long, reasons_for
from perdure.pages.render import fresh_key, page, visible
from perdure.pages.request import (
    SEND_AGAIN_MESSAGE,
    BrowserRequest,
    CheckedPost,
    DraftPost,
    Form,
    PageProblem,
    Post,
    SignedInVisit,
    UploadPost,
    max_upload_bytes,
)
from perdure.pages.turns import value_markup
from perdure.schemas.agents import Agent
from perdure.schemas.approvals import Approval
from perdure.schemas.turns import ConversationTurn, ConversationView, File, Question

TURNS_PAGE_LIMIT = 10
"""Turns per page."""
PAGE_CHARACTERS = 60_000
"""Characters of all texts on a page. Texts beyond that are cut until the user opens them."""
_MIN_TEXT_CHARACTERS = 1_000
"""Characters of each text that are always shown, whatever the number of texts."""
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
MAX_SUGGESTIONS = 3
"""Maximum suggestions for the next message."""
PICTURE_TYPES = ("image/svg+xml", "image/png")
"""Media types that are shown inline, the preferred one first."""
WAIT_SECONDS = 2.0
"""Time that the server waits for the answer if a form was sent without the script. The page that follows may then
contain the answer."""
_ON_BUSY_VALUES = get_args(OnBusy)
_CONVERSATIONS_PAGE_LIMIT = 20
_TYPES_BY_ENDING = {**BY_ENDING, ".md": "text/plain"}
"""Media types by file ending. A browser's own answer depends on what is installed on the machine."""


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """A question of a turn, with the rejected input of its form if there is any."""

    question: Question
    form: Form | None = None
    faults: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def words(self) -> str:
        """The question as text."""
        return payload_text(self.question.asked)

    @property
    def fields(self) -> list[Field]:
        """The form fields, made from the schema of valid answers."""
        return fields_of({}, self.question.answer_schema, self.form, self.faults)

    @property
    def is_text(self) -> bool:
        """True if the answer is a single text field, for which the question is label enough."""
        return bool(self.only) and self.fields[0].shape in (Shape.LINE, Shape.LINES)

    @property
    def options(self) -> list[str]:
        """Ready answers. Each is a value of the only field."""
        options = self.question.asked.get("options")
        return [each for each in options if isinstance(each, str)] if isinstance(options, list) and self.only else []

    @property
    def only(self) -> str:
        """The name of the only field of an answer; empty if there is not exactly one."""
        names = [each.name for each in fields_of({}, self.question.answer_schema)]
        return names[0] if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn on the page."""

    turn: ConversationTurn
    approvals: Sequence[Approval] = ()
    """The pending approvals."""
    asked: Sequence[QuestionForm] = ()
    max_characters: int | None = None
    """Maximum characters of each text; None shows all of them."""

    def text(self, text: str) -> object:
        """Returns a text of the turn for the page, cut to `max_characters`."""
        return visible(text if self.max_characters is None else truncate(text, self.max_characters))

    @property
    def separate_answer(self) -> str:
        """The answer; empty if a text segment already shows it."""
        answer = self.turn.answer or ""
        return (
            ""
            if any(_is_same_text(each.text, answer) for each in self.turn.segments if each.kind == "text")
            else answer
        )

    @property
    def activity(self) -> str:
        """The activity of an open turn in words; empty if the turn has ended."""
        if self.turn.has_ended:
            return ""
        if self.turn.stop_requested_at is not None:
            return "Stopping."
        if self.turn.status == "queued":
            return "Waiting for the previous turn."
        if self.turn.status == "awaiting_answer":
            return "Waiting for your answer."
        return "Waiting for an approval." if self.turn.is_paused else "Working…"

    @property
    def pictures(self) -> list[File]:
        """One file per picture that the turn made, in the preferred media type."""
        best: dict[str, File] = {}
        for kind in PICTURE_TYPES:
            for file in self.turn.files:
                if file.media_type == kind:
                    best.setdefault(file.name.rpartition(".")[0], file)
        return list(best.values())

    @property
    def suggestions(self) -> list[str]:
        """Suggestions for the next message: `{"suggestions": [{"kind": "text", "text": ...}]}` in the turn's output."""
        proposed = (self.turn.output or {}).get("suggestions")
        texts = [each.get("text") for each in proposed if isinstance(each, dict)] if isinstance(proposed, list) else []
        return [each for each in texts if isinstance(each, str) and each.strip()][:MAX_SUGGESTIONS]

    @property
    def palettes(self) -> list[list[str]]:
        """Suggested colors: `{"suggestions": [{"kind": "custom_palette", "colors": ["#4c78a8"]}]}` in the output."""
        proposed = (self.turn.output or {}).get("suggestions")
        lists = (
            [each.get("colors") for each in proposed if isinstance(each, dict)] if isinstance(proposed, list) else []
        )
        return [[each for each in colors if _is_color(each)] for colors in lists if isinstance(colors, list)]

    @property
    def unsettled_calls(self) -> int:
        """The number of calls whose outcome is unknown and must be settled."""
        waiting = self.turn.waiting_for
        if waiting is None or waiting.kind in ANSWERED_BY_CLIENT:
            return 0
        return len(set(waiting.ids) - {each.id for each in self.approvals})

    def reasons(self, approval: Approval) -> list[str]:
        """Returns the predefined reasons for a rejection."""
        return reasons_for(approval)

    def shows_everything(self, approval: Approval) -> bool:
        """Returns whether the page shows everything that the decision is about."""
        return not is_long(approval) and approval.kind != "limit"


async def load_turn_views(
    api: AsyncClient, turns: Sequence[ConversationTurn], *, refused: QuestionForm | None = None, whole: bool = False
) -> list[TurnView]:
    """Loads what these turns wait for and returns them oldest first. `refused` is an answer that was rejected."""
    max_characters = {} if whole else allot_characters(turns)
    views = await asyncio.gather(
        *(_load_turn_view(api, turn, max_characters.get(turn.turn_id), refused) for turn in turns)
    )
    return list(reversed(views))


def payload_text(payload: Mapping[str, Any]) -> str:
    """Returns a question or an answer as text: its question, its only text, or all of it as JSON."""
    texts = [each for each in payload.values() if isinstance(each, str)]
    if isinstance(payload.get("question"), str):
        return str(payload["question"])
    return texts[0] if len(texts) == len(payload) == 1 else json.dumps(payload, ensure_ascii=False, indent=2)


def allot_characters(turns: Sequence[ConversationTurn]) -> dict[str, int]:
    """Returns the maximum characters of each text by turn id. Turns that are shown whole are left out.

    `turns` are newest first, so that the newest are shown whole.
    """
    characters_left, max_characters = PAGE_CHARACTERS, dict[str, int]()
    for turn in turns:
        lengths = [len(text) for text in _texts_of(turn)]
        if sum(lengths) > characters_left:
            max_characters[turn.turn_id] = max(_MIN_TEXT_CHARACTERS, characters_left // len(lengths))
            lengths = [min(length, max_characters[turn.turn_id]) for length in lengths]
        characters_left = max(0, characters_left - sum(lengths))
    return max_characters


def _texts_of(turn: ConversationTurn) -> list[str]:
    return [*(each.content for each in turn.said), *(each.text for each in turn.segments), turn.answer or ""]


async def _load_turn_view(
    api: AsyncClient, turn: ConversationTurn, max_characters: int | None, refused: QuestionForm | None
) -> TurnView:
    waiting = turn.waiting_for
    if waiting is None:
        return TurnView(turn, max_characters=max_characters)
    if waiting.kind in ANSWERED_BY_CLIENT:
        questions = await asyncio.gather(*(api.turns.question(turn.turn_id, each) for each in waiting.ids))
        return TurnView(
            turn,
            asked=[_question_form(each, refused) for each in questions if each.status == "pending"],
            max_characters=max_characters,
        )
    approvals = await asyncio.gather(*(_find_approval(api, each) for each in waiting.ids))
    return TurnView(turn, [each for each in approvals if each is not None], max_characters=max_characters)


def _question_form(question: Question, refused: QuestionForm | None) -> QuestionForm:
    return refused if refused is not None and refused.question.id == question.id else QuestionForm(question)


async def _find_approval(api: AsyncClient, approval_id: str) -> Approval | None:
    try:
        return await api.approvals.get(approval_id)
    except ApiError as error:
        if error.status == 404:  # an unsettled effect has no approval with this id
            return None
        raise


def _is_color(value: object) -> bool:
    return isinstance(value, str) and _COLOR.fullmatch(value) is not None


def _is_same_text(text: str, answer: str) -> bool:
    return text.strip() == answer.strip()


conversation_router = APIRouter()


@dataclass(frozen=True, slots=True)
class Draft:
    """State of the message form below a conversation."""

    key: str
    message: str = ""
    reason: str = ""
    busy: bool = False
    """True if a turn is open, so that the form must ask what to do with it."""
    started: str = ""
    """The id of the turn that receives the message just sent."""


@conversation_router.get("/chat/{conversation_id}")
async def conversation(
    visit: SignedInVisit,
    conversation_id: str,
    before: Annotated[str | None, Query(max_length=400)] = None,
    whole: bool = False,
) -> HTMLResponse:
    """Shows the newest turns of a conversation, or those before a cursor."""
    return await show_conversation(visit, conversation_id, before=before, whole=whole)


@conversation_router.post("/chat/{conversation_id}/draft")
async def draft(post: DraftPost, conversation_id: str) -> HTMLResponse:
    """Shows the page again with the text that was typed. Nothing is sent."""
    reason = "Nothing has been sent yet. Your text is below."
    return await show_conversation(
        post.visit, conversation_id, Draft(fresh_key(), post.form.raw("message") or "", reason)
    )


@conversation_router.get("/chat/{conversation_id}/turns/{turn_id}")
async def turn(visit: SignedInVisit, conversation_id: str, turn_id: str) -> Response:
    """Returns the current state of one turn for the page's script. Other requests are redirected to the page."""
    if not visit.is_live:
        return RedirectResponse(f"/chat/{conversation_id}#turn-{turn_id}", 303)
    return await show_turn_again(visit, conversation_id, turn_id)


@conversation_router.post("/chat/{conversation_id}")
async def send_message(post: CheckedPost, conversation_id: str) -> Response:
    """Sends a message, which starts a turn. If a turn is open, `on_busy` decides."""
    form, is_live = post.form, post.visit.is_live
    message, on_busy = form.raw("message") or "", form.get("on_busy")
    try:
        if not form.get("message"):
            raise ApiError(422, "message_blank", "the message is empty")
        started = await post.visit.api.turns.start(
            conversation_id,
            message,
            on_busy=on_busy if on_busy in _ON_BUSY_VALUES else None,  # type: ignore[arg-type]
            wait_seconds=None if is_live else WAIT_SECONDS,
            idempotency_key=form.get("key"),
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        return await show_unsent(post, conversation_id, message, error)
    if is_live:
        return _message_form(post.visit, conversation_id, Draft(fresh_key(), busy=True, started=started.turn_id))
    return RedirectResponse(f"/chat/{conversation_id}#turn-{started.turn_id}", 303)


async def show_unsent(post: Post, conversation_id: str, message: str, error: ApiError) -> HTMLResponse:
    """Shows the form again with the text and the reason of the failure.

    It keeps the idempotency key, so that a retry counts once.
    """
    reason = SEND_AGAIN_MESSAGE if error.status in (0, 503) else f"Not sent: {error.message}"
    draft = Draft(post.form.get("key") or fresh_key(), message, reason, busy=error.code == "conversation_busy")
    if post.visit.is_live:
        return _message_form(post.visit, conversation_id, draft)
    return await show_conversation(post.visit, conversation_id, draft, status=error.status or 503)


async def show_conversation(
    visit: BrowserRequest,
    conversation_id: str,
    draft: Draft | None = None,
    *,
    before: str | None = None,
    whole: bool = False,
    refused: QuestionForm | None = None,
    file_why: str = "",
    status: int = 200,
) -> HTMLResponse:
    """Returns the page of a conversation, with the text that was typed before."""
    api = visit.api
    conversation = await api.conversations.get(conversation_id)
    conversation_view = await api.conversations.story(conversation_id, limit=TURNS_PAGE_LIMIT, cursor=before)
    agent = await agent_of(visit, conversation.agent)
    accepts_files = conversation_view.own and agent is not None and agent.files
    turns = await load_turn_views(api, conversation_view.items, refused=refused, whole=whole)
    busy = any(not each.turn.has_ended for each in turns)
    form_draft = draft or Draft(fresh_key())
    return page(
        visit,
        "conversation.html",
        status=status,
        id=conversation_id,
        conversation=conversation,
        agent=agent,
        conversation_view=conversation_view,
        turns=turns,
        before=before,
        uploads=(await api.files.list(conversation_id)).items if accepts_files else [],
        most_bytes=max_upload_bytes(visit.request),
        file_why=file_why,
        draft=form_draft,
        value=value_markup,
        payload_text=payload_text,
        busy=busy or form_draft.busy,
        following=before is None,
    )


async def show_turn_again(
    visit: BrowserRequest, conversation_id: str, turn_id: str, refused: QuestionForm | None = None, *, status: int = 200
) -> HTMLResponse:
    conversation_view: ConversationView = await visit.api.conversations.story(conversation_id, turn=turn_id)
    if not conversation_view.items:
        raise PageProblem(404, "This conversation has no such turn. It may have been erased; reload the conversation.")
    (view,) = await load_turn_views(visit.api, conversation_view.items, refused=refused)
    me = visit.me or await visit.api.auth.me()
    values = {"me": me, "form_token": me.form_token or "", "value": value_markup, "payload_text": payload_text}
    return page(
        visit,
        "chat_turn.html",
        status=status,
        id=conversation_id,
        view=view,
        conversation_view=conversation_view,
        **values,
    )


async def show_after_action(
    visit: BrowserRequest, conversation_id: str, turn_id: str, refused: QuestionForm | None = None
) -> Response:
    """Returns the turn, or its page, after an action on it."""
    if visit.is_live:
        return await show_turn_again(visit, conversation_id, turn_id, refused)
    if refused is not None:
        return await show_conversation(visit, conversation_id, refused=refused, status=422)
    return redirect_to_turn(conversation_id, turn_id)


def redirect_to_turn(conversation_id: str, turn_id: str = "") -> RedirectResponse:
    return RedirectResponse(f"/chat/{conversation_id}" + (f"#turn-{turn_id}" if turn_id else ""), 303)


def _message_form(visit: BrowserRequest, conversation_id: str, draft: Draft) -> HTMLResponse:
    return page(visit, "chat_form.html", id=conversation_id, draft=draft, busy=draft.busy)


async def agent_of(visit: BrowserRequest, agent_id: str) -> Agent | None:
    """Returns the agent, or None if the deployment no longer has it."""
    return next((each for each in (await visit.api.agents.list()).items if each.id == agent_id), None)


chat_router = APIRouter()


@chat_router.get("/chat")
async def show_conversations(
    visit: SignedInVisit, cursor: Annotated[str | None, Query(max_length=400)] = None
) -> HTMLResponse:
    """Lists conversations, the most recently written first. The first page starts with the agents."""
    conversations, agents = await asyncio.gather(
        visit.api.conversations.list(limit=_CONVERSATIONS_PAGE_LIMIT, cursor=cursor), visit.api.agents.list()
    )
    titles = {agent.id: agent.title or agent.id for agent in agents.items}
    return page(
        visit,
        "chats.html",
        conversations=conversations,
        agents=[] if cursor else agents.items,
        titles=titles,
        first=not cursor,
    )


@chat_router.post("/chat")
async def start_conversation(post: CheckedPost) -> Response:
    """Creates a conversation with an agent, and starts its first turn if the form has a message."""
    form, api = post.form, post.visit.api
    message = form.get("example") or form.raw("message") or ""
    conversation = await api.conversations.create(form.get("agent"), idempotency_key=form.get("key"))
    if message.strip():
        try:
            await api.turns.start(conversation.id, message, wait_seconds=WAIT_SECONDS, idempotency_key=form.get("key"))
        except ApiError as error:
            if error.status in (401, 404):
                raise
            return await show_unsent(post, conversation.id, message, error)
    return RedirectResponse(f"/chat/{conversation.id}", 303)


answers_router = APIRouter(prefix="/chat/{conversation_id}/turns/{turn_id}")


@answers_router.post("/stop")
async def stop_turn(post: CheckedPost, conversation_id: str, turn_id: str) -> Response:
    """Requests the stop of a turn."""
    await post.visit.api.turns.stop(turn_id, idempotency_key=post.form.get("key"))
    return await show_after_action(post.visit, conversation_id, turn_id)


@answers_router.post("/answers/{request_id}")
async def answer_question(post: CheckedPost, conversation_id: str, turn_id: str, request_id: str) -> Response:
    """Answers a question of the turn."""
    api, form = post.visit.api, post.form
    question = await api.turns.question(turn_id, request_id)
    refused: QuestionForm | None = None
    payload, faults = _read_answer(question, form)
    if faults:
        refused = QuestionForm(question, form, faults, "Not sent. Correct the marked fields.")
    else:
        try:
            await api.turns.answer(turn_id, request_id, question.kind, payload, idempotency_key=form.get("key"))
        except ApiError as error:
            if error.status in (401, 404):
                raise
            reason = SEND_AGAIN_MESSAGE if error.status in (0, 503) else f"Not sent: {error.message}"
            refused = QuestionForm(question, form, reason=reason)
    return await show_after_action(post.visit, conversation_id, turn_id, refused)


def _read_answer(question: Question, form: Form) -> tuple[dict[str, object], dict[str, str]]:
    """Returns the answer from the form, and the faults of its fields."""
    question_form, option = QuestionForm(question), form.get("option")
    if option and option in question_form.options:
        return {question_form.only: option}, {}
    fields = read_fields({}, question.answer_schema, form)
    return dict(fields.args), dict(fields.faults)


files_router = APIRouter()


@files_router.post("/chat/{conversation_id}/files")
async def upload(post: UploadPost, conversation_id: str) -> Response:
    """Uploads a file to the conversation, for the agent's tools."""
    visit, reason = post.visit, await _upload_file(post, conversation_id)
    if not visit.is_live:
        return (
            await show_conversation(visit, conversation_id, file_why=reason, status=422)
            if reason
            else redirect_to_turn(conversation_id)
        )
    files = (await visit.api.files.list(conversation_id)).items
    agent = await agent_of(visit, (await visit.api.conversations.get(conversation_id)).agent)
    max_bytes = max_upload_bytes(visit.request)
    return page(
        visit, "chat_files.html", id=conversation_id, agent=agent, uploads=files, file_why=reason, most_bytes=max_bytes
    )


async def _upload_file(post: Post, conversation_id: str) -> str:
    """Uploads the file. Returns why it failed, or an empty string."""
    if post.upload is None:
        return "Select a file first."
    media_type = _TYPES_BY_ENDING.get("." + post.upload.name.rpartition(".")[2].lower(), post.upload.media_type)
    try:
        await post.visit.api.files.upload(
            conversation_id,
            post.upload.name,
            post.upload.chunks(),
            media_type or "application/octet-stream",
            idempotency_key=post.form.get("key"),
            length=post.upload.size_bytes,
        )
    except ApiError as error:
        if error.status in (401, 404):
            raise
        return f"Not uploaded: {error.message}"
    return ""
