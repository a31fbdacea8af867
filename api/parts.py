"""Whether the parts that an API process stands on answer, asked side by side and within a moment."""

import asyncio
from collections.abc import Awaitable

from api.services import Services

LOOK_SECONDS = 2.0


async def parts_of(services: Services) -> dict[str, bool]:
    """Postgres, Temporal and Valkey: whether each has answered in time."""

    async def postgres() -> None:
        await services.db.pool.fetchval("SELECT 1")

    async def temporal() -> None:
        await services.doorbell.client.service_client.check_health()

    async def valkey() -> None:
        await services.valkey.client.ping()

    checks = {"postgres": postgres(), "temporal": temporal(), "valkey": valkey()}
    return dict(zip(checks, await asyncio.gather(*map(_answers, checks.values())), strict=True))


async def _answers(check: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(check, LOOK_SECONDS)
    except Exception:  # whatever is wrong with a part, it is not ready
        return False
    return True
