"""What the API says of its deployment, for `perdure status`: queues and who serves them, MCP servers, open turns."""

import time
from typing import Any

from cli.screen import say, table
from perdure.client import Client, DeploymentStatus

_PATIENCE_SECONDS = 5.0
"""A worker that has just started is on Temporal's list a moment later."""
_LOOK_SECONDS = 0.5


def deployment_of(client: Client) -> DeploymentStatus:
    """How it is now; where only queues are at fault, after a moment that a worker may need to be seen.

    Raises: ApiError.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = client.status.get()
        others = any(part.fault for part in found.parts) or any(server.fault for server in found.mcp_servers)
        if found.well or others or time.monotonic() > until:
            return found
        time.sleep(_LOOK_SECONDS)


def show_deployment(found: DeploymentStatus) -> None:
    """Tables for a person; parts are shown only where something is wrong with one."""
    faults = [(part.name, part.fault or part.note) for part in found.parts if part.fault or part.note]
    if faults:
        table(("part", "what is wrong, or not known"), faults, "")
    if found.is_operator:
        rows = [(each.name, each.fault or "served", each.workers, each.backlog) for each in found.queues]
        table(("queue", "state", "workers", "backlog"), rows, "Nothing is known of the queues.")
    else:
        say("Queues and MCP servers are shown with an operator's token in PERDURE_TOKEN.")
    if found.mcp_servers:
        met = [(f"{each.app}/{each.name}", each.fault or "answers", each.at) for each in found.mcp_servers]
        table(("mcp server", "when it was last needed", "at"), met, "")
    waiting = ", ".join(f"{each.count} {each.status.replace('_', ' ')}" for each in found.turns)
    say(f"Open turns: {waiting or 'none'}")


def deployment_json(found: DeploymentStatus) -> dict[str, Any]:
    """The same for a program."""
    whole = found.model_dump(mode="json")
    names = ("is_operator", "queues", "mcp_servers", "turns", "oldest_approval")
    return {name: whole[name] for name in names}
