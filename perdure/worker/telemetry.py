"""Metrics of a worker process: its activities, the turns that end in it, and the tokens that its model calls used."""

import time
from collections.abc import Iterable
from typing import Any, Final

import structlog
from prometheus_client import Counter, Histogram
from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.contracts.calls import ModelReply
from perdure.contracts.turns import Finished
from perdure.core.events.traces import TopologyEdges
from perdure.graph.manifest import lines_of
from perdure.graph.spec import END, Fork, Switch, Topology
from perdure.store.database import Database
from perdure.telemetry.traces import AlarmLog, NoopTracer, Tracer, TurnTraces

ACTIVITIES = Histogram("perdure_activity_seconds", "Duration of an activity attempt", ["activity", "outcome"])
ENDED = Counter("perdure_turns_ended", "Turns that have ended", ["status"])
TOKENS = Counter("perdure_tokens", "Tokens of settled model calls", ["kind"])
FAILED_CALLS = Counter("perdure_model_problems", "Model calls that failed", ["code"])
NOOP: Final = "noop"
OTEL: Final = "otel"
LANGSMITH: Final = "langsmith"


class ActivityMetrics(Interceptor):
    """Counts activities and passes their inputs and results on unchanged."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wraps every activity of the worker."""
        return _MeasuredActivity(next)


class _MeasuredActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Runs one attempt of an activity and records its duration and outcome. Each line that it logs names it and its
        workflow, whose id contains that of the turn."""
        info = activity.info()
        name, started_at, outcome = info.activity_type, time.monotonic(), "failed"
        try:
            with bound_contextvars(activity=name, workflow=info.workflow_id):
                answer = await super().execute_activity(input)
            outcome = "done"
        finally:
            ACTIVITIES.labels(activity=name, outcome=outcome).observe(time.monotonic() - started_at)
        _count(answer)
        return answer


def _count(answer: object) -> None:
    if isinstance(answer, Finished):
        ENDED.labels(status=answer.status.value).inc()
    elif isinstance(answer, ModelReply):
        TOKENS.labels(kind="input").inc(answer.usage.input_tokens)
        TOKENS.labels(kind="output").inc(answer.usage.output_tokens)
        TOKENS.labels(kind="thinking").inc(answer.usage.thinking_tokens)
        TOKENS.labels(kind="cached").inc(answer.usage.cached_tokens)
        if answer.problem is not None:
            FAILED_CALLS.labels(code=answer.problem.code).inc()


_log = structlog.get_logger(__name__)


def tracer_of(name: str, endpoint: str, key: str | None) -> Tracer:
    """Returns the tracer with that name. `key` is LangSmith's key; an OpenTelemetry collector receives it as a bearer
    token. An unknown name, or a package that is not installed, results in no tracer."""
    try:
        if name == OTEL:
            from perdure.telemetry.otel import OtelTracer

            return OtelTracer.to(endpoint, {"authorization": f"Bearer {key}"} if key else None)
        if name == LANGSMITH:
            from perdure.telemetry.langsmith import LangSmithTracer

            return LangSmithTracer.to(endpoint, key)
    except Exception as error:  # The package is missing or rejects its settings. Only traces are lost.
        _log.warning("no_tracer", backend=name, error=type(error).__name__)
        return NoopTracer()
    if name not in (NOOP, ""):
        _log.warning("no_tracer", backend=name, error="unknown backend")
    return NoopTracer()


def traces_of(tracer: Tracer, db: Database, topologies: Iterable[Topology]) -> TurnTraces:
    """Returns the traces of the turns that a process ends, and starts them if there is a tracer."""
    traces = TurnTraces(db, tracer, {topology.name: edges_of(topology) for topology in topologies}, AlarmLog())
    traces.open()
    return traces


def edges_of(topology: Topology) -> TopologyEdges:
    """Returns the edges, entries and ends that the records of this topology's turns are compared with."""
    lines = [line for line in lines_of(topology) if line.form != "entry"]
    ends = {line.source for line in lines if line.target == END}
    has_forks = any(
        isinstance(edge, Fork)
        or (isinstance(edge, Switch) and any(isinstance(target, Fork) for target in edge.targets.values()))
        for edge in topology.edges
    )
    continuing = {line.source for line in lines if line.target != END}
    return TopologyEdges(
        edges=frozenset((line.source, line.target) for line in lines),
        entries=frozenset(topology.entries.values()),
        terminal=frozenset(ends - continuing),
        parallel=has_forks,
        unspanned=frozenset(node.id for node in topology.nodes if not node.spanned),
    )
