"""Activities for approvals: `approvals.open` and `approvals.read` for the requests of a pause, and `tools.preview`."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from pydantic import JsonValue, ValidationError
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard
from perdure.contracts.activities import Opened, OpenRequest, PreviewKept, PreviewRequest, Verdicts, VerdictsRequest
from perdure.contracts.agents import ToolCard
from perdure.contracts.values import canonical_json
from perdure.core.calls.ledger import STOPPED_OR_ENDED
from perdure.egress import AnswerWithheld, EgressRefused
from perdure.sdk.tools import Preview, Tool, ToolContext, ToolPreview, ToolRefused, ToolUnavailable
from perdure.store.approvals import views
from perdure.store.approvals.requests import open_requests
from perdure.store.approvals.verdicts import read_verdicts


class ApprovalActivities:
    """The approval requests of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="approvals.open")
    async def open(self, ask: OpenRequest) -> Opened:
        """Opens all requests of a pause under the currently published policy.

        Effects: one transaction; a request is unique by (turn, call id). Retry: safe, returns the open requests.
        """
        async with activity_guard():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                agent = await self._deps.agent_cache.read_pinned(tx, ask.agent_id, ask.agent_version)
                in_force = await self._deps.agent_cache.read_published(tx, ask.agent_id) or agent
                opened = await open_requests(tx, ask, agent, in_force.definition.approvals)
            await self._deps.live.wake(ask.address.conversation_id)
        return opened or Opened(problem=STOPPED_OR_ENDED)

    @activity.defn(name="approvals.read")
    async def read(self, ask: VerdictsRequest) -> Verdicts:
        """Reads the current decisions; overdue requests expire here.

        Effects: one transaction. Retry: safe.
        """
        async with activity_guard():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                verdicts = await read_verdicts(tx, ask)
            await self._deps.live.wake(ask.address.conversation_id)
        return verdicts


SECONDS = 8.0
"""Time limit of one preview; a person waits for it."""
MOST_CHARACTERS = 16_000
"""Maximum length of both values as JSON."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The tool of an approval, on this worker."""

    preview: ToolPreview
    card: ToolCard


class PreviewActivities:
    """The previews of one worker. A preview is the tool author's read-only check of what the call would change. Errors
    are stored as a message in place of the preview, because no decision waits for it."""

    def __init__(self, deps: Deps, seconds: float = SECONDS) -> None:
        self._deps, self._seconds = deps, seconds

    @activity.defn(name="tools.preview")
    async def preview(self, ask: PreviewRequest) -> PreviewKept:
        """Makes the preview of a pending request and stores it with the database's time.

        Effects: those of the reads in the author's function. Retry: safe, it changes only the preview.
        """
        async with activity_guard():
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                request = await views.ask_for_preview(tx, ask.approval_id)
                found = None
                if request is not None:
                    agent = await self._deps.agent_cache.read_pinned(tx, request.agent_id, request.agent_version)
                    found = self._found(request, agent.card(request.tool))
            if request is None or found is None:
                return PreviewKept(kept=False)
            made = {"fault": found} if isinstance(found, str) else await self._made(request, found)
            async with self._deps.db.transaction(ask.address.tenant_id) as tx:
                return PreviewKept(
                    kept=await views.keep_preview(tx, ask.approval_id, {"digest": request.digest, **made})
                )

    def _found(self, request: views.AskedPreview, card: ToolCard | None) -> Found | str:
        """Returns the tool of the pinned version, or why it has no preview here."""
        tool = self._deps.toolbox.find(request.agent_id, request.tool, card)
        if not isinstance(tool, Tool) or tool.preview is None or tool.card.version != request.tool_version:
            return "the tool has changed since the request, or is not on this worker"
        return Found(tool.preview, tool.card)

    async def _made(self, request: views.AskedPreview, found: Found) -> dict[str, JsonValue]:
        secrets = self._deps.toolbox.secrets_for(found.card)
        missing = [name for name in found.card.secrets if not secrets.get(name)]
        if missing:
            return {"fault": f"the secret {missing[0]} is not set in the worker's environment"}
        context = ToolContext(
            card=found.card,
            tenant_id=request.tenant_id,
            turn_id=request.turn_id,
            conversation_id=request.conversation_id,
            call_id=request.call_id,
            user_id=request.user_id,
            idempotency_key="",
            deadline=datetime.now(UTC) + timedelta(seconds=self._seconds),
            http=self._deps.toolbox.http_for(request.agent_id),
            secrets=secrets,
            reads_only=True,
        )
        try:
            made = await asyncio.wait_for(found.preview.make(request.args, context), self._seconds)
        except (ToolRefused, ToolUnavailable) as error:
            return {"fault": error.message}
        except (AnswerWithheld, EgressRefused) as error:
            return {"fault": str(error)}
        except ValidationError:
            return {"fault": "the arguments do not match the preview's parameters"}
        except TimeoutError:
            return {"fault": f"no response within {self._seconds:g} s"}
        except Exception as error:  # an author's code can raise anything, and its text may quote anything
            _log.warning("preview_failed", tool=request.tool, error=type(error).__name__)
            return {"fault": f"the call failed ({type(error).__name__})"}
        return _bounded(made)


def _bounded(made: Preview) -> dict[str, JsonValue]:
    long = len(canonical_json([made.before, made.after]))
    if long > MOST_CHARACTERS:
        return {"fault": f"the preview is too long to show ({long:,} characters)"}
    return {"before": made.before, "after": made.after}
