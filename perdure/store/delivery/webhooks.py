"""Webhooks of a tenant, and the delivery of notices about its approvals."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg

from perdure.contracts.errors import CallerError
from perdure.store import audit
from perdure.store.database import Connection, Database, new_id, signer_of

MAX_WEBHOOKS = 20
_LIST = """
SELECT w.*, u.name AS maker, count(n.id) FILTER (WHERE n.gave_up_at IS NULL) AS waiting,
  count(n.gave_up_at) AS given_up, (array_agg(n.problem ORDER BY n.at DESC) FILTER (WHERE n.problem IS NOT NULL))[1]
  AS problem
FROM webhooks w JOIN users u ON u.id = w.made_by LEFT JOIN notices n ON n.webhook_id = w.id
WHERE w.ended_at IS NULL GROUP BY w.id, u.name ORDER BY w.made_at
"""
CLAIM_SECONDS = 60
"""If a relay is killed while it sends, its notices are sent again after this time."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook with the state of its deliveries."""

    id: str
    url: str
    with_args: bool
    made_by: str
    made_at: datetime
    waiting: int = 0
    """Notices that are not delivered yet."""
    given_up: int = 0
    """Notices that were dropped after most of a day."""
    problem: str | None = None
    """The error of the last notice that failed."""


async def list_webhooks(tx: Connection) -> list[Webhook]:
    """Returns the active webhooks with the state of their deliveries, oldest first."""
    return [_webhook(row) for row in await tx.fetch(_LIST)]


async def add_webhook(tx: Connection, url: str, actor: str, name: str, *, with_args: bool) -> tuple[Webhook, str]:
    """Adds a webhook. Returns it with the secret that its receiver verifies notices with.

    Raises: CallerError 409 `too_many_webhooks`.
    """
    tenant_id, keyring = signer_of(tx)
    if await tx.fetchval("SELECT count(*) FROM webhooks WHERE ended_at IS NULL") >= MAX_WEBHOOKS:
        raise CallerError(
            "too_many_webhooks", f"The tenant has the maximum of {MAX_WEBHOOKS} webhooks; delete one first", status=409
        )
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


async def end_webhook(tx: Connection, webhook_id: str, actor: str) -> None:
    """Ends a webhook and deletes its undelivered notices.

    Raises: CallerError 404 `webhook_not_found`.
    """
    row = await tx.fetchrow(
        "UPDATE webhooks SET ended_at = now() WHERE id = $1 AND ended_at IS NULL RETURNING true", webhook_id
    )
    if row is None:
        raise CallerError("webhook_not_found", "Webhook not found", status=404)
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


_CLAIM = f"""
UPDATE perdure.notices SET due_at = now() + interval '{CLAIM_SECONDS} seconds', attempts = attempts + 1 WHERE id IN (
  SELECT id FROM perdure.notices WHERE due_at <= now() AND gave_up_at IS NULL ORDER BY due_at, at LIMIT $1
  FOR UPDATE SKIP LOCKED)
RETURNING id, tenant_id, webhook_id, approval_id, event, at, attempts
"""


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A notice that is due."""

    id: str
    tenant_id: str
    webhook_id: str
    approval_id: str
    event: str
    at: datetime
    attempts: int
    """The number of attempts, including this one."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """The destination of a notice."""

    url: str
    key_id: str
    """The id of the key that the webhook's secret is derived from."""
    with_args: bool


async def claim_due_deliveries(relay: Database, limit: int = 20) -> list[WebhookDelivery]:
    """Claims due notices of all tenants for a minute. Only the relay's role can see them. Concurrent relays claim
    different notices. A notice has the approval's state at the time of sending."""
    async with relay.without_tenant() as connection:
        rows = await connection.fetch(_CLAIM, limit)
    return [
        WebhookDelivery(str(r["id"]), r["tenant_id"], str(r["webhook_id"]), str(r["approval_id"]), *tuple(r)[4:])
        for r in rows
    ]


async def receiver_of(tx: Connection, delivery: WebhookDelivery) -> Receiver | None:
    """Returns the notice's destination, or None if its webhook has ended."""
    row = await tx.fetchrow(
        "SELECT url, key_id, with_args FROM webhooks WHERE id = $1 AND ended_at IS NULL", delivery.webhook_id
    )
    return Receiver(**row) if row is not None else None


async def delivery_succeeded(relay: Database, delivery: WebhookDelivery) -> None:
    """Deletes a notice that was delivered or is no longer needed."""
    async with relay.without_tenant() as connection:
        await connection.execute("DELETE FROM perdure.notices WHERE id = $1", delivery.id)


async def delivery_failed(relay: Database, delivery: WebhookDelivery, problem: str, wait: timedelta | None) -> None:
    """Schedules the next attempt after `wait`. With None, gives the notice up."""
    async with relay.without_tenant() as connection:
        await connection.execute(
            "UPDATE perdure.notices SET problem = $2, due_at = now() + coalesce($3::interval, '0'), "
            "gave_up_at = CASE WHEN $3::interval IS NULL THEN now() END WHERE id = $1",
            delivery.id,
            problem,
            wait,
        )
