"""Having a preview made: a short workflow of its own, whose failure is a sentence."""

import asyncio
from datetime import timedelta

import structlog
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from contracts.previews import PreviewAsk
from contracts.turns import Kind
from contracts.workflows import TOOL_PREVIEW

WITHIN = timedelta(seconds=12)
"""From being asked for to being there, a wait for a free worker included: then Temporal ends it."""
_MORE_SECONDS = 3.0
_log = structlog.get_logger(__name__)


async def made(client: Client, ask: PreviewAsk) -> str:
    """Have it made, once for all who ask at the same time; why it was not, empty where it was."""
    try:
        async with asyncio.timeout(WITHIN.total_seconds() + _MORE_SECONDS):
            handle = await client.start_workflow(
                TOOL_PREVIEW,
                ask,
                id=f"preview:{ask.approval_id}",
                task_queue=ask.routing.queue(Kind.TURNS),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                execution_timeout=WITHIN,
                rpc_timeout=timedelta(seconds=_MORE_SECONDS),
            )
            await handle.result()
    except (RPCError, TimeoutError, WorkflowFailureError) as error:
        _log.warning("preview_not_made", approval_id=ask.approval_id, error=type(error).__name__)
        return "Temporal is away" if isinstance(error, RPCError) else "no worker has made it in time"
    return ""
