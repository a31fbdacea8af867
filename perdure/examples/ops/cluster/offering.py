"""Functions as tools of the cluster: the toolset as a tag, the hints, and the access to the cluster.

A tool that changes something calls `change_once`: one effect in the cluster's file, once for each idempotency key. The
key is in the request's `_meta`, which no model writes. Each such tool declares in its own `_meta` how long the key is
honored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from .faults import Faults
from .state import Cluster, KeyReused, State

KEY = "perdure/idempotency-key"
"""The field of the key in a request's `_meta`. In a tool's `_meta`, {"ttl_seconds": n}: the tool honors such keys for
n seconds."""
KEY_TTL_SECONDS = 30 * 86_400

Output = dict[str, Any]
Namespace = Annotated[str, Field(pattern="^[a-z0-9-]{1,63}$")]
Name = Annotated[str, Field(pattern="^[a-z0-9.-]{1,63}$")]


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as it is registered."""

    function: Callable[..., Output]
    toolset: str
    reads: bool
    destructive: bool


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that the tools of one server share."""

    state: State
    faults: Faults


def reads(toolset: str) -> Callable[[Callable[..., Output]], DeclaredTool]:
    """A tool that changes nothing."""
    return lambda function: DeclaredTool(function, toolset, reads=True, destructive=False)


def writes(toolset: str, *, destructive: bool) -> Callable[[Callable[..., Output]], DeclaredTool]:
    """Declares a tool that changes something; `destructive` if it can end or undo something that runs."""
    return lambda function: DeclaredTool(function, toolset, reads=False, destructive=destructive)


def read_cluster(context: Context) -> Cluster:
    """The cluster as it is now."""
    return _shared_state(context).state.read()


def change_once(context: Context, tool: str, args: Mapping[str, Any], change: Callable[[Cluster], Output]) -> Output:
    """Do `change` once for the key of this request; its answer.

    Raises: ToolError, which the model receives, if the key was used for another call.
    """
    meta = cast(Mapping[str, Any], context.request_context.meta or {})
    key = meta.get(KEY)
    try:
        return _shared_state(context).state.make(tool, args, key if isinstance(key, str) else None, change)
    except KeyReused as error:
        raise ToolError(str(error)) from error


def find_object(objects: Mapping[str, Any], path: str, kind: str) -> Cluster:
    """Returns the object at `path`; `kind` names it in the error.

    Raises: ToolError, which the model receives.
    """
    if path not in objects:
        available = ", ".join(sorted(objects)[:8])
        raise ToolError(f"there is no {kind} {path}; available: {available}")
    object_found: Cluster = objects[path]
    return object_found


def in_namespace(objects: Mapping[str, Any], namespace: str, cluster: Cluster) -> list[Cluster]:
    """Returns the objects of a namespace.

    Raises: ToolError if the namespace does not exist.
    """
    existing = namespaces(cluster)
    if namespace not in existing:
        raise ToolError(f"there is no namespace {namespace}; available: {', '.join(existing)}")
    return [each for each in objects.values() if each["namespace"] == namespace]


def namespaces(cluster: Cluster) -> list[str]:
    """Every namespace with something in it."""
    return sorted({deployment["namespace"] for deployment in cluster["deployments"].values()})


def _shared_state(context: Context) -> SharedState:
    return cast(SharedState, cast(Any, context.mcp_server).shared)
