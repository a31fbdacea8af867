"""The synchronous form: one request, the turn's final state (S0-77)."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import ExecuteBody
from api.ids import as_uuid
from api.metrics import TURNS_STARTED
from api.once import Key, once
from api.routes.turns import accepted, waited
from contracts.errors import CallerError
from store import content, conversations, turns
from store.database import Connection
from store.outbox import Note

router = APIRouter(prefix="/v1", tags=["turns"])
WAIT_SECONDS = 120.0


@router.post("/execute")
async def execute(services: Open, who: Reader, body: ExecuteBody, key: Key = None) -> JSONResponse:
    """Run a turn and answer with it; 202 where it still runs after two minutes."""

    begun = None

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        nonlocal begun
        agent = await content.current(tx, body.agent)
        if body.conversation_id is None:
            conversation = await conversations.create(tx, who.user_id, body.agent, "", {})
        else:
            conversation_id = as_uuid(body.conversation_id, "conversation")
            conversation = await conversations.get(tx, conversation_id, who.user_id)
            if conversation["agent"] != body.agent:
                raise CallerError("agent_differs", "the conversation is with another agent", status=422)
        new = turns.NewTurn(
            who.tenant_id,
            str(conversation["id"]),
            who.user_id,
            body.message,
            limits=body.limits.as_limits() if body.limits else None,
            metadata=body.metadata,
            system_prompt=body.system_prompt,
            routing=services.routing,
        )
        started = await turns.start(tx, new, agent, services.caps)
        begun = agent.definition.id
        return 202, accepted(started, str(conversation["id"])), started.note

    answer = await once(services, who, "execute", key, body, work)
    if begun is not None:  # now it is durable; a replayed key begins nothing
        TURNS_STARTED.labels(agent=begun).inc()
    services.text_sums.wrote(who.tenant_id, who.user_id)
    return await waited(services, who, answer, WAIT_SECONDS)
