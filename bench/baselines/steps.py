"""The workflow that most engineers would write first: an activity for each step, with the messages in the workflow.

There are seven activities: memory read, skills read, model, two tools, model, transcript. They are eager if they share
the workflow's queue; the model has its own queue, as in Perdure's compact routing. The workflow runs twice: with the
defaults of the SDK and the drivers (`steps`), and with Perdure's settings (`tuned`).
"""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow

from bench.baselines.values import Answer, Memory, ModelInput, Skills, ToolInput, TranscriptInput, Turn, WholeMessage
from perdure.core.agents.prompts import base_message

WORKFLOW: Final = "BenchSteps"
TURNS, LLM = "turns", "llm"
"""Suffixes of the names of the two queues."""
_SHORT: Final = timedelta(seconds=20)
_LONG: Final = timedelta(seconds=600)


@workflow.defn(name=WORKFLOW)
class StepsTurn:
    """Seven activities."""

    @workflow.run
    async def run(self, turn: Turn) -> str:
        """Runs rounds of tool calls until the model requests none."""
        memory = await workflow.execute_activity(
            "bench.memory", turn, result_type=Memory, start_to_close_timeout=_SHORT
        )
        skills = await workflow.execute_activity(
            "bench.skills", turn, result_type=Skills, start_to_close_timeout=_SHORT
        )
        base = base_message(skills.persona, memory.user_name, memory.user_role, None) + skills.listed
        messages = [WholeMessage(id="", role="user", content=memory.user_text)]
        tokens = step = 0
        while True:
            step += 1
            step_input = ModelInput(
                turn=turn, step=step, base=base, memory=memory.memory, messages=tuple(messages), tokens=tokens
            )
            answer = await workflow.execute_activity(
                "bench.model",
                step_input,
                result_type=Answer,
                task_queue=workflow.info().task_queue.removesuffix(TURNS) + LLM,
                start_to_close_timeout=_LONG,
            )
            messages.append(answer.message)
            tokens += answer.tokens
            if not answer.message.calls:
                break
            messages += await _run_calls(turn, answer)
        await workflow.execute_activity(
            "bench.transcript", TranscriptInput(turn=turn, messages=tuple(messages[1:])), start_to_close_timeout=_SHORT
        )
        return "completed"


async def _run_calls(turn: Turn, answer: Answer) -> list[WholeMessage]:
    """Returns the results of the model's tool calls, which run in parallel."""
    results: list[WholeMessage] = await asyncio.gather(
        *(
            workflow.execute_activity(
                "bench.tool",
                ToolInput(turn=turn, call=call, first=index == 0, round=answer.message),
                result_type=WholeMessage,
                start_to_close_timeout=_LONG,
            )
            for index, call in enumerate(answer.message.calls)
        )
    )
    return results
