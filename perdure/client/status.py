"""How a deployment is: the call, and what the API answers."""

from datetime import datetime

from perdure.client.requests import Call, get, one, path
from perdure.schemas.answers import Answer


class PartState(Answer):
    """A part that a deployment stands on."""

    name: str
    fault: str = ""
    """What is wrong with it; empty where nothing is. So it is with all that follow."""
    note: str = ""
    """What could not be found out, such as whether a hosted Temporal can write."""


class QueueState(Answer):
    """A task queue of Temporal."""

    name: str
    kinds: list[str] = []
    """The kinds of work that go there."""
    workers: int = 0
    backlog: int = 0
    oldest_seconds: float = 0.0
    fault: str = ""
    links: dict[str, str] = {}


class ServerState(Answer):
    """An MCP server, as a worker last met it."""

    app: str
    name: str
    fault: str = ""
    at: datetime | None = None


class OpenTurns(Answer):
    """The open turns of one status."""

    status: str
    count: int
    oldest_at: datetime | None = None


class OldestApproval(Answer):
    """The approval that has waited longest."""

    id: str
    tool: str = ""
    agent: str = ""
    turn_id: str = ""
    requested_at: datetime | None = None
    expires_at: datetime | None = None


class DeploymentStatus(Answer):
    """A deployment and a tenant's work on it, at one moment."""

    at: datetime
    well: bool
    """Whether nothing is wrong with any of it."""
    is_operator: bool = True
    """Whether this is the operator's answer. A tenant's reviewer or administrator gets no queues, MCP servers or links,
    and of a part only whether it is available."""
    parts: list[PartState] = []
    queues: list[QueueState] = []
    """Empty if Temporal is away."""
    mcp_servers: list[ServerState] = []
    turns: list[OpenTurns] = []
    oldest_approval: OldestApproval | None = None
    links: dict[str, str] = {}


def get_status() -> Call[DeploymentStatus]:
    """How the deployment is, for reviewers, administrators and operators."""
    return get(path("status"), one(DeploymentStatus))
