"""Where notices of a tenant's approvals go: the calls, and what the API answers."""

from datetime import datetime

from pydantic import Field, JsonValue

from perdure.client.requests import Call, get, one, path
from perdure.schemas.answers import Answer, Page


class Webhook(Answer):
    """A receiver of notices."""

    id: str
    url: str
    with_args: bool = False
    """Whether notices of what has a low risk carry the call's arguments."""
    made_by: str = ""
    made_at: datetime | None = None
    waiting: int = 0
    """Notices on their way to it."""
    given_up: int = 0
    problem: str | None = None
    """What the last notice met that did not get through."""
    secret: str = Field(default="", repr=False)
    """Only of one that was just added: what the receiver verifies with."""


def list_webhooks() -> Call[Page[Webhook]]:
    """Every receiver, and how it goes."""
    return get(path("webhooks"), one(Page[Webhook]))


def add_webhook(url: str, *, with_args: bool = False) -> Call[Webhook]:
    """Tell this address from now on. Its secret is told this once, so it has no key."""
    body: dict[str, JsonValue] = {"url": url, "with_args": with_args}
    return Call("POST", path("webhooks"), one(Webhook), body=body)


def remove_webhook(webhook_id: str) -> Call[Answer]:
    """Tell it nothing more."""
    return Call("DELETE", path("webhooks", webhook_id), one(Answer))
