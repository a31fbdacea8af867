"""Webhooks: the addresses that receive the tenant's approval events, for administrators."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from perdure.api.auth import Caller, ServicesDep
from perdure.api.request_bodies import WebhookBody, as_uuid
from perdure.core.egress import allowed_target
from perdure.store.delivery import webhooks

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


def _webhook_id(webhook_id: Annotated[str, Path(description="Id of the webhook")]) -> str:
    return as_uuid(webhook_id, "webhook")


WebhookId = Annotated[str, Depends(_webhook_id)]


@router.get("", operation_id="listed_v1_webhooks_get")
async def list_webhooks(services: ServicesDep, caller: Caller) -> dict[str, object]:
    """Lists all webhooks, with the number of pending deliveries and the last error of each."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        return {"items": [asdict(webhook) for webhook in await webhooks.list_webhooks(tx)], "next": None}


@router.post("", status_code=201)
async def add(services: ServicesDep, caller: Caller, body: WebhookBody) -> JSONResponse:
    """Creates a webhook, which receives all later approval events. Its secret is shown only in this response, so the
    request ignores Idempotency-Key."""
    caller.require_role("admin")
    allowed_target(body.url, services.webhook_hosts)
    async with services.db.transaction(caller.tenant_id) as tx:
        webhook, secret = await webhooks.add_webhook(
            tx, body.url, caller.user_id, caller.name, with_args=body.with_args
        )
    answer = jsonable_encoder(asdict(webhook) | {"secret": secret})
    return JSONResponse(answer, 201, {"Cache-Control": "no-store"})


@router.delete("/{webhook_id}")
async def end(services: ServicesDep, caller: Caller, webhook_id: WebhookId) -> dict[str, object]:
    """Deletes a webhook; pending deliveries are dropped."""
    caller.require_role("admin")
    async with services.db.transaction(caller.tenant_id) as tx:
        await webhooks.end_webhook(tx, webhook_id, caller.user_id)
    return {"ended": True}
