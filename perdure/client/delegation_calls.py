"""The calls about standing in for somebody. Each function makes a value; nothing is sent here."""

from datetime import datetime

from pydantic import JsonValue

from perdure.client.answers import Page
from perdure.client.calls import Call, get, one, path, post
from perdure.client.review_answers import Delegation


def list_delegations(*, everybodys: bool = False, cursor: str | None = None) -> Call[Page[Delegation]]:
    """The caller's: those that they gave; `everybodys` is for an admin."""
    return get(path("delegations"), one(Page[Delegation]), {"all": everybodys or None, "cursor": cursor})


def add_delegation(to: str, until: datetime, *, idempotency_key: str = "") -> Call[Delegation]:
    """Let the user `to` decide in the caller's place until then, 90 days at most; `until` is aware of its zone."""
    if until.tzinfo is None:
        raise ValueError("say in which time zone `until` is")
    body: dict[str, JsonValue] = {"to": to, "until": until.isoformat()}
    return post(path("delegations"), one(Delegation), body, key=idempotency_key)


def remove_delegation(delegation_id: str) -> Call[None]:
    """End one of the caller's own at once, as an admin anybody's."""
    return Call("DELETE", path("delegations", delegation_id), lambda _: None)
