"""Effects: the changes that tools made in their targets, and settling unknown outcomes."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse

from perdure.api.auth import Caller, DecidingCaller, ServicesDep, SubjectCaller
from perdure.api.idempotency import Key, run_once
from perdure.api.request_bodies import Cursor, Limit, SettleBody
from perdure.api.routes.approvals import decider_of
from perdure.contracts.calls import CallState
from perdure.contracts.turns import TurnAddress
from perdure.store.calls import effects
from perdure.store.calls.effects import settle_by_person
from perdure.store.database import Connection
from perdure.store.delivery.outbox import Note

router = APIRouter(prefix="/v1/effects", tags=["effects"])
MAX_LISTED = 200
EffectKey = Annotated[str, Path(max_length=100, description="Key of the effect")]


@router.get("", operation_id="listed_v1_effects_get")
async def list_effects(
    services: ServicesDep,
    caller: SubjectCaller,
    state: Annotated[CallState | None, Query(description="Only effects in this state")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> dict[str, object]:
    """Lists effects, newest first. Those with `state=outcome_unknown` need a person to settle them."""
    async with services.db.transaction(caller.tenant_id) as tx:
        items, following = await effects.list_effects(
            tx, caller.scope, state.value if state else None, min(limit, MAX_LISTED), cursor
        )
    return {"items": items, "next": following}


@router.get("/{effect_key}", operation_id="get_v1_effects__effect_key__get")
async def get_effect(services: ServicesDep, caller: Caller, effect_key: EffectKey) -> dict[str, object]:
    """Returns one effect: its attempts, its approval and its reported progress."""
    async with services.db.transaction(caller.tenant_id) as tx:
        return await effects.get_effect(tx, effect_key, caller.scope)


@router.post("/{effect_key}/settle")
async def settle(
    services: ServicesDep, caller: DecidingCaller, effect_key: EffectKey, body: SettleBody, key: Key = None
) -> JSONResponse:
    """Records the outcome of an effect whose outcome is unknown; its turn then continues."""
    settled_turns: list[TurnAddress] = []

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        address, note = await settle_by_person(tx, effect_key, decider_of(caller), body.outcome, body.comment)
        settled_turns.append(address)
        return 200, {"key": effect_key, "outcome": body.outcome, "settled_by": caller.name}, note

    answer = await run_once(services, caller, f"settle/{effect_key}", key, body, work)
    for address in settled_turns:
        services.live.wake(address.conversation_id)
    return answer
