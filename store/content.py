"""Agents as published: every version is kept, since a turn keeps the one that it began with."""

from collections.abc import Sequence

import asyncpg

from contracts.agents import PublishedAgent
from contracts.errors import CallerError
from contracts.skills import DataTable
from store.app_tables import store_tables
from store.database import Connection

SHARED = "*"
"""The tenant whose content every tenant may read."""


async def publish(
    tx: Connection, agents: Sequence[tuple[str, PublishedAgent]], tables: Sequence[DataTable] = ()
) -> None:
    """Make these (app, agent) pairs the current ones, by the owner, in a transaction of the shared tenant.

    `tables` are those that they name; what is there already may be left out.
    """
    await store_tables(tx, SHARED, tables)
    for app, agent in agents:
        await tx.execute(
            "INSERT INTO agent_versions (tenant_id, agent_id, version, body) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT DO NOTHING",
            SHARED,
            agent.definition.id,
            agent.version,
            agent.model_dump(mode="json"),
        )
        await tx.execute(
            "INSERT INTO agents (tenant_id, agent_id, version, app) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (tenant_id, agent_id) DO UPDATE SET version = excluded.version, app = excluded.app",
            SHARED,
            agent.definition.id,
            agent.version,
            app,
        )
    await tx.execute(
        "DELETE FROM agents WHERE tenant_id = $1 AND NOT agent_id = ANY($2)",
        SHARED,
        [agent.definition.id for _, agent in agents],
    )


_CURRENT = "SELECT a.agent_id, a.app, v.body FROM agents a JOIN agent_versions v USING (tenant_id, agent_id, version)"


async def current(tx: Connection, agent_id: str) -> PublishedAgent:
    """The agent as a new turn would get it.

    Raises: CallerError 404 `agent_not_found`.
    """
    row = await tx.fetchrow(f"{_CURRENT} WHERE a.agent_id = $1", agent_id)
    if row is None:
        raise CallerError(
            "agent_not_found", "there is no such agent; see GET /v1/agents", {"agent": agent_id[:80]}, status=404
        )
    return _stored(row["body"])


async def listed(tx: Connection) -> list[tuple[str, PublishedAgent]]:
    """Every current agent with the name of its app, by id."""
    rows = await tx.fetch(f"{_CURRENT} ORDER BY a.agent_id")
    return [(row["app"], _stored(row["body"])) for row in rows]


def _stored(body: object) -> PublishedAgent:
    """A stored version; it may have been written by a later deploy, whose new fields mean nothing here."""
    return PublishedAgent.model_validate(body, extra="ignore")


class AgentShelf:
    """Published versions by digest, read once a process: a version never changes."""

    def __init__(self) -> None:
        self._agents: dict[str, PublishedAgent] = {}

    def known(self, version: str) -> PublishedAgent | None:
        """The version, where this process has read it."""
        return self._agents.get(version)

    async def at(self, tx: Connection | asyncpg.Connection, agent_id: str, version: str) -> PublishedAgent:
        """The version that a turn pinned.

        Raises: CallerError 404 `agent_version_not_found`.
        """
        agent = self._agents.get(version)
        if agent is None:
            body = await tx.fetchval(
                "SELECT body FROM agent_versions WHERE agent_id = $1 AND version = $2", agent_id, version
            )
            if body is None:
                raise CallerError(
                    "agent_version_not_found",
                    "the version that this turn began with is gone",
                    {"agent": agent_id, "version": version},
                    status=404,
                )
            agent = self._agents[version] = _stored(body)
        return agent

    async def published(self, tx: Connection | asyncpg.Connection, agent_id: str) -> PublishedAgent | None:
        """The version that a new turn would pin; None where the agent is not published any more."""
        version = await tx.fetchval("SELECT version FROM agents WHERE agent_id = $1", agent_id)
        return None if version is None else await self.at(tx, agent_id, version)
