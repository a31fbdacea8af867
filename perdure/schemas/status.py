"""Responses about the status of a deployment."""

from datetime import datetime

from perdure.schemas.base import Answer
from perdure.schemas.turns import Stuck


class PartState(Answer):
    """A component on which the deployment depends."""

    name: str
    fault: str = ""
    """The problem, or empty if there is none. Other `fault` fields have the same meaning."""
    note: str = ""
    """A check that could not be made, for example whether a hosted Temporal can write."""


class QueueState(Answer):
    """A task queue of Temporal."""

    name: str
    kinds: list[str] = []
    """The kinds of work that use the queue."""
    workers: int = 0
    backlog: int = 0
    oldest_seconds: float = 0.0
    fault: str = ""
    links: dict[str, str] = {}


class ServerState(Answer):
    """An MCP server, as a worker found it last."""

    app: str
    name: str
    fault: str = ""
    at: datetime | None = None


class OpenTurns(Answer):
    """The open turns of one status."""

    status: str
    count: int
    oldest_at: datetime | None = None


class StuckTurn(Stuck):
    """An open turn that does not continue."""

    turn_id: str
    agent: str = ""


class OldestApproval(Answer):
    """The approval that has been pending longest."""

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
    """True if no part has a problem."""
    is_operator: bool = True
    """True if this is the operator's answer. A tenant's reviewer or administrator gets no queues, MCP servers or links.
    For a part, they see only whether it is available."""
    is_workload_known: bool = True
    """False if Postgres could not be read. `turns`, `stuck_turns` and `oldest_approval` are then empty."""
    parts: list[PartState] = []
    queues: list[QueueState] = []
    """Empty if Temporal is unavailable."""
    mcp_servers: list[ServerState] = []
    turns: list[OpenTurns] = []
    stuck_turns: list[StuckTurn] = []
    """The tenant's turns that do not continue, the oldest failures first; at most 50."""
    oldest_approval: OldestApproval | None = None
    links: dict[str, str] = {}
