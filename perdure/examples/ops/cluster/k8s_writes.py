"""Kubernetes tools that change something; offered only if the agent has loaded the toolset for writing."""

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from .offering import Name, Namespace, Output, change_once, find_object, in_namespace, writes
from .seed import new_pod
from .state import Cluster

Replicas = Annotated[int, Field(ge=0, le=50, description="Pods wanted. 0 stops the workload and keeps its settings.")]
Reason = Annotated[str, Field(max_length=300, description="Why, in one sentence; kept in the object's annotations.")]
Image = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9./-]+:[A-Za-z0-9._-]+$",
        description="The image with its tag, such as registry.example/shop/web:2.5.0. A tag is needed; latest is "
        "accepted, but a rollback to it deploys the image that has the tag at that time.",
    ),
]


def _deployment(cluster: Cluster, namespace: str, name: str) -> Cluster:
    in_namespace(cluster["deployments"], namespace, cluster)
    return find_object(cluster["deployments"], f"{namespace}/{name}", "deployment")


def _roll(cluster: Cluster, deployment: Cluster) -> None:
    """Replace its pods by new ones."""
    place = f"{deployment['namespace']}/{deployment['name']}"
    for name in [name for name, pod in cluster["pods"].items() if name.rpartition("-")[0] == place]:
        del cluster["pods"][name]
    for number in range(deployment["replicas"]):
        cluster["pods"][f"{place}-{number}"] = {**new_pod(deployment, number), "restarts": 0}


@writes("k8s", destructive=True)
def k8s_deployment_restart(context: Context, namespace: Namespace, name: Name, reason: Reason = "") -> Output:
    """Restart a deployment by a rolling replacement of all its pods, one at a time, as `kubectl rollout restart` does.
    Settings and image stay as they are. Connections to the old pods are drained for 30 seconds. Use it where pods hang
    or must read changed configuration; it does not mend an image that cannot start."""

    def change(cluster: Cluster) -> Output:
        deployment = _deployment(cluster, namespace, name)
        deployment["restarted"] += 1
        _roll(cluster, deployment)
        message = f"Deployment {name} in {namespace} was restarted: {deployment['replicas']} new pods."
        return {"status": "restarted", "restarted": deployment["restarted"], "message": message}

    return change_once(
        context, "k8s_deployment_restart", {"namespace": namespace, "name": name, "reason": reason}, change
    )


@writes("k8s", destructive=True)
def k8s_deployment_scale(
    context: Context, namespace: Namespace, name: Name, replicas: Replicas, reason: Reason = ""
) -> Output:
    """Set how many pods a deployment has. Scaling down ends the newest pods first, after a drain of 30 seconds; scaling
    up waits for free processors on the nodes. An autoscaler that watches the deployment may change the number again
    within a minute; look at its events afterwards."""

    def change(cluster: Cluster) -> Output:
        deployment = _deployment(cluster, namespace, name)
        before, deployment["replicas"] = deployment["replicas"], replicas
        _roll(cluster, deployment)
        message = f"Deployment {name} in {namespace} was scaled from {before} to {replicas}."
        return {"status": "scaled", "before": before, "replicas": replicas, "message": message}

    args = {"namespace": namespace, "name": name, "replicas": replicas, "reason": reason}
    return change_once(context, "k8s_deployment_scale", args, change)


@writes("k8s", destructive=True)
def k8s_deployment_set_image(
    context: Context, namespace: Namespace, name: Name, image: Image, reason: Reason = ""
) -> Output:
    """Roll a deployment out with another image. This makes a new revision, which `k8s_deployment_rollback` can undo.
    The roll-out stops at the first pod that does not become ready within two minutes. The old pods then continue to
    serve, and the deployment is reported as progressing."""

    def change(cluster: Cluster) -> Output:
        deployment = _deployment(cluster, namespace, name)
        deployment["revision"] += 1
        deployment["image"] = image
        deployment["images"][str(deployment["revision"])] = image
        _roll(cluster, deployment)
        message = f"Deployment {name} in {namespace} runs {image}, revision {deployment['revision']}."
        return {"status": "rolled_out", "revision": deployment["revision"], "message": message}

    args = {"namespace": namespace, "name": name, "image": image, "reason": reason}
    return change_once(context, "k8s_deployment_set_image", args, change)


@writes("k8s", destructive=True)
def k8s_deployment_rollback(
    context: Context,
    namespace: Namespace,
    name: Name,
    to_revision: Annotated[
        int | None, Field(ge=1, description="The revision to go back to; if omitted, the previous one.")
    ] = None,
) -> Output:
    """Go back to an earlier revision of a deployment. The old pod template comes back whole: image, environment and
    limits; replicas stay as they are now. A rollback is itself a new revision. Configuration that lives elsewhere, such
    as config maps or database migrations, does not go back with it."""

    def change(cluster: Cluster) -> Output:
        deployment = _deployment(cluster, namespace, name)
        wanted = str(to_revision if to_revision is not None else deployment["revision"] - 1)
        if wanted not in deployment["images"]:
            raise ToolError(f"{name} has no revision {wanted}; it has {', '.join(deployment['images'])}")
        deployment["revision"] += 1
        deployment["image"] = deployment["images"][wanted]
        deployment["images"][str(deployment["revision"])] = deployment["image"]
        _roll(cluster, deployment)
        message = f"Deployment {name} in {namespace} is back at {deployment['image']}."
        return {"status": "rolled_back", "revision": deployment["revision"], "message": message}

    args = {"namespace": namespace, "name": name, "to_revision": to_revision}
    return change_once(context, "k8s_deployment_rollback", args, change)


@writes("k8s", destructive=True)
def k8s_pod_delete(
    context: Context,
    namespace: Namespace,
    pod: Name,
    grace_seconds: Annotated[
        int, Field(ge=0, le=600, description="How long the pod may take to end by itself; 0 kills it at once.")
    ] = 30,
) -> Output:
    """End one pod. Its deployment starts another in its place, so this is a restart of a single pod, for instance of
    one that hangs while its siblings are well. What the pod kept on its own disk is lost."""

    def change(cluster: Cluster) -> Output:
        found = find_object(cluster["pods"], f"{namespace}/{pod}", "pod")
        found["restarts"] = 0
        return {"status": "deleted", "message": f"Pod {pod} in {namespace} was deleted; another takes its place."}

    return change_once(
        context, "k8s_pod_delete", {"namespace": namespace, "pod": pod, "grace_seconds": grace_seconds}, change
    )


@writes("k8s", destructive=False)
def k8s_configmap_patch(
    context: Context,
    namespace: Namespace,
    name: Name,
    values: Annotated[
        dict[str, str | None],
        Field(description="Keys to set, each with its text; null removes a key. Keys not named here stay."),
    ],
) -> Output:
    """Change keys of a config map, or make one. Pods read it at their start only, so a change shows after a restart of
    the deployments that use it. Never put credentials here: a config map is readable by everyone in the namespace."""

    def change(cluster: Cluster) -> Output:
        in_namespace(cluster["deployments"], namespace, cluster)
        found: dict[str, Any] = cluster["configmaps"].setdefault(f"{namespace}/{name}", {})
        for key, value in values.items():
            found[key] = value
            if value is None:
                del found[key]
        return {"status": "patched", "data": found, "message": f"Config map {name} in {namespace} was changed."}

    return change_once(context, "k8s_configmap_patch", {"namespace": namespace, "name": name, "values": values}, change)


@writes("k8s", destructive=True)
def k8s_node_schedule(
    context: Context,
    node: Name,
    mode: Annotated[
        Literal["cordon", "uncordon", "drain"],
        Field(
            description="cordon: accept no new pods. drain: cordon, and move its pods elsewhere, within their "
            "disruption budgets. uncordon: accept pods again."
        ),
    ],
) -> Output:
    """Set whether a node accepts pods, for maintenance or a faulty machine. A drain moves every pod of every
    namespace on that node; deployments with one replica are unavailable until the new pod has started."""

    def change(cluster: Cluster) -> Output:
        found = find_object(cluster["nodes"], node, "node")
        found["schedulable"] = mode == "uncordon"
        others = [name for name, each in cluster["nodes"].items() if each["schedulable"]]
        if mode == "drain" and not others:
            raise ToolError("no other node accepts pods")
        moved = [pod for pod in cluster["pods"].values() if pod["node"] == node] if mode == "drain" else []
        for number, pod in enumerate(moved):
            pod["node"] = others[number % len(others)]
        return {"status": mode, "moved": len(moved), "message": f"Node {node}: {mode}, {len(moved)} pods moved."}

    return change_once(context, "k8s_node_schedule", {"node": node, "mode": mode}, change)
