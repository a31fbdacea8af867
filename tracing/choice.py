"""Which tracer a process has: by name. An unknown one, or a package that is not there, is none (S3-40, S3-41)."""

from collections.abc import Iterable
from typing import Final

import structlog

from graph.manifest import lines_of
from graph.spec import END, Fork, Switch, Topology
from policy.trace_alarms import Ways
from store.database import Database
from tracing.alarm_bell import AlarmBell
from tracing.tracer import NoTracer, Tracer
from tracing.turn_traces import TurnTraces

NOOP: Final = "noop"
OTEL: Final = "otel"
LANGSMITH: Final = "langsmith"
_log = structlog.get_logger(__name__)


def tracer_of(name: str, endpoint: str, key: str | None) -> Tracer:
    """The tracer of that name. `key` is LangSmith's; a collector of OpenTelemetry is given it as a bearer token."""
    try:
        if name == OTEL:
            from tracing.otel import OtelTracer

            return OtelTracer.to(endpoint, {"authorization": f"Bearer {key}"} if key else None)
        if name == LANGSMITH:
            from tracing.langsmith_runs import LangSmithTracer

            return LangSmithTracer.to(endpoint, key)
    except Exception as error:  # not installed, or it refuses its settings: visibility is lost, and nothing else
        _log.warning("no_tracer", backend=name, error=type(error).__name__)
        return NoTracer()
    if name not in (NOOP, ""):
        _log.warning("no_tracer", backend=name, error="unknown name")
    return NoTracer()


def traces_of(tracer: Tracer, db: Database, topologies: Iterable[Topology]) -> TurnTraces:
    """The traces of the turns that a process ends; begun where there is a tracer to tell."""
    traces = TurnTraces(db, tracer, {one.name: ways_of(one) for one in topologies}, AlarmBell())
    traces.open()
    return traces


def ways_of(topology: Topology) -> Ways:
    """What a record of this topology's turns is held against."""
    lines = [line for line in lines_of(topology) if line.form != "entry"]
    ends = {line.source for line in lines if line.target == END}
    forks = any(
        isinstance(edge, Fork) or (isinstance(edge, Switch) and any(isinstance(w, Fork) for w in edge.targets.values()))
        for edge in topology.edges
    )
    goes_on = {line.source for line in lines if line.target != END}
    return Ways(
        edges=frozenset((line.source, line.target) for line in lines),
        entries=frozenset(topology.entries.values()),
        terminal=frozenset(ends - goes_on),
        parallel=forks,
        unspanned=frozenset(node.id for node in topology.nodes if not node.spanned),
    )
