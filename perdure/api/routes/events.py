"""Event streams: one turn until its end, or all turns of a conversation."""

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.api.auth import Caller, Principal, ServicesDep, has_same_access
from perdure.api.request_bodies import ConversationId, TurnId
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.core.events.stream import Cursor, parse_cursor
from perdure.store.turns import conversations, views

router = APIRouter(prefix="/v1", tags=["streams"])
_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Proxies must not buffer events."""
_STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    204: {"description": "The client has received the turn's last event; nothing follows"}
}


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own class accepts only generators, which cannot respond with 204 or 404 later."""

    media_type = "text/event-stream"
    slot: AbstractContextManager[None] = nullcontext()
    """Held while the stream is sent. If no slot is free, the response is its error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream until it ends or its reader disconnects."""
        with self.slot:
            await super().__call__(scope, receive, send)


LastEventId = Annotated[
    str | None, Header(max_length=255, description="The last event id that you received; takes precedence over `after`")
]
After = Annotated[
    str | None, Query(max_length=255, description="An event id, or the sequence number of a stored event")
]


@router.get(
    "/turns/{turn_id}/events",
    response_class=EventStream,
    responses=_STREAM_RESPONSES,
    operation_id="of_turn_v1_turns__turn_id__events_get",
)
async def turn_events(
    services: ServicesDep, caller: Caller, turn_id: TurnId, last_event_id: LastEventId = None, after: After = None
) -> Response:
    """Streams the events and tokens of a turn. The stream stays open while the turn is paused. After `done` it sends
    `workflow_complete` and closes."""
    cursor = _parse_cursor(last_event_id, after)
    async with services.db.transaction(caller.tenant_id) as tx:
        turn = await views.get_turn(tx, turn_id, caller.scope)
    if await services.streams.is_over(caller.tenant_id, turn_id, cursor):
        return Response(status_code=204)
    has_access = partial(has_same_access, services, caller)
    frames = services.streams.frames(caller.tenant_id, str(turn["conversation_id"]), cursor, turn_id, has_access)
    return event_stream(services, caller, frames)


@router.get(
    "/conversations/{conversation_id}/stream",
    response_class=EventStream,
    operation_id="of_conversation_v1_conversations__conversation_id__stream_get",
)
async def conversation_events(
    services: ServicesDep,
    caller: Caller,
    conversation_id: ConversationId,
    last_event_id: LastEventId = None,
    after: After = None,
) -> Response:
    """Streams the events and tokens of a conversation, turn after turn; the stream stays open."""
    cursor = _parse_cursor(last_event_id, after)
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.scope)
    has_access = partial(has_same_access, services, caller)
    frames = services.streams.frames(caller.tenant_id, conversation_id, cursor, has_access=has_access)
    return event_stream(services, caller, frames)


def _parse_cursor(last_event_id: str | None, after: str | None) -> Cursor:
    text = last_event_id or after
    cursor = parse_cursor(text) if text else Cursor()
    if cursor is None:
        raise CallerError("cursor_invalid", "The cursor is invalid; use the id of an event of this stream")
    return cursor


def event_stream(services: Services, caller: Principal, frames: AsyncGenerator[bytes]) -> Response:
    """Returns a stream of these frames. It counts towards the user's limit of open streams, except for the stack's own
    tokens.

    Raises, when it is sent: LimitReached `too_many_streams`.
    """
    answer = EventStream(frames, headers=_UNBUFFERED)
    if not caller.has_local_token:
        answer.slot = services.open_streams.counting(caller.tenant_id, caller.user_id)
    return answer
