"""Where Temporal's own pages show something of ours; empty where the operator names no such pages."""

from urllib.parse import quote

from api.services import Services
from contracts.ids import turn_workflow_id


def turn_page(services: Services, turn_id: str) -> str:
    """A turn's workflow."""
    return _page(services, "workflows", turn_workflow_id(turn_id))


def queue_page(services: Services, name: str) -> str:
    """A task queue with who asks for its work."""
    return _page(services, "task-queues", name)


def workflows_page(services: Services) -> str:
    """Every workflow of the namespace."""
    return _page(services, "workflows")


def _page(services: Services, *path: str) -> str:
    if not services.temporal_ui:
        return ""
    # A workflow's id has a colon, which these pages' own links do not write out.
    written = (quote(part, safe=":") for part in ("namespaces", services.temporal_namespace, *path))
    return "/".join((services.temporal_ui, *written))
