"""Whether Temporal says that a turn's workflow is not there: the one place that reads it out of an error."""

from temporalio.api.errordetails.v1 import NotFoundFailure
from temporalio.service import RPCError, RPCStatusCode


def workflow_gone(error: RPCError) -> bool:
    """True where the namespace is known and has no such workflow that runs; false of any other trouble.

    NOT_FOUND alone says too little: a namespace that is misspelt or not there yet is answered with it too (measured:
    with NamespaceNotFoundFailure), and every open turn would be taken for lost.
    """
    if error.status is not RPCStatusCode.NOT_FOUND:
        return False
    return any(detail.Is(NotFoundFailure.DESCRIPTOR) for detail in error.grpc_status.details)
