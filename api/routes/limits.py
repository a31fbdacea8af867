"""Raising the limit that a turn waits for."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.auth import Open, Reader
from api.bodies import RaiseBody
from api.ids import TurnId
from api.once import Key, once
from api.routes.approvals import person
from contracts.turns import TurnAddress
from store.database import Connection
from store.limits import raise_limits
from store.outbox import Note

router = APIRouter(prefix="/v1", tags=["turns"])


@router.post("/turns/{turn_id}/limits")
async def limits(services: Open, who: Reader, turn_id: TurnId, body: RaiseBody, key: Key = None) -> JSONResponse:
    """Raise a limit of a turn that waits for it; it goes on where it was. Not lowered, not below what is used."""
    raised: list[TurnAddress] = []

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        found, note = await raise_limits(tx, turn_id, person(who), who.name, body.as_raise())
        raised.append(found.address)
        return 200, _shown(turn_id, found.approval_id, found.limits.max_tokens, found.limits.max_cost_microusd), note

    answer = await once(services, who, f"limits/{turn_id}", key, body, work)
    for address in raised:
        await services.live.wake(address.conversation_id)
    return answer


def _shown(turn_id: str, approval_id: str, max_tokens: int, max_cost_microusd: int) -> dict[str, object]:
    limits = {"max_tokens": max_tokens, "max_cost_usd": max_cost_microusd / 1e6}
    return {"turn_id": turn_id, "approval_id": approval_id, "limits": limits}
