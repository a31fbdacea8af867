"""A worker process: settings -> clients -> activities -> Temporal workers for the queues named on the command line.

`python worker.py --queues turns,llm` serves task queues; `python worker.py --relay` delivers wake-ups and reconciles.
SIGTERM drains: nothing new is taken, calls under way have 30 s.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import structlog
from temporalio.worker import Worker

from activities.approvals import ApprovalActivities
from activities.deps import Deps
from activities.memory import MemoryActivities
from activities.model import ModelActivities
from activities.models import Models
from activities.toolbox.entities import CORE_ALWAYS, CORE_BY_NAME
from activities.toolbox.shelf import Toolbox
from activities.tools import ToolActivities
from activities.turns import TurnActivities
from contracts.turns import Kind, Routing
from perdure.apps import App, find_apps
from perdure.targets import new_client
from perdure.tools import Tool
from relay.connect import connect
from relay.deliver import Doorbell
from relay.loop import run_relay
from relay.reconcile import Reconciler
from relay.search_attributes import register
from settings import Settings, needed, secret
from store import content
from store.database import Database
from store.live import LiveTokens
from store.valkey import Valkey

DRAIN = timedelta(seconds=30)
STICKY = timedelta(seconds=2)
"""How long a killed worker's cached turns wait for it before another worker takes them."""
WORKFLOW_TASKS_AT_ONCE = 8
"""On two cores: more cold replays at once would starve the deadlock detector (measured, PostHog #48777)."""
ACTIVITIES_AT_ONCE = 100
HEARTBEAT_THROTTLE = timedelta(seconds=0.2)
"""A stop reaches a running call with its next heartbeat (measured: p50 213 ms against 1.6 s by default)."""
_log = structlog.get_logger("worker")


def main() -> None:
    """Parse, run, and leave without the interpreter's own shutdown, in which Temporal's core may crash (#300)."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    kinds = ", ".join(kind.value for kind in Kind)
    what.add_argument("--queues", help=f"task queues to serve, comma-separated: {kinds}")
    what.add_argument("--relay", action="store_true", help="deliver wake-ups and reconcile")
    asked = parser.parse_args()
    names = [name for name in (asked.queues or "").split(",") if name]
    unknown = set(names) - {kind.value for kind in Kind}
    if unknown or not (names or asked.relay):
        parser.error(f"unknown queue {', '.join(sorted(unknown))}; there are {kinds}")
    try:
        code = asyncio.run(_relay() if asked.relay else _serve([Kind(name) for name in names]))
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _serve(kinds: Sequence[Kind]) -> int:
    settings = Settings()
    async with AsyncExitStack() as stack:
        deps = await _deps(settings, stack)
        if Kind.LLM in kinds:
            async with deps.db.transaction(content.SHARED) as tx:
                await deps.models.preload([agent for _, agent in await content.listed(tx)])
        workers = [worker_for(deps, kind, Routing.spread().queue(kind)) for kind in kinds]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        _ready(settings)
        _log.info("worker_ready", queues=[kind.value for kind in kinds])
        stop = asyncio.create_task(_stop_asked().wait())
        ended, _ = await asyncio.wait({stop, *running}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        for task in ended - {stop}:
            task.result()  # a worker that ended by itself says why
    return 0


async def _relay() -> int:
    settings = Settings()
    async with AsyncExitStack() as stack:
        url = needed(settings.database_relay_url, "DATABASE_RELAY_URL")
        relay = await Database.connect(url, most=4, application="perdure-relay")
        stack.push_async_callback(relay.close)
        client = await connect()
        await register(client)
        doorbell = Doorbell(client, relay)
        stop = _stop_asked()
        _ready(settings)
        await asyncio.gather(run_relay(relay, doorbell, stop), Reconciler(relay, client, doorbell).run(stop))
    return 0


async def _deps(settings: Settings, stack: AsyncExitStack) -> Deps:
    db = await Database.connect(
        needed(settings.database_url, "DATABASE_URL"), most=settings.pool_size, application="perdure-worker"
    )
    stack.push_async_callback(db.close)
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    stack.push_async_callback(valkey.close)
    http = await stack.enter_async_context(new_client())
    doorbell = Doorbell(await connect(), db)
    toolbox = Toolbox(tools_of(find_apps(settings.apps)), secret, http)
    return Deps(db, LiveTokens(valkey), toolbox, Models(secret), doorbell)


def tools_of(apps: Sequence[App]) -> Iterator[tuple[str, Tool]]:
    """Every tool under the agents that offer it."""
    for app in apps:
        for problem in app.problems:
            _log.warning("app_problem", problem=str(problem))
        for agent in app.agents:
            core = CORE_ALWAYS if agent.core_tools else ()
            yield from ((agent.id, tool) for tool in core)
            for name in agent.tools:
                yield agent.id, CORE_BY_NAME.get(name) or app.tools[name]


def worker_for(deps: Deps, kind: Kind, task_queue: str) -> Worker:
    """The worker of one task queue. The turns queue serves every kind but the model's: `compact` routes them there."""
    by_kind: dict[Kind, list[Callable[..., Any]]] = {
        Kind.LLM: [ModelActivities(deps).complete],
        Kind.TOOLS: [ToolActivities(deps).run],
        Kind.MEMORY: [MemoryActivities(deps).load],
        Kind.APPROVALS: [ApprovalActivities(deps).open, ApprovalActivities(deps).read],
        Kind.TURNS: [TurnActivities(deps).finish],
    }
    turns = kind is Kind.TURNS
    activities = (
        [each for other, several in by_kind.items() if other is not Kind.LLM for each in several]
        if turns
        else by_kind[kind]
    )
    return Worker(
        deps.doorbell.client,
        task_queue=task_queue,
        activities=activities,
        **(_workflows() if turns else {}),
        max_concurrent_activities=ACTIVITIES_AT_ONCE,
        sticky_queue_schedule_to_start_timeout=STICKY,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=DRAIN,
    )


def _workflows() -> dict[str, Any]:
    """What only the turns queue needs: LangGraph takes 2 s of CPU to import (measured), so the others do without."""
    from workflows.sandbox import runner
    from workflows.turn_run import TurnRun
    from workflows.turn_wait import TurnWait

    return {
        "workflows": [TurnRun, TurnWait],
        "workflow_runner": runner(),
        "max_concurrent_workflow_tasks": WORKFLOW_TASKS_AT_ONCE,
    }


def _stop_asked() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    return stop


def _ready(settings: Settings) -> None:
    if settings.ready_file is not None:
        settings.ready_file.write_text("ready\n")


if __name__ == "__main__":
    main()
