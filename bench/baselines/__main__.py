"""A process of a hand-written stack: `python -m bench.baselines merged --queue turns`, or `graph`, which reads its
stdin.

Everything outside the stack itself is as in perdure/worker/queues.py: clients, pools, worker settings, drain. Only
`steps` keeps the defaults of the SDK and the drivers: sandbox, gRPC compression, pollers, Postgres's plans.
"""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from bench.baselines import merged, steps
from bench.baselines.graph import PlainGraph
from bench.baselines.merged import MergedActivities
from bench.baselines.step_activities import StepActivities
from bench.baselines.tools import Tools
from bench.baselines.values import Turn
from bench.baselines.work import Work
from bench.reference import AGENT
from perdure.activities.providers.scripted import ScriptedProvider, read_script
from perdure.apps import find_apps
from perdure.settings import Settings, needed
from perdure.store.agents import AgentCache
from perdure.store.database import Database
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.temporal.client import connect
from perdure.worker.queues import MAX_WORKFLOW_TASKS, freeze_heap, skip_idle_payload_visits, worker_settings


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", choices=["steps", "tuned", "merged", "graph"])
    parser.add_argument("--queue", choices=["turns", "llm"], default="turns")
    options = parser.parse_args()
    asyncio.run(_serve(options.stack, options.queue))
    sys.stdout.flush()
    os._exit(0)  # Temporal's core may crash in the interpreter's own shutdown


async def _serve(stack_name: str, queue: str) -> None:
    settings = Settings.read()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        work = await _work(stack_name, settings, stack)
        if stack_name == "graph":
            owner_url = needed(settings.database_owner_url, "DATABASE_OWNER_URL")
            serving = asyncio.create_task(_run_graphs(await PlainGraph.open(work, owner_url, stack)))
        else:
            running = await _worker(stack_name, queue, work)
            serving = asyncio.create_task(running.run())
            stack.push_async_callback(running.shutdown)
        if stack_name in ("tuned", "merged"):
            freeze_heap()
            skip_idle_payload_visits()
        if settings.ready_file is not None:
            settings.ready_file.write_text("ready\n")
        await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()


async def _work(stack_name: str, settings: Settings, stack: AsyncExitStack) -> Work:
    url = needed(settings.database_url, "DATABASE_URL")
    db = await Database.connect(url, application="bench", plan_once=stack_name != "steps")
    stack.push_async_callback(db.close)
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    stack.push_async_callback(valkey.close)
    http = await stack.enter_async_context(httpx.AsyncClient())
    app = next(app for app in find_apps(settings.apps) if app.name == AGENT)
    provider = ScriptedProvider(read_script(app.agents[0].script))
    return Work(db, LiveTokens(valkey), provider, Tools(AGENT, app.tools, http), AgentCache())


async def _worker(stack_name: str, queue: str, work: Work) -> Worker:
    turns, task_queue = queue == "turns", f"bench-{stack_name}-{queue}"
    if stack_name == "merged":
        merged_activities = MergedActivities(work)
        activities: list[Any] = (
            [merged_activities.load, merged_activities.tool, merged_activities.finish]
            if turns
            else [merged_activities.model]
        )
    else:
        step_activities = StepActivities(work)
        activities = (
            [step_activities.memory, step_activities.skills, step_activities.tool, step_activities.transcript]
            if turns
            else [step_activities.model]
        )
    workflows = [merged.MergedTurn if stack_name == "merged" else steps.StepsTurn] if turns else []
    if stack_name == "steps":
        return Worker(
            await _connect_plainly(),
            task_queue=task_queue,
            workflows=workflows,
            activities=activities,
            workflow_runner=_sandbox(),
        )
    tasks: dict[str, Any] = {"max_concurrent_workflow_tasks": MAX_WORKFLOW_TASKS} if turns else {}
    return Worker(
        await connect(),
        task_queue=task_queue,
        workflows=workflows,
        activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
        **worker_settings(),
        **tasks,
    )


async def _connect_plainly() -> Client:
    """Returns a client as in the SDK's documentation for pydantic models."""
    config = ClientConfig.load_client_connect_config()
    return await Client.connect(**config, data_converter=pydantic_data_converter)


def _sandbox() -> WorkflowRunner:
    """Returns the SDK's default runner, with the workflow's imports passed through, as its documentation advises."""
    through = SandboxRestrictions.default.with_passthrough_modules("bench", "perdure", "pydantic")
    return SandboxedWorkflowRunner(restrictions=through)


async def _run_graphs(graph: PlainGraph) -> None:
    """Runs a turn for each line of stdin: the cheapest input, so that no queue counts against LangGraph."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as turns:
        while line := await reader.readline():
            turns.create_task(graph.run(Turn.model_validate_json(line)))


if __name__ == "__main__":
    main()
