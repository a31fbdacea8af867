"""Serving task queues: settings -> clients -> activities -> Temporal workers."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import structlog
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

from activities.approvals import ApprovalActivities
from activities.assembling import AssemblyActivities
from activities.deps import Deps
from activities.facts import FactsActivities
from activities.memory import MemoryActivities
from activities.metrics import ActivityMetrics
from activities.model import ModelActivities
from activities.models import Models
from activities.previews import PreviewActivities
from activities.sandbox import Sandbox, StandbySandbox
from activities.stops import Stops
from activities.toolbox.engine_tools import ENGINE_TOOLS
from activities.toolbox.entities import CORE_ALWAYS
from activities.toolbox.mcp import McpServers
from activities.toolbox.shelf import Toolbox
from activities.tools import ToolActivities
from activities.turns import TurnActivities
from contracts.turns import Kind, Routing, waits_queue
from egress import new_client
from egress.litellm_clients import guard
from embedding.choice import embedder_of
from graph.registry import TOPOLOGIES
from perdure.apps import App, assembled_tools, find_apps
from perdure.apps.mcp_files import server_of
from perdure.tools import Tool
from policy.egress import Outbound
from relay.connect import connect, need_namespace
from relay.deliver import Doorbell
from relay.metrics_ports import metrics_addresses, serve_metrics
from settings import Settings, needed, secret, variable
from store import content
from store.database import Database
from store.heartbeat import beating
from store.live import LiveTokens
from store.server_looks import ServerLooks
from store.valkey import Valkey
from tracing.choice import tracer_of, traces_of
from tracing.turn_traces import TurnTraces
from workflows.build import build_id

DRAIN = timedelta(seconds=30)
STICKY = timedelta(seconds=1.5)
"""How long a killed worker's cached turns wait for it before another worker takes them: part of each recovery, with
the heartbeat's 5 s and the server's second before a retry."""
WORKFLOW_TASKS_AT_ONCE = 8
"""On two cores: more cold replays at once would starve the deadlock detector (measured, PostHog #48777)."""
ACTIVITIES_AT_ONCE = 100
HEARTBEAT_THROTTLE = timedelta(seconds=0.2)
"""A stop reaches a running call with its next heartbeat (measured: p50 213 ms against 1.6 s by default)."""
_log = structlog.get_logger("worker")


async def serve(settings: Settings, kinds: Sequence[Kind], stop: asyncio.Event) -> None:
    """Serve these queues until `stop`, then drain; the heartbeat begins once all of them are about to be polled.

    Raises: SystemExit where Temporal has no such namespace.
    """
    async with AsyncExitStack() as stack:
        runs_tools = bool({Kind.TOOLS, Kind.TURNS}.intersection(kinds))
        apps = find_apps(settings.apps) if runs_tools else []
        sandbox = StandbySandbox(settings.sandbox())
        stack.push_async_callback(sandbox.close)
        deps = await _deps(settings, kinds, stack, apps, sandbox)
        if Kind.LLM in kinds:
            async with deps.db.transaction(content.SHARED) as tx:
                await deps.models.preload([agent for _, agent in await content.listed(tx)])
        await need_namespace(deps.doorbell.client)
        freeze_heap()
        queues = Routing.spread()
        workers = [worker for kind in kinds for worker in workers_for(deps, kind, queues.queue(kind))]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        await stack.enter_async_context(beating(settings.ready_file))
        if any(has_blocks(app) for app in apps):
            sandbox.open_soon()  # it takes a moment of CPU, which no start waits for
        deps.toolbox.import_soon()
        _log.info("worker_ready", queues=[kind.value for kind in kinds])
        stopping = asyncio.create_task(stop.wait())
        ended, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        for task in ended - {stopping}:
            task.result()  # a worker that ended by itself says why


def freeze_heap() -> None:
    """Take what has been imported out of the garbage collector's rounds.

    A full round over it takes 50 to 100 ms, in which no turn moves (measured), and finds nothing.
    """
    gc.collect()
    gc.freeze()


def has_blocks(app: App) -> bool:
    """Whether a model may call code of one of its skills."""
    return any(skill.blocks for agent in app.agents for skill in agent.skills)


def loads_memory(kinds: Sequence[Kind]) -> bool:
    """Whether a worker of these searches episodes: only it may import what a provider's embedding needs (ADR 12)."""
    return bool({Kind.MEMORY, Kind.TURNS}.intersection(kinds))


async def _deps(
    settings: Settings, kinds: Sequence[Kind], stack: AsyncExitStack, apps: Sequence[App], sandbox: Sandbox
) -> Deps:
    db = await Database.connect(
        needed(settings.database_url, "DATABASE_URL"),
        most=settings.pool_size,
        application="perdure-worker",
        plan_once=True,
        keyring=settings.keyring(),
    )
    stack.push_async_callback(db.close)
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    stack.push_async_callback(valkey.close)
    outbound, to_providers = settings.outbound(), settings.outbound_to_providers()
    http = await stack.enter_async_context(new_client(outbound))
    ours, sdk = metrics_addresses(settings.metrics_port, settings.metrics_host, kinds[0].value)
    serve_metrics(ours)
    doorbell = Doorbell(await connect(sdk), db)
    servers = McpServers(apps, secret, settings.home, ServerLooks(valkey).met, outbound)
    stack.push_async_callback(servers.close)
    toolbox = Toolbox(tools_of(apps), secret, http, servers, await _clients(apps, outbound, stack))
    base, key, rules = settings.embeddings_base, secret("embeddings"), partial(guard, outbound=to_providers)
    embedder = embedder_of(settings.embeddings, base, key, guard=rules, remote=loads_memory(kinds))
    stops = Stops()
    following = asyncio.create_task(stops.follow(valkey))
    stack.callback(following.cancel)
    return Deps(
        db,
        LiveTokens(valkey),
        toolbox,
        Models(secret, to_providers),
        doorbell,
        embedder=embedder,
        sandbox=sandbox,
        stops=stops,
        memory=settings.memory(),
        keeps_facts=settings.facts,
        traces=_traces(settings, db, stack) if Kind.TURNS in kinds else None,
    )


async def _clients(apps: Sequence[App], outbound: Outbound, stack: AsyncExitStack) -> Mapping[str, httpx.AsyncClient]:
    """By agent, the client of its app's tools, if the app names hosts: no other app's tools may reach those."""
    clients: dict[str, httpx.AsyncClient] = {}
    for app in apps:
        own = app.outbound(outbound, variable)
        if own is not outbound:
            http = await stack.enter_async_context(new_client(own))
            clients |= {agent.id: http for agent in app.agents}
    return clients


def _traces(settings: Settings, db: Database, stack: AsyncExitStack) -> TurnTraces:
    """The traces of the turns that end in this worker; open where the operator named a tracer."""
    tracer = tracer_of(settings.tracer, settings.trace_endpoint, secret("tracer"))
    traces = traces_of(tracer, db, TOPOLOGIES)
    stack.push_async_callback(traces.close)
    return traces


def tools_of(apps: Sequence[App]) -> Iterator[tuple[str, Tool]]:
    """Every tool under the agents that offer it."""
    for app in apps:
        for problem in app.problems:
            _log.warning("app_problem", problem=str(problem))
        for agent in app.agents:
            core = CORE_ALWAYS if agent.core_tools else ()
            yield from ((agent.id, tool) for tool in core)
            for name in (*agent.tools, *assembled_tools(agent)):
                if server_of(name, app.servers) is None:  # a server's tools are found by the cards that turns pinned
                    yield agent.id, ENGINE_TOOLS.get(name) or app.tools[name]


def workers_for(deps: Deps, kind: Kind, task_queue: str) -> list[Worker]:
    """The workers of one kind's task queue. The turns queue comes with the queue of its paused turns."""
    activities = _activities(deps, kind)
    if kind is not Kind.TURNS:
        return [_worker(deps, task_queue, activities=activities)]
    # LangGraph takes 2 s of CPU to import (measured), so only this kind does.
    from workflows.tool_preview import ToolPreview
    from workflows.turn_run import TurnRun
    from workflows.turn_wait import TurnWait
    from workflows.walks import skip_idle_walks

    skip_idle_walks()

    tasks = {"workflow_runner": UnsandboxedWorkflowRunner(), "max_concurrent_workflow_tasks": WORKFLOW_TASKS_AT_ONCE}
    return [
        _worker(deps, task_queue, activities=activities, workflows=[TurnRun, ToolPreview], **tasks),
        _worker(deps, waits_queue(task_queue), workflows=[TurnWait], max_cached_workflows=0, **tasks),
    ]


def _activities(deps: Deps, kind: Kind) -> list[Callable[..., Any]]:
    """What serves a kind. The turns queue serves every kind but the model's: `compact` routes them there."""
    by_kind: dict[Kind, list[Callable[..., Any]]] = {
        Kind.LLM: [ModelActivities(deps).complete],
        Kind.TOOLS: [ToolActivities(deps).run, AssemblyActivities(deps).assemble, PreviewActivities(deps).preview],
        Kind.MEMORY: [MemoryActivities(deps).load, FactsActivities(deps).facts],
        Kind.APPROVALS: [ApprovalActivities(deps).open, ApprovalActivities(deps).read],
        Kind.TURNS: [TurnActivities(deps).read, TurnActivities(deps).finish],
    }
    if kind is Kind.TURNS:
        return [each for other, several in by_kind.items() if other is not Kind.LLM for each in several]
    return by_kind[kind]


def _worker(deps: Deps, task_queue: str, **given: Any) -> Worker:
    return Worker(deps.doorbell.client, task_queue=task_queue, **given, **worker_settings())


def worker_settings() -> dict[str, Any]:
    """What every worker of ours is set to, beside what it serves."""
    return {
        "build_id": build_id(),
        "max_concurrent_activities": ACTIVITIES_AT_ONCE,
        "workflow_task_poller_behavior": PollerBehaviorAutoscaling(),
        "activity_task_poller_behavior": PollerBehaviorAutoscaling(),
        "sticky_queue_schedule_to_start_timeout": STICKY,
        "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "graceful_shutdown_timeout": DRAIN,
        "interceptors": [ActivityMetrics()],
    }
