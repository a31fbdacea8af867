"""ToolPreview: one look of a tool at what an open call would change, on the queue of the tools.

It has nothing to do with the turn, whose own workflow goes on waiting: it hears no bell, and whatever becomes of it is
gone with it.

Determinism: one activity.
"""

from temporalio import workflow

from perdure.contracts.activities import TOOL_PREVIEW, TOOLS_PREVIEW, PreviewAsk
from perdure.workflows.activity_calls import Calls


@workflow.defn(name=TOOL_PREVIEW)
class ToolPreview:
    """Makes one preview."""

    @workflow.run
    async def run(self, ask: PreviewAsk) -> bool:
        """Whether there is a new one."""
        made = await Calls(ask.routing).make(TOOLS_PREVIEW, ask, summary="preview", stoppable=False)
        return made.kept
