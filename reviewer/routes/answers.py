"""What a person does with a turn that is open: answer what it asks, and stop it."""

from fastapi import APIRouter
from fastapi.responses import Response

from perdure.client import ApiError, Question
from reviewer.argument_fields import read_fields
from reviewer.chat_page import Asked
from reviewer.forms import Form
from reviewer.problems import AGAIN
from reviewer.routes.conversation import after
from reviewer.visit import Posted

router = APIRouter(prefix="/chat/{conversation_id}/turns/{turn_id}")


@router.post("/stop")
async def stop(post: Posted, conversation_id: str, turn_id: str) -> Response:
    """Ask a turn to stop."""
    await post.visit.api.turns.stop(turn_id, idempotency_key=post.form.get("key"))
    return await after(post.visit, conversation_id, turn_id)


@router.post("/answers/{request_id}")
async def answer(post: Posted, conversation_id: str, turn_id: str, request_id: str) -> Response:
    """Answer what the turn asks of its person."""
    api, form = post.visit.api, post.form
    question = await api.turns.question(turn_id, request_id)
    refused: Asked | None = None
    payload, faults = _payload(question, form)
    if faults:
        refused = Asked(question, form, faults, "Not sent: see the fields.")
    else:
        try:
            await api.turns.answer(turn_id, request_id, question.kind, payload, idempotency_key=form.get("key"))
        except ApiError as error:
            if error.status in (401, 404):
                raise
            why = AGAIN if error.status in (0, 503) else f"Not sent: {error.message}"
            refused = Asked(question, form, why=why)
    return await after(post.visit, conversation_id, turn_id, refused)


def _payload(question: Question, form: Form) -> tuple[dict[str, object], dict[str, str]]:
    """The answer that the form says, and the faults of its fields."""
    asked, option = Asked(question), form.get("option")
    if option and option in asked.options:
        return {asked.only: option}, {}
    read = read_fields({}, question.answer_schema, form)
    return dict(read.args), dict(read.faults)
