"""Workflows that run route tables on Temporal's own event loop, inside its sandbox."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from tests.topologies.rows import Row, run_row
    from tests.topologies.specs.every import COMPILED, ROWS

PARTS = 6
"""The SDK gives a workflow task two seconds, which all rows in one can take on a busy machine."""
PASSED_THROUGH = ("langgraph", "langchain_core", "langsmith")
"""LangGraph imports parts of these while it runs; imported anew in the sandbox, they fail."""


async def run_exactly(name: str, row: Row) -> None:
    """Run a row; raises where it did not run as its table says."""
    state, ports = await run_row(COMPILED[name], row)
    assert [one.recorded.trace() for one in ports] == [leg.trace.split() for leg in row.legs]
    assert state["status"] == row.legs[-1].status


@workflow.defn
class RunsRows:
    """Completes where each row of this part of all tables ran as its table says."""

    @workflow.run
    async def run(self, part: int) -> None:
        for name, row in ROWS[part::PARTS]:
            await run_exactly(name, row)


@workflow.defn
class RunsARowOfAnother:
    """Cannot complete: the row is one of another topology."""

    @workflow.run
    async def run(self, part: int) -> None:
        """A row of `skill_pipeline`, run on `tool_loop`."""
        _, row = ROWS[0]
        await run_exactly("tool_loop", row)
