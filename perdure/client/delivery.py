"""API calls for webhooks of approval events, and their answers."""

from datetime import datetime

from pydantic import Field, JsonValue

from perdure.client.requests import Call, get, one, path
from perdure.schemas.answers import Answer, Page


class Webhook(Answer):
    """A webhook."""

    id: str
    url: str
    with_args: bool = False
    """True if notices about calls of low risk contain the call's arguments."""
    made_by: str = ""
    made_at: datetime | None = None
    waiting: int = 0
    """Notices that are not delivered yet."""
    given_up: int = 0
    problem: str | None = None
    """The problem of the last delivery that failed."""
    secret: str = Field(default="", repr=False)
    """The secret with which the receiver verifies notices. Only the answer of `add_webhook` contains it."""


def list_webhooks() -> Call[Page[Webhook]]:
    """Returns every webhook with its delivery state."""
    return get(path("webhooks"), one(Page[Webhook]))


def add_webhook(url: str, *, with_args: bool = False) -> Call[Webhook]:
    """Adds a webhook for this URL. Only this answer contains its secret, so the call has no Idempotency-Key."""
    body: dict[str, JsonValue] = {"url": url, "with_args": with_args}
    return Call("POST", path("webhooks"), one(Webhook), body=body)


def remove_webhook(webhook_id: str) -> Call[Answer]:
    """Removes a webhook."""
    return Call("DELETE", path("webhooks", webhook_id), one(Answer))
