"""The stream of a tenant's queue: it says that something changed and never what; a reader asks for what it may see."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from store.review_changes import LOOK_SECONDS, ReviewChanges
from store.wakes import Wakes

EVENT = "approvals"
_HEARTBEAT_SECONDS = 15.0


async def review_frames(changes: ReviewChanges, wakes: Wakes, tenant_id: str) -> AsyncGenerator[bytes]:
    """`approvals` now and at each change, until the reader or the process leaves. There is nothing to resume: whoever
    comes back is told at once."""
    said_at = time.monotonic()
    async with aclosing(changes.heads(tenant_id, LOOK_SECONDS)) as heads:
        async for head in heads:
            if wakes.closing:
                return
            if head is not None:
                yield format_sse_event(event=EVENT, data_str="{}")
            elif time.monotonic() - said_at > _HEARTBEAT_SECONDS:
                yield KEEPALIVE_COMMENT
            else:
                continue
            said_at = time.monotonic()
