"""The fair lower bound: a hand-written workflow with Perdure's merging and routing, and no other part of Perdure.

Memory and skills load in one activity; the model and the tools record their own results. All activities except the
model's are on the workflow's own queue: the tools run eagerly, the load and the end are local activities. Its
worker has Perdure's settings, including no sandbox. It has no graph, claims, ledger, heartbeats, approvals or stop.
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import activity, workflow

from bench.baselines.values import FinishStep, Loaded, ModelContext, ModelResult, ModelStep, ToolStep, Turn
from bench.baselines.work import Work

WORKFLOW: Final = "BenchMerged"
LLM_QUEUE: Final = "bench-merged-llm"
_SHORT: Final = timedelta(seconds=20)
_LONG: Final = timedelta(seconds=600)


@workflow.defn(name=WORKFLOW)
class MergedTurn:
    """Four activities and two local ones: load, model, two tools, model, finish."""

    @workflow.run
    async def run(self, turn: Turn) -> str:
        """Runs rounds of tool calls until the model requests none."""
        loaded = await workflow.execute_local_activity(
            "bench.load", turn, result_type=Loaded, start_to_close_timeout=_SHORT
        )
        known = ModelContext(loaded=loaded)
        step = 0
        while True:
            step += 1
            result = await workflow.execute_activity(
                "bench.model",
                ModelStep(turn=turn, step=step, context=known),
                result_type=ModelResult,
                task_queue=LLM_QUEUE,
                start_to_close_timeout=_LONG,
            )
            if not result.calls:
                break
            await asyncio.gather(
                *(
                    workflow.execute_activity(
                        "bench.tool",
                        ToolStep(turn=turn, call=call, said=result),
                        start_to_close_timeout=_LONG,
                    )
                    for call in result.calls
                )
            )
            known = ModelContext(loaded=loaded, tokens=result.tokens)
        await workflow.execute_local_activity(
            "bench.finish", FinishStep(turn=turn, said=result), start_to_close_timeout=_SHORT
        )
        return "completed"


class MergedActivities:
    """The steps as activities."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @activity.defn(name="bench.load")
    async def load(self, turn: Turn) -> Loaded:
        """Loads memory and skills."""
        return await self._work.load(turn.address, turn.agent_version)

    @activity.defn(name="bench.model")
    async def model(self, step_input: ModelStep) -> ModelResult:
        """Makes one model call."""
        return await self._work.model(
            step_input.turn.address, step_input.turn.agent_version, step_input.step, step_input.context
        )

    @activity.defn(name="bench.tool")
    async def tool(self, step_input: ToolStep) -> None:
        """Makes one tool call."""
        await self._work.tool(step_input.turn.address, step_input.call, step_input.said)

    @activity.defn(name="bench.finish")
    async def finish(self, step_input: FinishStep) -> None:
        """Finishes the turn."""
        await self._work.finish(step_input.turn.address, step_input.said)
