"""Kubernetes, read only: what the agent is offered from the start, so these schemas are short."""

from typing import Annotated, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from .offering import Name, Namespace, Output, find_object, in_namespace, namespaces, read_cluster, reads


@reads("k8s")
def k8s_namespaces_list(context: Context) -> Output:
    """List the namespaces with their numbers of pods."""
    cluster = read_cluster(context)
    counts = {name: len(in_namespace(cluster["pods"], name, cluster)) for name in namespaces(cluster)}
    return {"status": "ok", "namespaces": counts, "message": f"Namespaces: {', '.join(counts)}."}


@reads("k8s")
def k8s_pods_list(context: Context, namespace: Namespace) -> Output:
    """List the pods of a namespace: phase, restarts, node."""
    cluster = read_cluster(context)
    pods = in_namespace(cluster["pods"], namespace, cluster)
    names = ", ".join(f"{pod['name']} ({pod['phase']}, {pod['restarts']} restarts)" for pod in pods)
    return {"status": "ok", "pods": pods, "message": f"{len(pods)} pods in {namespace}: {names}."}


@reads("k8s")
def k8s_deployments_list(context: Context, namespace: Namespace) -> Output:
    """List the deployments of a namespace: replicas, image, revision."""
    cluster = read_cluster(context)
    found = in_namespace(cluster["deployments"], namespace, cluster)
    names = ", ".join(f"{each['name']} x{each['replicas']}" for each in found)
    return {"status": "ok", "deployments": found, "message": f"Deployments in {namespace}: {names}."}


@reads("k8s")
def k8s_describe(
    context: Context, namespace: Namespace, kind: Literal["pod", "deployment", "configmap"], name: Name
) -> Output:
    """Show one object in full."""
    cluster = read_cluster(context)
    found = find_object(cluster[f"{kind}s"], f"{namespace}/{name}", kind)
    return {"status": "ok", "kind": kind, "object": found, "message": f"{kind} {namespace}/{name}: {found}"}


@reads("k8s")
def k8s_pod_logs(
    context: Context, namespace: Namespace, pod: Name, lines: Annotated[int, Field(ge=1, le=500)] = 50
) -> Output:
    """Read the last lines of a pod's log."""
    found = find_object(read_cluster(context)["pods"], f"{namespace}/{pod}", "pod")
    kinds: tuple[str, ...] = ("GET /healthz 200", "GET / 200", "cache refreshed")
    if found["restarts"]:
        kinds = (*kinds, "ERROR connection pool exhausted, exiting")
    log = [f"line {number}: {kinds[number % len(kinds)]}" for number in range(1, lines + 1)]
    return {"status": "ok", "pod": found["name"], "lines": log, "message": log[-1]}


@reads("k8s")
def k8s_events_list(context: Context, namespace: Namespace) -> Output:
    """List what happened lately in a namespace."""
    cluster = read_cluster(context)
    events = [
        {"object": pod["name"], "reason": "BackOff", "count": pod["restarts"]}
        for pod in in_namespace(cluster["pods"], namespace, cluster)
        if pod["restarts"]
    ]
    return {"status": "ok", "events": events, "message": f"{len(events)} warnings in {namespace}."}


@reads("k8s")
def k8s_nodes_list(context: Context) -> Output:
    """List the nodes: ready, schedulable, processors."""
    nodes = list(read_cluster(context)["nodes"].values())
    return {"status": "ok", "nodes": nodes, "message": f"{len(nodes)} nodes."}
