"""Whether Temporal can write: a setting of a task queue that nobody polls is rewritten.

The setting is one row for each task queue, in the store that holds the histories: nothing grows by it.
"""

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

QUEUE = "perdure-write-probe"
_REASON = "rewritten to see whether the server can write"
_NOT_TESTED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT)
_FULL = ("full", "no space left")


async def write_once(client: Client) -> None:
    """Have the server write.

    Raises: what `write_fault` and `not_tested` explain.
    """
    update = UpdateTaskQueueConfigRequest.RateLimitUpdate(rate_limit=RateLimit(requests_per_second=1.0), reason=_REASON)
    await client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace=client.namespace,
            identity=client.identity,
            task_queue=QUEUE,
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            update_queue_rate_limit=update,
        )
    )


def not_tested(error: BaseException) -> bool:
    """Whether the server answered and does not let this client write such a setting, as a hosted one may."""
    return isinstance(error, RPCError) and error.status in _NOT_TESTED


def write_fault(error: BaseException) -> str:
    """What an error of Temporal means, in words."""
    if isinstance(error, RPCError) and any(word in error.message.lower() for word in _FULL):
        return "it cannot write: its disk is full"
    if isinstance(error, RPCError) and error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return "it is overloaded"
    return "it does not answer"
