"""The tools that a tenant lets run without a person (policy/waivers.py), and those of them that a turn has taken."""

from collections.abc import Sequence

from contracts.errors import CallerError
from policy.waivers import WAIVABLE, waiver_fault
from store import audit
from store.database import Connection

WAIVERS = "(SELECT waived_tools FROM tenants WHERE tenant_id = current_setting('perdure.tenant'))"
"""A subselect: the tenant's, by name."""


async def waivers(tx: Connection) -> list[str]:
    """The tenant's, by name."""
    found: list[str] = await tx.fetchval(f"SELECT {WAIVERS}")
    return found


async def set_waiver(tx: Connection, tool: str, *, waived: bool, user_id: str) -> None:
    """Let a tool run without a person from the next turn on, or have a person asked again.

    Raises: CallerError 422 `approval_not_waivable`.
    """
    fault = waiver_fault(tool)
    if fault is not None:
        raise CallerError("approval_not_waivable", fault, {"tool": tool, "waivable": [*WAIVABLE]}, status=422)
    before = await tx.fetchval(
        "SELECT $1 = ANY(waived_tools) FROM tenants WHERE tenant_id = current_setting('perdure.tenant') FOR UPDATE",
        tool,
    )
    await tx.execute(
        "UPDATE tenants SET waived_tools = array_remove(waived_tools, $1) || CASE WHEN $2 THEN ARRAY[$1] "
        "ELSE '{}'::text[] END WHERE tenant_id = current_setting('perdure.tenant')",
        tool,
        waived,
    )
    told = {"approval": not waived, "before": not before}
    await audit.record(tx, "approval.waiver_set", tool, {**told}, actor=user_id, turn_id=None)


async def take(tx: Connection, turn_id: str, waived: Sequence[str]) -> None:
    """Fix the waivers of a turn as it begins: its calls are held against these."""
    await tx.execute("UPDATE turns SET waived_tools = $2 WHERE id = $1", turn_id, [*waived])
