"""Routes of turns and conversations: start, read, answer, stop."""

import json
import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from perdure.api.auth import Authenticated, Caller, DecidingCaller, Principal, ServicesDep, SubjectCaller, on_behalf_of
from perdure.api.health import TURNS_STARTED
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import (
    AnswerBody,
    ConversationId,
    ConversationPatch,
    Cursor,
    ExecuteBody,
    Limit,
    NewConversation,
    NewTurnBody,
    OnBehalfOf,
    QuestionId,
    RaiseBody,
    TurnId,
    as_uuid,
)
from perdure.api.routes.approvals import decider_of
from perdure.api.routes.status import turn_page
from perdure.api.services import Services
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import ENDED, TurnAddress, TurnStatus
from perdure.store import agents, budgets
from perdure.store.approvals import requests
from perdure.store.approvals.decisions import raise_limits
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note
from perdure.store.turns import conversations, views
from perdure.store.turns import conversations as conversations_store
from perdure.store.turns import start as turns
from perdure.store.turns.views import calls_of, metrics_of, turn_segments

turns_router = APIRouter(prefix="/v1", tags=["turns"])
TURNS_PAGE_LIMIT = 200
RESTING_STATUSES = frozenset(
    {status.value for status in (*ENDED, TurnStatus.AWAITING_APPROVAL, TurnStatus.AWAITING_ANSWER)}
)
POLL_SECONDS = 1.0
"""The interval between checks if no wake signal arrives."""
CONVERSATIONS_PAGE_LIMIT = 50
WAIT_SECONDS = 120.0


@turns_router.post("/conversations/{conversation_id}/turns", status_code=202)
async def start(
    services: ServicesDep,
    authenticated: Authenticated,
    conversation_id: ConversationId,
    body: NewTurnBody,
    wait: Annotated[
        float, Query(ge=0, le=300, allow_inf_nan=False, description="Seconds to wait for the turn's end or pause")
    ] = 0,
    key: Key = None,
) -> JSONResponse:
    """Starts a turn, or adds the message to the open turn. 202 means that the turn is stored durably. With `wait`,
    returns 200 with the turn if it ends or pauses in time. A message with the agent's safety keywords that would be
    queued or rejected is answered at once with status `completed`."""
    caller = await _user_of(services, authenticated, body.on_behalf_of)
    started_agent, replaced_turn = None, None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal started_agent, replaced_turn
        conversation = await conversations.get_conversation(tx, conversation_id, caller.user_id)
        agent = await agents.current_agent(tx, str(conversation["agent"]))
        new = _new_turn(services, caller, conversation_id, body)
        started = await turns.start_turn(tx, new, agent, services.caps)
        started_agent = None if started.joined else agent.definition.id
        replaced_turn = started.gives_way
        return 202, accepted_body(started, conversation_id), started.note

    async def after_commit() -> None:
        if replaced_turn is not None:
            await services.live.stop(replaced_turn)

    answer = await run_once(services, caller, f"turns/{conversation_id}", key, body, work, after_commit)
    if started_agent is not None:  # Counted after the commit; a replayed key starts nothing.
        TURNS_STARTED.labels(agent=started_agent).inc()
    services.text_sums.update_soon(caller.tenant_id, caller.user_id)
    services.live.wake(conversation_id)
    return await wait_for_result(services, caller, answer, wait)


async def _user_of(services: Services, caller: Principal, given: OnBehalfOf | None) -> Principal:
    """Returns the user for whom a body is sent. Without `on_behalf_of`, a gateway acts for itself."""
    return caller if given is None else await on_behalf_of(services, caller, given.subject, given.name)


def _new_turn(services: Services, caller: Principal, conversation_id: str, body: NewTurnBody) -> turns.NewTurn:
    return turns.NewTurn(
        caller.tenant_id,
        conversation_id,
        caller.user_id,
        body.message,
        on_busy=body.on_busy,
        limits=body.limits.as_limits() if body.limits else None,
        metadata=body.metadata,
        routing=services.routing,
        asked_with=caller.credential,
    )


def accepted_body(started: turns.StartedTurn, conversation_id: str) -> dict[str, object]:
    """Returns the body of a 202 response."""
    body: dict[str, object] = {
        "turn_id": started.turn_id,
        "conversation_id": conversation_id,
        "status": started.status.value,
        "message_id": started.message_id,
        "events": f"/v1/turns/{started.turn_id}/events",
    }
    if started.joined:
        body["joined"] = True
    if started.gives_way is not None:
        body["replaces"] = started.gives_way.turn_id
    return body


async def wait_for_result(services: Services, caller: Principal, answer: JSONResponse, seconds: float) -> JSONResponse:
    """Returns the response of a start after waiting: 200 with the turn if it ended or paused, else the 202 as it is."""
    if seconds <= 0:
        return answer
    turn = await wait_until_rest(services, caller, json.loads(bytes(answer.body))["turn_id"], seconds)
    return JSONResponse(jsonable_encoder(turn), 200) if turn["status"] in RESTING_STATUSES else answer


@turns_router.get("/turns")
async def list_turns(
    services: ServicesDep,
    caller: SubjectCaller,
    status: Annotated[TurnStatus | None, Query(description="Only turns with this status")] = None,
    agent: Annotated[str | None, Query(max_length=64, description="Only turns of this agent")] = None,
    conversation: Annotated[str | None, Query(description="Only turns of this conversation")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists turns, newest first: your own, or for reviewers all turns of the tenant."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await views.list_turns(
            tx,
            caller.scope,
            status=status.value if status else None,
            agent=agent,
            conversation_id=as_uuid(conversation, "conversation") if conversation else None,
            limit=min(limit, TURNS_PAGE_LIMIT),
            cursor=cursor,
        )
    return {"items": items, "next": following}


@turns_router.get("/turns/{turn_id}")
async def get_turn(services: ServicesDep, caller: Caller, turn_id: TurnId) -> dict[str, object]:
    """Returns one turn."""
    async with services.db.transaction(caller.tenant_id) as tx:
        turn = await views.get_turn(tx, turn_id, caller.scope)
    page = turn_page(services, caller, turn_id)
    return turn | {"links": {"temporal": page} if page else {}}


@turns_router.get("/turns/{turn_id}/calls")
async def calls(services: ServicesDep, caller: Caller, turn_id: TurnId) -> dict[str, object]:
    """Lists the model and tool calls of a turn in order of their start, with duration, attempts and cost."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": await calls_of(tx, turn_id, caller.scope), "next": None}


@turns_router.get("/turns/{turn_id}/metrics")
async def metrics(services: ServicesDep, caller: Caller, turn_id: TurnId) -> dict[str, object]:
    """Lists the metrics of each model call of a turn: duration and usage."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await metrics_of(tx, turn_id, caller.scope)


@turns_router.get("/turns/{turn_id}/segments")
async def segments(services: ServicesDep, caller: Caller, turn_id: TurnId) -> dict[str, object]:
    """Lists what the turn produced in order: reasoning, text and calls."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": await turn_segments(tx, turn_id, caller.scope), "next": None}


@turns_router.post("/turns/{turn_id}/stop", status_code=202)
async def stop(services: ServicesDep, caller: Caller, turn_id: TurnId, key: Key = None) -> JSONResponse:
    """Stops a turn: starts no new work and cancels running calls. Repeating the request changes nothing."""
    address = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal address
        await views.get_turn(tx, turn_id, caller.scope)
        address, status, note = await turns.request_stop(tx, turn_id, caller.user_id)
        return 202, {"turn_id": turn_id, "status": status.value, "stop_requested": True}, note

    async def after_commit() -> None:
        if address is not None:
            await services.live.stop(address)

    answer = await run_once(services, caller, f"stop/{turn_id}", key, None, work, after_commit)
    if address is not None:
        services.live.wake(address.conversation_id)
    return answer


async def wait_until_rest(services: Services, caller: Principal, turn_id: str, seconds: float) -> dict[str, object]:
    """Returns the turn when it has ended or paused, or its state after `seconds`. It is for callers that want the
    result in the same request."""
    deadline = time.monotonic() + seconds
    async with services.db.transaction(caller.tenant_id) as tx:
        turn = await views.get_turn(tx, turn_id, caller.scope)
    async with services.wakes.listen(caller.tenant_id, str(turn["conversation_id"])) as wake:
        while True:
            wake.clear()
            async with services.db.transaction(caller.tenant_id) as tx:
                turn = await views.get_turn(tx, turn_id, caller.scope)
            seconds_left = deadline - time.monotonic()
            if turn["status"] in RESTING_STATUSES or seconds_left <= 0 or services.wakes.closing:
                return turn
            await wake.wait(min(seconds_left, POLL_SECONDS))


conversations_router = APIRouter(prefix="/v1/conversations", tags=["conversations"])


@conversations_router.post("", status_code=201)
async def create(
    services: ServicesDep, authenticated: Authenticated, body: NewConversation, key: Key = None
) -> JSONResponse:
    """Creates a conversation with an agent."""
    caller = await _user_of(services, authenticated, body.on_behalf_of)

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        await agents.current_agent(tx, body.agent)
        conversation = await conversations.create_conversation(
            tx, caller.user_id, body.agent, body.title, body.metadata
        )
        await budgets.check_room_for_texts(tx, services.caps.quotas, caller.user_id, str(conversation["id"]))
        return 201, conversation, None

    answer = await run_once(services, caller, "conversations", key, body, work)
    services.text_sums.update_soon(caller.tenant_id, caller.user_id)
    return answer


@conversations_router.get("")
async def list_conversations(
    services: ServicesDep,
    caller: SubjectCaller,
    limit: Limit = 20,
    cursor: Cursor = None,
    title: Annotated[
        str | None, Query(min_length=2, max_length=200, description="Only if the title contains this")
    ] = None,
) -> dict[str, object]:
    """Lists your conversations, most recently used first."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await conversations.list_conversations(
            tx, caller.user_id, title, min(limit, CONVERSATIONS_PAGE_LIMIT), cursor
        )
    return {"items": items, "next": following}


@conversations_router.get("/{conversation_id}")
async def get_conversation(services: ServicesDep, caller: Caller, conversation_id: ConversationId) -> dict[str, object]:
    """Returns one conversation."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await conversations.get_conversation(tx, conversation_id, caller.scope)


@conversations_router.patch("/{conversation_id}")
async def patch(
    services: ServicesDep, caller: Caller, conversation_id: ConversationId, body: ConversationPatch
) -> dict[str, object]:
    """Changes the title or the metadata of your conversation."""
    async with services.db.transaction(caller.tenant_id) as tx:
        before, _ = await budgets.bytes_used(tx, caller.user_id, conversation_id)
        changed = await conversations.patch_conversation(tx, conversation_id, caller.user_id, body.title, body.metadata)
        if body.metadata is not None:
            await budgets.check_room_for_texts(
                tx, services.caps.quotas, caller.user_id, conversation_id, before.conversation
            )
    services.text_sums.update_soon(caller.tenant_id, caller.user_id)
    return changed


@conversations_router.delete("/{conversation_id}", status_code=204)
async def delete(services: ServicesDep, caller: Caller, conversation_id: ConversationId) -> Response:
    """Hides a conversation and deletes its uploads. Its turns, their records and the files that they made are kept."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.delete_conversation(tx, conversation_id, caller.user_id)
    return Response(status_code=204)


@conversations_router.get("/{conversation_id}/messages")
async def messages(
    services: ServicesDep, caller: Caller, conversation_id: ConversationId, limit: Limit = 50, cursor: Cursor = None
) -> dict[str, object]:
    """Lists the messages of a conversation in order."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise CallerError("cursor_invalid", "The cursor is invalid; use a `next` value that this list returned")
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.scope)
        items, following = await conversations.list_messages(tx, conversation_id, min(limit, 200), int(cursor or 0))
    return {"items": items, "next": following}


@conversations_router.get("/{conversation_id}/story")
async def conversation_view(
    services: ServicesDep,
    caller: Caller,
    conversation_id: ConversationId,
    turn: Annotated[str | None, Query(description="Only this turn")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists the turns of a conversation for display, newest first: messages, reasoning, calls and files. `turn` selects
    one turn. Pass `seq` to the stream to continue from there."""
    async with services.db.transaction(caller.tenant_id) as tx:
        await conversations.get_conversation(tx, conversation_id, caller.scope)
        seq, is_own = await conversations_store.last_event(tx, conversation_id, caller.user_id)
        following: str | None = None
        if turn is not None:
            items = await conversations_store.turn_of(tx, conversation_id, as_uuid(turn, "turn"))
        else:
            max_items = min(limit, CONVERSATIONS_PAGE_LIMIT)
            items, following = await conversations_store.turns_of(tx, conversation_id, max_items, cursor)
    return {"items": items, "next": following, "seq": seq, "own": is_own}


answers_router = APIRouter(prefix="/v1/turns/{turn_id}/answers", tags=["turns"])


@answers_router.get("/{request_id}")
async def get_question(
    services: ServicesDep, caller: Caller, turn_id: TurnId, request_id: QuestionId
) -> dict[str, object]:
    """Returns a question: its text, the accepted answers and its deadline."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await requests.get_question(tx, turn_id, request_id, caller.scope)


@answers_router.post("/{request_id}")
async def answer(
    services: ServicesDep, caller: Caller, turn_id: TurnId, request_id: QuestionId, body: AnswerBody, key: Key = None
) -> JSONResponse:
    """Answers a question that your turn asked, or submits the result of work for the client. The first valid answer
    counts."""
    answered: requests.Answered | None = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal answered
        answered, note = await requests.answer_question(
            tx, turn_id, request_id, caller.user_id, body.kind, body.payload, caller.credential
        )
        return 200, await requests.get_question(tx, turn_id, request_id, caller.user_id), note

    response = await run_once(services, caller, f"answer/{request_id}", key, body, work)
    if answered is not None:
        services.live.wake(answered.conversation_id)
    return response


limits_router = APIRouter(prefix="/v1", tags=["turns"])


@limits_router.post("/turns/{turn_id}/limits")
async def limits(
    services: ServicesDep, caller: DecidingCaller, turn_id: TurnId, body: RaiseBody, key: Key = None
) -> JSONResponse:
    """Raises a limit of a turn that is paused at it. The turn continues. A limit cannot be lowered or set below the
    usage."""
    raised_turns: list[TurnAddress] = []

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        raise_result, note = await raise_limits(tx, turn_id, decider_of(caller), caller.name, body.as_raise())
        raised_turns.append(raise_result.address)
        return (
            200,
            _limits(
                turn_id, raise_result.approval_id, raise_result.limits.max_tokens, raise_result.limits.max_cost_microusd
            ),
            note,
        )

    answer = await run_once(services, caller, f"limits/{turn_id}", key, body, work)
    for address in raised_turns:
        services.live.wake(address.conversation_id)
    return answer


def _limits(turn_id: str, approval_id: str, max_tokens: int, max_cost_microusd: int) -> dict[str, object]:
    limits = {"max_tokens": max_tokens, "max_cost_usd": max_cost_microusd / 1e6}
    return {"turn_id": turn_id, "approval_id": approval_id, "limits": limits}


execute_router = APIRouter(prefix="/v1", tags=["turns"])


@execute_router.post("/execute")
async def execute(
    services: ServicesDep, authenticated: Authenticated, body: ExecuteBody, key: Key = None
) -> JSONResponse:
    """Runs a turn and returns its final state; returns 202 if it is still running after two minutes."""
    caller = await _user_of(services, authenticated, body.on_behalf_of)
    started_agent = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal started_agent
        agent = await agents.current_agent(tx, body.agent)
        conversation = await _conversation_to_execute_in(tx, caller, body)
        new = turns.NewTurn(
            caller.tenant_id,
            str(conversation["id"]),
            caller.user_id,
            body.message,
            limits=body.limits.as_limits() if body.limits else None,
            metadata=body.metadata,
            system_prompt=body.system_prompt,
            routing=services.routing,
            asked_with=caller.credential,
        )
        started = await turns.start_turn(tx, new, agent, services.caps)
        started_agent = agent.definition.id
        return 202, accepted_body(started, str(conversation["id"])), started.note

    answer = await run_once(services, caller, "execute", key, body, work)
    if started_agent is not None:  # Counted after the commit; a replayed key starts nothing.
        TURNS_STARTED.labels(agent=started_agent).inc()
    services.text_sums.update_soon(caller.tenant_id, caller.user_id)
    return await wait_for_result(services, caller, answer, WAIT_SECONDS)


async def _conversation_to_execute_in(tx: Connection, caller: Principal, body: ExecuteBody) -> Mapping[str, object]:
    """Returns the named conversation, or a new one. Raises: CallerError 404; 422 `agent_differs`."""
    if body.conversation_id is None:
        return await conversations.create_conversation(tx, caller.user_id, body.agent, "", {})
    conversation_id = as_uuid(body.conversation_id, "conversation")
    conversation = await conversations.get_conversation(tx, conversation_id, caller.user_id)
    if conversation["agent"] != body.agent:
        raise CallerError(
            "agent_differs",
            "The conversation belongs to another agent; name that agent, or omit conversation_id",
            status=422,
        )
    return conversation
