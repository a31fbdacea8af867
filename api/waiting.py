"""Waiting for a turn to end or pause, for callers that want the answer in the same request."""

import time

from api.auth import Principal
from api.services import Services
from contracts.turns import ENDED, TurnStatus
from store import turn_views

RESTING = frozenset({status.value for status in (*ENDED, TurnStatus.AWAITING_APPROVAL, TurnStatus.AWAITING_ANSWER)})
LOOK_SECONDS = 1.0
"""Between looks where no bell rings."""


async def until_rest(services: Services, who: Principal, turn_id: str, seconds: float) -> dict[str, object]:
    """The turn once it has ended or pauses, or as it is after `seconds`."""
    deadline = time.monotonic() + seconds
    async with services.db.transaction(who.tenant_id) as tx:
        turn = await turn_views.get(tx, turn_id, who.scope)
    async with services.wakes.listen(who.tenant_id, str(turn["conversation_id"])) as bell:
        while True:
            bell.quiet()
            async with services.db.transaction(who.tenant_id) as tx:
                turn = await turn_views.get(tx, turn_id, who.scope)
            left = deadline - time.monotonic()
            if turn["status"] in RESTING or left <= 0 or services.wakes.closing:
                return turn
            await bell.wait(min(left, LOOK_SECONDS))
