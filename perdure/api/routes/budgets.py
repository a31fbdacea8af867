"""Daily budgets: today's usage and the tenant's limits, for administrators."""

from fastapi import APIRouter

from perdure.api.auth import Open, Reader
from perdure.api.requests import DayLimitsBody
from perdure.store import agents, budgets
from perdure.store.database import Connection

router = APIRouter(prefix="/v1/budgets", tags=["budgets"])


@router.get("")
async def show(services: Open, who: Reader) -> dict[str, object]:
    """Today's budgets: limits, what is used and how much of it is only assumed, what calls under way have reserved."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        return await _shown(tx)


@router.put("")
async def put(services: Open, who: Reader, body: DayLimitsBody) -> dict[str, object]:
    """These limits for all agents of the tenant together, and no others; a field that is null limits nothing."""
    who.need("admin")
    async with services.db.transaction(who.tenant_id) as tx:
        await budgets.set_day_limits(tx, body.as_limits(), who.user_id)
        return await _shown(tx)


async def _shown(tx: Connection) -> dict[str, object]:
    return await budgets.day_limits_shown(tx, [agent for _, agent in await agents.list_agents(tx)])
