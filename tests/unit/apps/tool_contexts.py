"""A tool context for tests, with what most of them do not look at filled in."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.sdk.tools import ToolContext


def card(effect: str = "read", **fields: Any) -> ToolCard:
    given = {"name": "probe", "description": "Probe.", "parameters": {}, "needs_approval": False, "version": "1"}
    return ToolCard.model_validate({**given, "effect": EffectClass(effect), **fields})


def context(
    given: ToolCard | None = None,
    *,
    http: httpx.AsyncClient | None = None,
    secrets: Mapping[str, str] | None = None,
    seconds: float = 10.0,
    key: str = "pdk_1",
    **fields: Any,
) -> ToolContext:
    """A context; without `http` any request fails."""
    return ToolContext(
        card=given or card(), tenant_id="tenant", turn_id="turn", conversation_id="conversation", call_id="t1.0",
        user_id="user", idempotency_key=key, deadline=datetime.now(UTC) + timedelta(seconds=seconds),
        http=http or httpx.AsyncClient(transport=httpx.MockTransport(_nowhere)), secrets=secrets or {}, **fields,
    )  # fmt: skip


def _nowhere(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"nothing should have been sent, but {request.url} was")
