"""API calls for webhooks of approval events. Each function builds a `Call`; a client sends it."""

from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path
from perdure.schemas.base import Answer, Page
from perdure.schemas.delivery import Webhook


def list_webhooks() -> Call[Page[Webhook]]:
    """Returns every webhook with its delivery state."""
    return get(path("webhooks"), parsed_as(Page[Webhook]))


def add_webhook(url: str, *, with_args: bool = False) -> Call[Webhook]:
    """Adds a webhook for this URL; with `with_args`, its notices contain the arguments of calls. Only this answer
    contains its secret, so the call has no Idempotency-Key."""
    body: dict[str, JsonValue] = {"url": url, "with_args": with_args}
    return Call("POST", path("webhooks"), parsed_as(Webhook), body=body)


def remove_webhook(webhook_id: str) -> Call[Answer]:
    """Removes a webhook with its pending notices."""
    return Call("DELETE", path("webhooks", webhook_id), parsed_as(Answer))
