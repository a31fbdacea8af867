"""Webhooks of a tenant: where notices of its approvals go."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from contracts.errors import CallerError
from store import audit
from store.database import Connection, signer_of
from store.ids import new_id

MOST = 20
_SHOWN = """
SELECT w.*, u.name AS maker, count(n.id) FILTER (WHERE n.gave_up_at IS NULL) AS waiting,
  count(n.gave_up_at) AS given_up, (array_agg(n.problem ORDER BY n.at DESC) FILTER (WHERE n.problem IS NOT NULL))[1]
  AS problem
FROM webhooks w JOIN users u ON u.id = w.made_by LEFT JOIN notices n ON n.webhook_id = w.id
WHERE w.ended_at IS NULL GROUP BY w.id, u.name ORDER BY w.made_at
"""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One receiver."""

    id: str
    url: str
    with_args: bool
    made_by: str
    made_at: datetime
    waiting: int = 0
    """Notices that are on their way."""
    given_up: int = 0
    """Notices that it did not take, for most of a day."""
    problem: str | None = None
    """What the last notice met that did not get through."""


async def listed(tx: Connection) -> list[Webhook]:
    """Those that are told now, with how it goes."""
    return [_webhook(row) for row in await tx.fetch(_SHOWN)]


async def add(tx: Connection, url: str, actor: str, name: str, *, with_args: bool) -> tuple[Webhook, str]:
    """Tell this address from now on; with the secret that its receiver verifies with.

    Raises: CallerError 409 `too_many_webhooks`.
    """
    tenant_id, keyring = signer_of(tx)
    if await tx.fetchval("SELECT count(*) FROM webhooks WHERE ended_at IS NULL") >= MOST:
        raise CallerError("too_many_webhooks", f"there are {MOST} already; end one first", status=409)
    webhook_id, key = new_id(), keyring.keys[0]
    made_at = await tx.fetchval(
        "INSERT INTO webhooks (id, tenant_id, url, with_args, key_id, made_by) VALUES ($1, $2, $3, $4, $5, $6) "
        "RETURNING made_at",
        webhook_id,
        tenant_id,
        url,
        with_args,
        key.id,
        actor,
    )
    await audit.record(tx, "webhook.added", webhook_id, {"url": url, "with_args": with_args}, actor=actor, turn_id=None)
    return Webhook(webhook_id, url, with_args, name, made_at), key.webhook_secret(tenant_id, webhook_id)


async def end(tx: Connection, webhook_id: str, actor: str) -> None:
    """Tell it nothing more.

    Raises: CallerError 404 `webhook_not_found`.
    """
    row = await tx.fetchrow(
        "UPDATE webhooks SET ended_at = now() WHERE id = $1 AND ended_at IS NULL RETURNING true", webhook_id
    )
    if row is None:
        raise CallerError("webhook_not_found", "there is no such webhook", status=404)
    await tx.execute("DELETE FROM notices WHERE webhook_id = $1", webhook_id)
    await audit.record(tx, "webhook.ended", webhook_id, {}, actor=actor, turn_id=None)


def _webhook(row: asyncpg.Record) -> Webhook:
    return Webhook(
        id=str(row["id"]),
        url=row["url"],
        with_args=row["with_args"],
        made_by=row["maker"],
        made_at=row["made_at"],
        waiting=row["waiting"],
        given_up=row["given_up"],
        problem=row["problem"],
    )
