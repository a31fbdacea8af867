"""`ToolCheck`: one check of a reviewer's edit by the tool's own types, on the task queue of the tools.

It is independent of the turn, whose own workflow stays paused, like a preview.

Determinism: one activity.
"""

from temporalio import workflow

from perdure.contracts.activities import TOOL_CHECK, TOOLS_CHECK, Checked, CheckRequest, EditCheckRequest
from perdure.workflows.activity_calls import Calls


@workflow.defn(name=TOOL_CHECK)
class ToolCheck:
    """Checks one edit."""

    @workflow.run
    async def run(self, request: EditCheckRequest) -> Checked:
        """Returns what the tool's types refuse of the edit."""
        check = CheckRequest(address=request.address, edit=request.edit)
        return await Calls(request.routing).make(TOOLS_CHECK, check, summary="check an edit", stoppable=False)
