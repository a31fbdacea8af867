"""A pause for a question or for the client's work: how a node opens it, looks at it, and goes on."""

from collections.abc import Sequence
from typing import Final

from contracts.messages import Patch
from contracts.people import RequestRef, Verdict, VerdictState
from graph.nodes.call_model import STOP_CODES
from graph.ports import Ports

GOES_ON: Final[Patch] = {"status": "running", "pending_requests": []}
"""What the end of a pause does to the state, whatever came of it."""


def waits(request: RequestRef) -> Patch:
    """The run ends in a pause for this."""
    return {"status": "awaiting", "pending_requests": [request.model_dump(mode="json")]}


def ended(problem: dict[str, object], status: str) -> Patch:
    """The run ends here, not in a pause."""
    return {"error": problem, "status": status, "pending_requests": []}  # type: ignore[dict-item]


async def looked_at(ports: Ports, waiting: Sequence[RequestRef]) -> Verdict | Patch:
    """What came of the pause, read fresh from its record; where nothing did, the patch with which it goes on waiting,
    or with which the run ends."""
    read = await ports.people.verdicts(waiting)
    if read.problem is not None and read.problem.code in STOP_CODES:
        return ended(read.problem.model_dump(mode="json"), STOP_CODES[read.problem.code])
    verdict = read.verdicts[0] if read.problem is None and read.verdicts else None
    if verdict is None or verdict.state in (VerdictState.PENDING, VerdictState.UNREADABLE):
        return waits(waiting[0])
    return verdict
