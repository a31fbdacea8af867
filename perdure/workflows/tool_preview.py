"""`ToolPreview`: one preview of a pending call by its tool, on the task queue of the tools.

It is independent of the turn, whose own workflow stays paused. It handles no wake signals, and its failure affects
nothing else.

Determinism: one activity.
"""

from temporalio import workflow

from perdure.contracts.activities import TOOL_PREVIEW, TOOLS_PREVIEW, PreviewRequest
from perdure.workflows.activity_calls import Calls


@workflow.defn(name=TOOL_PREVIEW)
class ToolPreview:
    """Creates one preview."""

    @workflow.run
    async def run(self, request: PreviewRequest) -> bool:
        """Returns whether a new preview was stored."""
        result = await Calls(request.routing).make(TOOLS_PREVIEW, request, summary="preview", stoppable=False)
        return result.kept
