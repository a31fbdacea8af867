"""Answers to what a turn asks of its own user: a question, or work where the data is."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import AnswerBody
from api.ids import QuestionId, TurnId
from api.once import Key, once
from store import questions
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1/turns/{turn_id}/answers", tags=["turns"])


@router.get("/{request_id}")
async def get(services: Open, who: Reader, turn_id: TurnId, request_id: QuestionId) -> dict[str, object]:
    """What is asked, which answers fit, and until when."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await questions.look(tx, turn_id, request_id, who.scope)


@router.post("/{request_id}")
async def answer(
    services: Open, who: Reader, turn_id: TurnId, request_id: QuestionId, body: AnswerBody, key: Key = None
) -> JSONResponse:
    """Answer, once, by the user whose turn it is. The first answer that fits counts."""
    answered: questions.Answered | None = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal answered
        answered, note = await questions.answer(tx, turn_id, request_id, who.user_id, body.kind, body.payload)
        return 200, await questions.look(tx, turn_id, request_id, who.user_id), note

    done = await once(services, who, f"answer/{request_id}", key, body, work)
    if answered is not None:
        await services.live.wake(answered.conversation_id)
    return done
