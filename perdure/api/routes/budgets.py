"""Daily budgets: today's usage and the tenant's limits, for administrators."""

from fastapi import APIRouter

from perdure.api.auth import Caller, ServicesDep
from perdure.api.request_bodies import DayLimitsBody
from perdure.store import agents, budgets
from perdure.store.database import Connection

router = APIRouter(prefix="/v1/budgets", tags=["budgets"])


@router.get("")
async def show(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Returns today's budgets: the limits, the usage, how much of the usage is an estimate, and what running calls have
    reserved."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        return await _show_day_limits(tx)


@router.put("")
async def put(services: ServicesDep, caller: Caller, body: DayLimitsBody) -> dict[str, object]:
    """Sets the daily limits of all agents of the tenant together. Null removes a limit."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await budgets.set_day_limits(tx, body.as_limits(), caller.user_id)
        return await _show_day_limits(tx)


async def _show_day_limits(tx: Connection) -> dict[str, object]:
    return await budgets.day_limits_shown(tx, [agent for _, agent in await agents.list_agents(tx)])
