"""What Prometheus reads of a worker process: its activities, the turns that end there, the tokens that they used."""

import time
from typing import Any, Final

import structlog
from prometheus_client import Counter, Histogram, start_http_server
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from contracts.model import ModelReply
from contracts.turns import Finished

ACTIVITIES = Histogram("perdure_activity_seconds", "Time of an attempt of an activity", ["activity", "outcome"])
ENDED = Counter("perdure_turns_ended", "Turns that ended", ["status"])
TOKENS = Counter("perdure_tokens", "Tokens of settled model calls", ["kind"])
FAILED_CALLS = Counter("perdure_model_problems", "Model calls that were settled with a problem", ["code"])
ROLES: Final = ("turns", "llm", "tools", "memory", "approvals", "relay")
"""In the order of their ports."""
Address = tuple[str, int] | None
_log = structlog.get_logger(__name__)


def metrics_addresses(first_port: int, host: str, role: str) -> tuple[Address, Address]:
    """Where a process of that role serves our metrics and the Temporal SDK's; None for both where none are served."""
    if not first_port:
        return None, None
    port = first_port + 2 * ROLES.index(role)
    return (host, port), (host, port + 1)


def serve_metrics(address: Address) -> None:
    """Serve them on a thread of their own. A port that is taken is logged, and the worker works without."""
    if address is None:
        return
    try:
        start_http_server(address[1], address[0])
    except OSError as error:
        _log.warning("metrics_not_served", port=address[1], error=type(error).__name__)


class ActivityMetrics(Interceptor):
    """Counts; what an activity is given and answers passes as it is."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Around every activity of the worker."""
        return _Counted(next)


class _Counted(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Once an attempt."""
        name, began, outcome = activity.info().activity_type, time.monotonic(), "failed"
        try:
            answer = await super().execute_activity(input)
            outcome = "done"
        finally:
            ACTIVITIES.labels(activity=name, outcome=outcome).observe(time.monotonic() - began)
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
