"""What Prometheus reads of a worker process: its activities, the turns that end there, the tokens that they used."""

import time
from typing import Any

from prometheus_client import Counter, Histogram
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from contracts.model import ModelReply
from contracts.turns import Finished

ACTIVITIES = Histogram("perdure_activity_seconds", "Time of an attempt of an activity", ["activity", "outcome"])
ENDED = Counter("perdure_turns_ended", "Turns that ended", ["status"])
TOKENS = Counter("perdure_tokens", "Tokens of settled model calls", ["kind"])
FAILED_CALLS = Counter("perdure_model_problems", "Model calls that were settled with a problem", ["code"])


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
