"""Addresses of Temporal's own pages, for the operator alone: they show, and can end, the turns of every tenant. Empty
if the operator names no such pages."""

from urllib.parse import quote

from api.auth import Principal
from api.services import Services
from contracts.ids import turn_workflow_id


def turn_page(services: Services, who: Principal | None, turn_id: str) -> str:
    """A turn's workflow."""
    return _page(services, who, "workflows", turn_workflow_id(turn_id))


def queue_page(services: Services, who: Principal | None, name: str) -> str:
    """A task queue with who asks for its work."""
    return _page(services, who, "task-queues", name)


def workflows_page(services: Services, who: Principal | None) -> str:
    """Every workflow of the namespace."""
    return _page(services, who, "workflows")


def _page(services: Services, who: Principal | None, *path: str) -> str:
    """For this user; None is the operator."""
    if not services.temporal_ui or (who is not None and not who.is_operator):
        return ""
    # A workflow's id has a colon, which these pages' own links do not write out.
    written = (quote(part, safe=":") for part in ("namespaces", services.temporal_namespace, *path))
    return "/".join((services.temporal_ui, *written))
