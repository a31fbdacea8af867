"""Serves task queues: settings -> clients -> activities -> Temporal workers."""

import asyncio
import gc
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import cache, partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import structlog
from temporalio.bridge import worker as bridge
from temporalio.converter import DataConverter
from temporalio.converter._extstore import StorageOperationMetrics
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

from perdure.activities.approvals import ApprovalActivities, PreviewActivities
from perdure.activities.context_assembly import AssemblyActivities
from perdure.activities.dependencies import Deps, Stops
from perdure.activities.facts import FactsActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.activities.providers.registry import Models
from perdure.activities.sandbox import LazySandbox, Sandbox
from perdure.activities.tool_checks import ToolCheckActivities
from perdure.activities.toolbox.engine_tools import CORE_ALWAYS, ENGINE_TOOLS
from perdure.activities.toolbox.mcp.tools import McpServers
from perdure.activities.toolbox.registry import Toolbox
from perdure.activities.tools import ToolActivities
from perdure.activities.turns import TurnActivities
from perdure.apps import App, app_folders, assembled_tools, find_apps
from perdure.contracts.mcp import server_of
from perdure.contracts.turns import Kind, Routing, waits_queue
from perdure.core.calls.hangs import hanging_call
from perdure.core.calls.secrets import secrets_of
from perdure.core.egress import Outbound
from perdure.egress import new_client
from perdure.egress.httpx_transport import guard
from perdure.embedding.choice import embedder_of
from perdure.graph.registry import TOPOLOGIES
from perdure.sdk.tools import Tool
from perdure.settings import Settings, needed, secret, variable
from perdure.store import agents
from perdure.store.calls import tool_calls
from perdure.store.database import Database, reach_postgres
from perdure.store.events.live import LiveTokens
from perdure.store.status import ServerStates
from perdure.store.valkey import Valkey
from perdure.telemetry.hangs import OpenCalls, earlier_hang, watched
from perdure.telemetry.metrics import metrics_addresses, serve_metrics
from perdure.telemetry.traces import TurnTraces
from perdure.temporal.client import connect, require_namespace
from perdure.temporal.workflow_client import Notifier
from perdure.worker.loop_watchdog import LoopWatchdog
from perdure.worker.telemetry import ActivityMetrics, tracer_of, traces_of

DRAIN_TIMEOUT = timedelta(seconds=30)
STICKY_TIMEOUT = timedelta(seconds=1.5)
"""The time that cached turns of a killed worker wait for it before another worker takes them. It is part of each
recovery, with the heartbeat's 5 s and the server's one second before a retry."""
MAX_WORKFLOW_TASKS = 8
"""The limit for two cores: more concurrent cold replays would starve the deadlock detector (measured, PostHog #48777).
"""
MAX_ACTIVITIES = 100
HEARTBEAT_THROTTLE = timedelta(seconds=0.2)
"""A stop reaches a running call with its next heartbeat (measured: p50 213 ms, against 1.6 s with the default)."""
ROOT = Path(__file__).parents[1]
REPLAY_PACKAGES = ("contracts", "core", "graph", "workflows")
"""The packages of `perdure` whose code decides how a turn continues."""
REPLAY_LIBRARIES = ("langchain-core", "langgraph", "temporalio")
"""Libraries whose code also decides this."""
DIGEST_DIGITS = 16
_log = structlog.get_logger("worker")


async def serve(settings: Settings, kinds: Sequence[Kind], stop: asyncio.Event) -> None:
    """Serves these queues until `stop`, then drains. The heartbeat starts when all queues are about to be polled.

    Raises: SystemExit if Temporal has no such namespace.
    """
    async with AsyncExitStack() as stack:
        runs_tools = bool({Kind.TOOLS, Kind.TURNS}.intersection(kinds))
        apps = find_apps(app_folders(settings.apps, settings.examples)) if runs_tools else []
        sandbox = LazySandbox(settings.sandbox())
        stack.push_async_callback(sandbox.close)
        deps = await _deps(settings, kinds, stack, apps, sandbox)
        if Kind.LLM in kinds:
            async with deps.db.transaction(agents.SHARED) as tx:
                await deps.models.preload([agent for _, agent in await agents.list_agents(tx)])
        if runs_tools:
            await _log_missing_agents(deps.db, apps)
        await require_namespace(deps.notifier.client)
        freeze_heap()
        queues = Routing.spread()
        workers = [worker for kind in kinds for worker in workers_for(deps, kind, queues.queue(kind))]
        watchdog = LoopWatchdog(deps.toolbox.tools)
        watchdog.start()
        stack.callback(watchdog.stop)
        running = [asyncio.create_task(worker.run()) for worker in workers]
        await stack.enter_async_context(watched(settings.ready_file, settings.exit_seconds(), deps.open_calls))
        if any(has_blocks(app) for app in apps):
            sandbox.open_soon()  # This takes some CPU time, which the start does not wait for.
        deps.toolbox.import_soon()
        _log.info("worker_ready", queues=[kind.value for kind in kinds])
        stopping = asyncio.create_task(stop.wait())
        ended, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        for task in ended - {stopping}:
            task.result()  # Raises the error of a worker that ended on its own.


async def _log_missing_agents(db: Database, apps: Sequence[App]) -> None:
    """Logs which published agents are in none of `apps`.

    Their tool calls wait for a worker that has them. The exception is a call that a lost attempt had claimed: if it can
    have happened, its outcome is unknown. The worker serves in any case. If the agents cannot be read, only this
    message is missing.
    """
    try:
        async with db.transaction(agents.SHARED) as tx:
            published = await agents.agent_ids(tx)
    except (OSError, *db.outages) as error:
        _log.warning("agents_not_read", error=repr(error))
        return
    missing = sorted(set(published) - {agent.id for app in apps for agent in app.agents})
    if missing:
        advice = "PERDURE_APP and PERDURE_EXAMPLES must have the values with which the agents were published"
        _log.warning("agents_missing", agents=missing, why=advice)


def freeze_heap() -> None:
    """Excludes everything that is already imported from garbage collection.

    A full collection of it takes 50 to 100 ms, during which all turns stall (measured), and frees nothing.
    """
    gc.collect()
    gc.freeze()


def has_blocks(app: App) -> bool:
    """Returns whether a model can call code of one of the app's skills."""
    return any(skill.blocks for agent in app.agents for skill in agent.skills)


def loads_memory(kinds: Sequence[Kind]) -> bool:
    """Returns whether a worker of these kinds searches episodes. Only such a worker can import what a provider's
    embedding needs (ADR 12)."""
    return bool({Kind.MEMORY, Kind.TURNS}.intersection(kinds))


async def _connect_database(settings: Settings) -> Database:
    return await Database.connect(
        needed(settings.database_url, "DATABASE_URL"),
        max_connections=settings.pool_size,
        application="perdure-worker",
        plan_once=True,
        statement_cache=settings.statement_cache,
        keyring=settings.keyring(),
    )


async def _deps(
    settings: Settings, kinds: Sequence[Kind], stack: AsyncExitStack, apps: Sequence[App], sandbox: Sandbox
) -> Deps:
    db = await reach_postgres("DATABASE_URL", _connect_database(settings))
    stack.push_async_callback(db.close)
    open_calls = await _open_calls(db, settings)
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    stack.push_async_callback(valkey.close)
    outbound, to_providers = settings.outbound(), settings.outbound_to_providers()
    http = await stack.enter_async_context(new_client(outbound))
    own_metrics, sdk_metrics = metrics_addresses(settings.metrics_port, settings.metrics_host, kinds[0].value)
    serve_metrics(own_metrics)
    notifier = Notifier(await connect(sdk_metrics), db)
    servers = McpServers(apps, secret, settings.home, ServerStates(valkey).record_state, outbound)
    stack.push_async_callback(servers.close)
    toolbox = Toolbox(tools_of(apps), secret, http, servers, await _http_by_agent(apps, outbound, stack))
    api_base, api_key, rules = settings.embeddings_base, secret("embeddings"), partial(guard, outbound=to_providers)
    embedder = embedder_of(settings.embeddings, api_base, api_key, guard=rules, remote=loads_memory(kinds))
    stops = Stops()
    following = asyncio.create_task(stops.follow(valkey))
    stack.callback(following.cancel)
    return Deps(
        db,
        LiveTokens(valkey),
        toolbox,
        Models(secret, to_providers),
        notifier,
        embedder=embedder,
        sandbox=sandbox,
        stops=stops,
        memory=settings.memory(),
        version_wait_seconds=settings.tool_version_wait,
        secrets=secrets_of(os.environ),
        window_tokens=settings.window_tokens,
        keeps_facts=settings.facts,
        shows_failure_messages=settings.failure_messages,
        traces=_traces(settings, db, stack) if Kind.TURNS in kinds else None,
        open_calls=open_calls,
    )


async def _open_calls(db: Database, settings: Settings) -> OpenCalls:
    """Returns the records of this process's open calls. Before, counts the hang of the last process for its call."""
    hang = earlier_hang(settings.ready_file)
    call = hanging_call(hang) if hang is not None else None
    if call is not None:
        _log.error("tool_hung", tool=call.tool, turn_id=call.turn_id, call_id=call.call_id)
        async with db.transaction(call.tenant_id) as tx:
            await tool_calls.count_hang(tx, call)
    return OpenCalls(settings.ready_file, settings.exit_seconds())


async def _http_by_agent(
    apps: Sequence[App], outbound: Outbound, stack: AsyncExitStack
) -> Mapping[str, httpx.AsyncClient]:
    """Returns, by agent, the HTTP client of its app's tools if the app names hosts. Tools of other apps cannot reach
    those hosts."""
    clients: dict[str, httpx.AsyncClient] = {}
    for app in apps:
        app_outbound = app.outbound(outbound, variable)
        if app_outbound is not outbound:
            http = await stack.enter_async_context(new_client(app_outbound))
            clients |= {agent.id: http for agent in app.agents}
    return clients


def _traces(settings: Settings, db: Database, stack: AsyncExitStack) -> TurnTraces:
    """Returns the traces of the turns that end in this worker, and starts them if the operator named a tracer."""
    tracer = tracer_of(settings.tracer, settings.trace_endpoint, secret("tracer"))
    traces = traces_of(tracer, db, TOPOLOGIES)
    stack.push_async_callback(traces.close)
    return traces


def tools_of(apps: Sequence[App]) -> Iterator[tuple[str, Tool]]:
    """Yields every tool with the agent that offers it."""
    for app in apps:
        for problem in app.problems:
            if not problem.warning:  # those were printed when the app was published
                _log.warning("app_problem", problem=str(problem))
        for agent in app.agents:
            core = CORE_ALWAYS if agent.core_tools else ()
            yield from ((agent.id, tool) for tool in core)
            for name in (*agent.tools, *assembled_tools(agent)):
                if server_of(name, app.servers) is None:  # A server's tools are found by the cards that turns pinned.
                    yield agent.id, ENGINE_TOOLS.get(name) or app.tools[name]


def workers_for(deps: Deps, kind: Kind, task_queue: str) -> list[Worker]:
    """Returns the workers of one kind's task queue. The turns queue includes the queue of its paused turns."""
    activities = _activities(deps, kind)
    if kind is not Kind.TURNS:
        return [_worker(deps, task_queue, activities=activities)]
    # Importing LangGraph takes 2 s of CPU (measured), so only this kind imports it.
    from perdure.workflows.tool_check import ToolCheck
    from perdure.workflows.tool_preview import ToolPreview
    from perdure.workflows.turn_run import TurnRun
    from perdure.workflows.turn_wait import TurnWait

    skip_idle_payload_visits()

    tasks = {"workflow_runner": UnsandboxedWorkflowRunner(), "max_concurrent_workflow_tasks": MAX_WORKFLOW_TASKS}
    return [
        _worker(deps, task_queue, activities=activities, workflows=[TurnRun, ToolPreview, ToolCheck], **tasks),
        _worker(deps, waits_queue(task_queue), workflows=[TurnWait], max_cached_workflows=0, **tasks),
    ]


def _activities(deps: Deps, kind: Kind) -> list[Callable[..., Any]]:
    """Returns the activities of a kind. The turns queue serves every kind except the model's, because `compact` routes
    them there."""
    by_kind: dict[Kind, list[Callable[..., Any]]] = {
        Kind.LLM: [ModelActivities(deps).complete],
        Kind.TOOLS: [
            ToolActivities(deps).run,
            ToolCheckActivities(deps).check,
            AssemblyActivities(deps).assemble,
            PreviewActivities(deps).preview,
        ],
        Kind.MEMORY: [MemoryActivities(deps).load, FactsActivities(deps).facts],
        Kind.APPROVALS: [ApprovalActivities(deps).open, ApprovalActivities(deps).read],
        Kind.TURNS: [TurnActivities(deps).read, TurnActivities(deps).finish],
    }
    if kind is Kind.TURNS:
        return [
            activity
            for other_kind, activities in by_kind.items()
            if other_kind is not Kind.LLM
            for activity in activities
        ]
    return by_kind[kind]


def _worker(deps: Deps, task_queue: str, **options: Any) -> Worker:
    return Worker(deps.notifier.client, task_queue=task_queue, **options, **worker_settings())


def worker_settings() -> dict[str, Any]:
    """Returns the arguments that all Temporal workers share: build id, concurrency, pollers, timeouts and
    metrics."""
    return {
        "build_id": build_id(),
        "max_concurrent_activities": MAX_ACTIVITIES,
        "workflow_task_poller_behavior": PollerBehaviorAutoscaling(),
        "activity_task_poller_behavior": PollerBehaviorAutoscaling(),
        "sticky_queue_schedule_to_start_timeout": STICKY_TIMEOUT,
        "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "graceful_shutdown_timeout": DRAIN_TIMEOUT,
        "interceptors": [ActivityMetrics()],
    }


@cache
def build_id() -> str:
    """Returns `perdure-` and a digest of the deciding code and of its libraries' versions. Workers with the same id
    replay a turn in the same way.

    Temporal records it with the tasks of a worker.

    Raises: RuntimeError if a package has no code.

    The SDK's default reads all loaded modules, about 2,200: 0.5 s of CPU in each process (measured).
    """
    digest = hashlib.sha256()
    for package in REPLAY_PACKAGES:
        files = sorted((ROOT / package).rglob("*.py"))
        if not files:
            raise RuntimeError(f"no code of {package} is below {ROOT}: every build would have this name")
        for file in files:
            digest.update(f"{file.relative_to(ROOT)}\0".encode())
            digest.update(file.read_bytes())
    for library in REPLAY_LIBRARIES:
        digest.update(f"{library}\0{version(library)}\0".encode())
    return f"perdure-{digest.hexdigest()[:DIGEST_DIGITS]}"


PayloadVisit = Callable[..., Awaitable[StorageOperationMetrics]]


def skip_idle_payload_visits() -> None:
    """Makes the workers of this process visit payloads only if their converter has a codec or a storage.

    A visit is skipped if it would change nothing (ADR 8). temporalio 1.35 visits every payload of every workflow task
    and of every response three times. The visits look for a codec, for an external storage, and for references to it.
    Without a codec and a storage, each visit changes nothing. All visits took 11 % of the CPU of a turns worker
    (measured).
    """
    for name in ("decode_activation", "encode_completion"):
        walk = getattr(bridge, name)
        if not hasattr(walk, "__wrapped__"):
            setattr(bridge, name, _only_where_needed(walk))


def _only_where_needed(walk: PayloadVisit) -> PayloadVisit:
    @wraps(walk)
    async def walk_or_not(
        message: Any, data_converter: DataConverter, *more: Any, **named: Any
    ) -> StorageOperationMetrics:
        if data_converter.payload_codec is None and data_converter.external_storage is None:
            return StorageOperationMetrics()
        return await walk(message, data_converter, *more, **named)

    return walk_or_not
