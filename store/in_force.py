"""What agents as they are published now say of an open request: its policy, and the version of its tool."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import asyncpg

from contracts.approval_policy import ApprovalPolicy
from policy.outdated import InForce, has_call_ahead, why_outdated
from store.database import Connection

_PUBLISHED = """
SELECT g.agent_id, v.body->'definition'->'approvals' AS policy,
  (SELECT jsonb_object_agg(c->>'name', c->>'version') FROM jsonb_array_elements(v.body->'cards') c) AS tools
FROM agents g JOIN agent_versions v USING (tenant_id, agent_id, version) WHERE g.agent_id = ANY($1)
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """What a published agent says about its gated calls."""

    policy_digest: str
    tools: Mapping[str, str]
    """Versions by name."""


async def published(tx: Connection, agent_ids: Collection[str]) -> dict[str, Publication]:
    """By agent; those that are not published any more are left out."""
    rows = await tx.fetch(_PUBLISHED, list(agent_ids))
    return {row["agent_id"]: Publication(_digest(row["policy"]), row["tools"] or {}) for row in rows}


async def outdated(tx: Connection, rows: Collection[asyncpg.Record]) -> dict[str, str]:
    """By approval: what has changed since it was opened, of those rows whose call may still begin."""
    ahead = [row for row in rows if has_call_ahead(row["status"], row["kind"], row["tool"])]
    if not ahead:
        return {}
    found = await published(tx, {row["agent_id"] for row in ahead})
    told = {str(row["id"]): _why(row, found.get(row["agent_id"])) for row in ahead}
    return {approval_id: why for approval_id, why in told.items() if why is not None}


def _why(row: asyncpg.Record, agent: Publication | None) -> str | None:
    in_force = InForce(agent.policy_digest, agent.tools.get(row["tool"], "")) if agent is not None else None
    return why_outdated(row["policy_digest"], row["tool_version"], in_force)


def _digest(stored: object) -> str:
    """Of a policy that a later deploy may have written, whose new fields mean nothing here."""
    return ApprovalPolicy.model_validate(stored, extra="ignore").digest
