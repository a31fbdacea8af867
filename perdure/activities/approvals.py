"""Activities for approvals: `approvals.open` and `approvals.read` for the requests of a pause, and `tools.preview`."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import JsonValue
from temporalio import activity

from perdure.activities.author_code import Raised, run_author_code
from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard
from perdure.activities.tool_failures import FailureReport
from perdure.contracts.activities import Opened, OpenRequest, PreviewKept, PreviewRequest, Verdicts, VerdictsRequest
from perdure.contracts.agents import ToolCard
from perdure.contracts.approvals import RequestKind, VerdictState
from perdure.contracts.values import canonical_json
from perdure.core.calls.ledger import STOPPED_OR_ENDED
from perdure.core.memory.facts import FAILED_RESOLVES
from perdure.egress import AnswerWithheld, EgressRefused
from perdure.sdk.tools import Preview, Tool, ToolContext, ToolPreview, ToolRefused, ToolUnavailable
from perdure.store.approvals import tool_previews
from perdure.store.approvals.requests import open_requests
from perdure.store.approvals.verdicts import read_verdicts
from perdure.store.memory import working_memory

_UNDECIDED = frozenset({VerdictState.PENDING, VerdictState.UNAVAILABLE, VerdictState.UNREADABLE})
PREVIEW_SECONDS = 8.0
"""Time limit of one preview; a person waits for it."""
MAX_PREVIEW_CHARACTERS = 16_000
"""Maximum length of both values as JSON."""


class ApprovalActivities:
    """The approval requests of one worker's turns."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="approvals.open")
    async def open(self, request: OpenRequest) -> Opened:
        """Opens all requests of a pause under the currently published policy.

        Effects: one transaction; a request is unique by (turn, call id). Retry: safe, returns the open requests.
        """
        async with activity_guard():
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                agent = await self._deps.agent_cache.read_pinned(tx, request.agent_id, request.agent_version)
                published = await self._deps.agent_cache.read_published(tx, request.agent_id) or agent
                opened = await open_requests(tx, request, agent, published.definition.approvals)
            self._deps.live.wake(request.address.conversation_id)
        return opened or Opened(problem=STOPPED_OR_ENDED)

    @activity.defn(name="approvals.read")
    async def read(self, request: VerdictsRequest) -> Verdicts:
        """Reads the current decisions; overdue requests expire here.

        Effects: one transaction. Retry: safe.
        """
        async with activity_guard():
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                checkpoints = {each.request_id for each in request.requests if each.kind is RequestKind.CHECKPOINT}
                if checkpoints:
                    await working_memory.lock_writes(tx, request.address.conversation_id, request.address.turn_id)
                verdicts = await read_verdicts(tx, request)
                decided = {each.request_id for each in verdicts.verdicts if each.state not in _UNDECIDED}
                if decided & checkpoints:  # The graph resets its own count too.
                    await working_memory.remove(tx, request.address.conversation_id, [FAILED_RESOLVES])
            self._deps.live.wake(request.address.conversation_id)
        return verdicts


@dataclass(frozen=True, slots=True)
class PreviewTool:
    """The tool of an approval, on this worker."""

    preview: ToolPreview
    card: ToolCard
    report: FailureReport


class PreviewActivities:
    """The previews of one worker. A preview is the tool author's read-only check of what the call would change. Errors
    are stored as a message in place of the preview, because no decision waits for it."""

    def __init__(self, deps: Deps, seconds: float = PREVIEW_SECONDS) -> None:
        self._deps, self._seconds = deps, seconds

    @activity.defn(name="tools.preview")
    async def preview(self, request: PreviewRequest) -> PreviewKept:
        """Makes the preview of a pending request and stores it with the database's time.

        Effects: those of the reads in the author's function. Retry: safe, it changes only the preview.
        """
        async with activity_guard():
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                approval = await tool_previews.read_preview_call(tx, request.approval_id)
                tool_or_fault = None
                if approval is not None:
                    agent = await self._deps.agent_cache.read_pinned(tx, approval.agent_id, approval.agent_version)
                    tool_or_fault = self._find_tool(approval, agent.card(approval.tool))
            if approval is None or tool_or_fault is None:
                return PreviewKept(kept=False)
            preview = (
                {"fault": tool_or_fault}
                if isinstance(tool_or_fault, str)
                else await self._make_preview(approval, tool_or_fault)
            )
            async with self._deps.db.transaction(request.address.tenant_id) as tx:
                return PreviewKept(
                    kept=await tool_previews.store_preview(
                        tx, request.approval_id, {"digest": approval.digest, **preview}
                    )
                )

    def _find_tool(self, approval: tool_previews.PreviewCall, card: ToolCard | None) -> PreviewTool | str:
        """Returns the tool of the pinned version, or why it has no preview here."""
        tool = self._deps.toolbox.find(approval.agent_id, approval.tool, card)
        if not isinstance(tool, Tool) or tool.preview is None or not tool.card.is_version(approval.tool_version):
            return "the tool has changed since the request, or is not on this worker"
        report = FailureReport.of(self._deps, tool, tool.card, approval.turn_id, approval.call_id)
        return PreviewTool(tool.preview, tool.card, report)

    async def _make_preview(self, approval: tool_previews.PreviewCall, tool: PreviewTool) -> dict[str, JsonValue]:
        secrets = self._deps.toolbox.secrets_for(tool.card)
        missing = [name for name in tool.card.secrets if not secrets.get(name)]
        if missing:
            return {"fault": f"the secret {missing[0]} is not set in the worker's environment"}
        context = ToolContext(
            card=tool.card,
            tenant_id=approval.tenant_id,
            turn_id=approval.turn_id,
            conversation_id=approval.conversation_id,
            call_id=approval.call_id,
            user_id=approval.user_id,
            idempotency_key="",
            deadline=datetime.now(UTC) + timedelta(seconds=self._seconds),
            http=self._deps.toolbox.http_for(approval.agent_id),
            secrets=secrets,
            reads_only=True,
        )
        preview = await run_author_code(tool.preview.make(approval.args, context), self._seconds)
        if not isinstance(preview, Raised):
            return _bounded(preview)
        error = preview.answer or preview.error
        if isinstance(error, ToolRefused | ToolUnavailable | AnswerWithheld | EgressRefused):
            return {"fault": tool.report.own_message(error)}
        if preview.timed_out:
            return {"fault": f"no response within {self._seconds:g} s"}
        tool.report.log("preview_failed", error)
        return {"fault": f"the preview failed: {tool.report.without_message(error)}"}


def _bounded(preview: Preview) -> dict[str, JsonValue]:
    length = len(canonical_json([preview.before, preview.after]))
    if length > MAX_PREVIEW_CHARACTERS:
        return {"fault": f"the preview is too long to show ({length:,} characters)"}
    return {"before": preview.before, "after": preview.after}
