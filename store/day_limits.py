"""The operator's limits of a day for all of a tenant's agents, and what the day has come to (S0-75)."""

from collections.abc import Sequence
from datetime import date

from contracts.agents import DayLimits, PublishedAgent
from policy.day_budget import TENANT, resets_at
from store import audit, budgets
from store.database import Connection


async def set_limits(tx: Connection, limits: DayLimits, actor: str) -> None:
    """From the next model call on these limits hold; None is no limit, and the day's use is counted on."""
    asked = limits.model_dump(mode="json")
    await tx.execute(
        "INSERT INTO day_limits (tenant_id, max_tokens, max_cost_microusd, set_by) "
        "VALUES (current_setting('perdure.tenant'), $1, $2, $3) ON CONFLICT (tenant_id) DO UPDATE SET "
        "max_tokens = excluded.max_tokens, max_cost_microusd = excluded.max_cost_microusd, "
        "set_by = excluded.set_by, set_at = now()",
        limits.max_tokens,
        limits.max_cost_microusd,
        actor,
    )
    await audit.record(tx, "day_limits.set", "day_limits", asked, actor=actor, turn_id=None)


_TODAY = """
SELECT (now() AT TIME ZONE 'UTC')::date AS today, l.tenant_id IS NOT NULL AS counted, l.max_tokens, l.max_cost_microusd,
  (SELECT jsonb_object_agg(d.agent_id, jsonb_build_array(d.used_tokens, d.used_cost_microusd, d.held_tokens,
    d.held_cost_microusd, d.assumed_tokens, d.assumed_cost_microusd))
    FROM day_usage d WHERE d.day = (now() AT TIME ZONE 'UTC')::date) AS used
FROM (SELECT) AS one LEFT JOIN day_limits l ON true
"""


async def shown(tx: Connection, agents: Sequence[PublishedAgent]) -> dict[str, object]:
    """Today's budgets: the tenant's, and of each of these agents that has one."""
    row = await tx.fetchrow(_TODAY)
    if row is None:
        return {}
    used: dict[str, list[int]] = row["used"] or {}
    of_tenant = DayLimits(max_tokens=row["max_tokens"], max_cost_microusd=row["max_cost_microusd"])
    limited = [
        (agent.definition.id, agent.definition.day_limits)
        for agent in agents
        if agent.definition.day_limits is not None
    ]
    of_day = [*([TENANT] if row["counted"] else []), *(agent_id for agent_id, _ in limited)]
    missing = [name for name in of_day if name not in used]  # nobody has called under these yet
    if missing:
        used |= {name: [*counted, 0, 0, 0, 0] for name, counted in (await budgets.uncounted(tx, missing)).items()}
    day: date = row["today"]
    return {
        "day": day.isoformat(),
        "resets_at": resets_at(day),
        "tenant": _budget(of_tenant, used[TENANT]) if row["counted"] else None,
        "agents": [{"agent": agent_id, **_budget(limits, used[agent_id])} for agent_id, limits in limited],
    }


def _budget(limits: DayLimits, counted: list[int]) -> dict[str, object]:
    used_tokens, used_cost, held_tokens, held_cost, assumed_tokens, assumed_cost = counted
    return {
        "max_tokens": limits.max_tokens,
        "used_tokens": used_tokens,
        "assumed_tokens": assumed_tokens,
        "reserved_tokens": held_tokens,
        "max_cost_usd": None if limits.max_cost_microusd is None else limits.max_cost_microusd / 1e6,
        "used_cost_usd": used_cost / 1e6,
        "assumed_cost_usd": assumed_cost / 1e6,
        "reserved_cost_usd": held_cost / 1e6,
    }
