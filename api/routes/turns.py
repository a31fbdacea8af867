"""Turns: start, look, stop."""

import json
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.bodies import NewTurnBody
from api.ids import ConversationId, TurnId, as_uuid
from api.metrics import TURNS_STARTED
from api.once import Key, once
from api.pages import Limit
from api.services import Services
from api.temporal_pages import turn_page
from api.waiting import RESTING, until_rest
from contracts.turns import TurnStatus
from store import content, conversations, turn_views, turns
from store.database import Connection
from store.outbox import Note
from store.segments import story
from store.turn_calls import calls_of
from store.turn_metrics import metrics_of

router = APIRouter(prefix="/v1", tags=["turns"])
MOST = 200


@router.post("/conversations/{conversation_id}/turns", status_code=202)
async def start(
    services: Open,
    who: Reader,
    conversation_id: ConversationId,
    body: NewTurnBody,
    wait: Annotated[float, Query(ge=0, le=300, allow_inf_nan=False)] = 0,
    key: Key = None,
) -> JSONResponse:
    """Start a turn, or let the message join the one under way; 202 is durable. With `wait`, 200 with the turn if it
    ends or pauses in time. What has its agent's words of danger and would have to wait, or be refused, is `completed`
    at once."""
    begun, gives_way = None, None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal begun, gives_way
        conversation = await conversations.get(tx, conversation_id, who.user_id)
        agent = await content.current(tx, str(conversation["agent"]))
        new = turns.NewTurn(
            who.tenant_id,
            conversation_id,
            who.user_id,
            body.message,
            on_busy=body.on_busy,
            limits=body.limits.as_limits() if body.limits else None,
            metadata=body.metadata,
            routing=services.routing,
        )
        started = await turns.start(tx, new, agent, services.caps)
        begun = None if started.joined else agent.definition.id
        gives_way = started.gives_way
        return 202, accepted(started, conversation_id), started.note

    async def durable() -> None:
        if gives_way is not None:
            await services.live.stop(gives_way)

    answer = await once(services, who, f"turns/{conversation_id}", key, body, work, durable)
    if begun is not None:  # now it is durable; a replayed key begins nothing
        TURNS_STARTED.labels(agent=begun).inc()
    services.text_sums.wrote(who.tenant_id, who.user_id)
    await services.live.wake(conversation_id)
    return await waited(services, who, answer, wait)


def accepted(started: turns.Started, conversation_id: str) -> dict[str, object]:
    """What a 202 says."""
    said: dict[str, object] = {
        "turn_id": started.turn_id,
        "conversation_id": conversation_id,
        "status": started.status.value,
        "message_id": started.message_id,
        "events": f"/v1/turns/{started.turn_id}/events",
    }
    if started.joined:
        said["joined"] = True
    if started.gives_way is not None:
        said["replaces"] = started.gives_way.turn_id
    return said


async def waited(services: Services, who: Principal, answer: JSONResponse, seconds: float) -> JSONResponse:
    """The answer of a start after waiting: 200 with the turn at rest, or the 202 as it is."""
    if seconds <= 0:
        return answer
    turn = await until_rest(services, who, json.loads(bytes(answer.body))["turn_id"], seconds)
    return JSONResponse(jsonable_encoder(turn), 200) if turn["status"] in RESTING else answer


@router.get("/turns")
async def listed(
    services: Open,
    who: Reader,
    status: TurnStatus | None = None,
    agent: Annotated[str | None, Query(max_length=64)] = None,
    conversation: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> dict[str, object]:
    """Turns, newest first: your own, or for a reviewer all of the tenant's."""
    async with services.db.transaction(who.tenant_id) as tx:
        items, following = await turn_views.listed(
            tx,
            who.scope,
            status=status.value if status else None,
            agent=agent,
            conversation_id=as_uuid(conversation, "conversation") if conversation else None,
            limit=min(limit, MOST),
            cursor=cursor,
        )
    return {"items": items, "next": following}


@router.get("/turns/{turn_id}")
async def get(services: Open, who: Reader, turn_id: TurnId) -> dict[str, object]:
    """One turn."""
    async with services.db.transaction(who.tenant_id) as tx:
        found = await turn_views.get(tx, turn_id, who.scope)
    page = turn_page(services, who, turn_id)
    return found | {"links": {"temporal": page} if page else {}}


@router.get("/turns/{turn_id}/calls")
async def calls(services: Open, who: Reader, turn_id: TurnId) -> dict[str, object]:
    """The turn's calls as they began, of the model and of tools: when, how long, how often tried, for how much."""
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": await calls_of(tx, turn_id, who.scope), "next": None}


@router.get("/turns/{turn_id}/metrics")
async def metrics(services: Open, who: Reader, turn_id: TurnId) -> dict[str, object]:
    """What the turn's model calls took and used, one by one."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await metrics_of(tx, turn_id, who.scope)


@router.get("/turns/{turn_id}/segments")
async def segments(services: Open, who: Reader, turn_id: TurnId) -> dict[str, object]:
    """What the turn thought, said and did, in order."""
    async with services.db.transaction(who.tenant_id) as tx:
        return {"items": await story(tx, turn_id, who.scope), "next": None}


@router.post("/turns/{turn_id}/stop", status_code=202)
async def stop(services: Open, who: Reader, turn_id: TurnId, key: Key = None) -> JSONResponse:
    """Ask a turn to stop: nothing new is begun, what runs is cancelled. Asked again, it changes nothing."""
    address = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal address
        await turn_views.get(tx, turn_id, who.scope)
        address, status, note = await turns.request_stop(tx, turn_id, who.user_id)
        return 202, {"turn_id": turn_id, "status": status.value, "stop_requested": True}, note

    async def durable() -> None:
        if address is not None:
            await services.live.stop(address)

    answer = await once(services, who, f"stop/{turn_id}", key, None, work, durable)
    if address is not None:
        await services.live.wake(address.conversation_id)
    return answer
