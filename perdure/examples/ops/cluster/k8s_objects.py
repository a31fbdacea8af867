"""Kubernetes, whole objects: workloads, autoscalers, network policies and one-time jobs, each from a described form."""

from typing import Annotated, Literal

from mcp.server.mcpserver import Context
from pydantic import BaseModel, ConfigDict, Field

from .offering import Name, Namespace, Output, change_once, find_object, in_namespace, writes
from .seed import new_pod
from .state import Cluster


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Variable(_Form):
    name: Annotated[str, Field(pattern="^[A-Z][A-Z0-9_]*$", description="The variable's name, in capitals.")]
    value: Annotated[str, Field(description="Plain text; leave it out where `from_secret` is given.")] = ""
    from_secret: Annotated[
        str, Field(description="<secret>/<key>: the value is read from there when the pod starts, and shown nowhere.")
    ] = ""


class Probe(_Form):
    path: Annotated[str, Field(pattern="^/", description="Asked by GET; 200 to 399 counts as well.")]
    port: Annotated[int, Field(ge=1, le=65_535)]
    every_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    failures: Annotated[int, Field(ge=1, le=20, description="In a row, before the pod counts as not well.")] = 3


class Resources(_Form):
    cpu_millis: Annotated[int, Field(ge=10, le=64_000, description="Thousandths of a processor.")]
    memory_mib: Annotated[int, Field(ge=16, le=262_144, description="MiB; a pod that takes more is killed.")]


class Container(_Form):
    image: Annotated[str, Field(description="With its tag or digest.")]
    command: Annotated[list[str], Field(description="Instead of the image's own entry point, word by word.")] = []
    variables: list[Variable] = []
    requested: Annotated[Resources, Field(description="Kept free for each pod; decides on which node it fits.")]
    limit: Annotated[Resources | None, Field(description="Never exceeded; if omitted, the same as requested.")] = None
    ready: Annotated[Probe | None, Field(description="Receives traffic only while it is healthy.")] = None
    alive: Annotated[Probe | None, Field(description="Restarted if it is unhealthy.")] = None


class Peer(_Form):
    namespace: Annotated[str, Field(description="Pods of this namespace; empty: of the policy's own.")] = ""
    workload: Annotated[str, Field(description="Only this deployment's pods; empty: all of the namespace.")] = ""
    ports: Annotated[list[int], Field(description="Only these ports; empty: every port.")] = []


@writes("k8s", destructive=True)
def k8s_deployment_apply(
    context: Context,
    namespace: Namespace,
    name: Name,
    container: Container,
    replicas: Annotated[int, Field(ge=0, le=50, description="Pods wanted.")] = 1,
    strategy: Annotated[
        Literal["rolling", "recreate"],
        Field(description="rolling: new pods before old ones go. recreate: all old ones first, with a gap in service."),
    ] = "rolling",
) -> Output:
    """Create a deployment, or replace the one of that name completely. Fields that are left out return to their
    defaults, even if they were set by hand. For a single change, prefer the tools for it (scale, set_image). This does
    not create a service for the deployment."""

    def change(cluster: Cluster) -> Output:
        in_namespace(cluster["deployments"], namespace, cluster)
        place = f"{namespace}/{name}"
        found = cluster["deployments"].setdefault(
            place, {"namespace": namespace, "name": name, "revision": 0, "images": {}, "restarted": 0}
        )
        found |= {"replicas": replicas, "image": container.image, "revision": found["revision"] + 1}
        found["images"][str(found["revision"])] = container.image
        cluster["pods"] = {at: pod for at, pod in cluster["pods"].items() if at.rpartition("-")[0] != place}
        cluster["pods"] |= {f"{place}-{number}": new_pod(found, number) for number in range(replicas)}
        message = f"Deployment {name} in {namespace} was applied, revision {found['revision']}."
        return {"status": "applied", "revision": found["revision"], "message": message}

    args = {"namespace": namespace, "name": name, "container": container.model_dump(), "replicas": replicas}
    return change_once(context, "k8s_deployment_apply", {**args, "strategy": strategy}, change)


@writes("k8s", destructive=False)
def k8s_autoscaler_set(
    context: Context,
    namespace: Namespace,
    deployment: Name,
    least: Annotated[int, Field(ge=1, le=50, description="Never fewer pods than this.")],
    most: Annotated[int, Field(ge=1, le=50, description="Never more pods than this, whatever the load.")],
    cpu_percent: Annotated[
        int, Field(ge=10, le=95, description="The mean use of the requested processors that is aimed at.")
    ] = 70,
    calm_seconds: Annotated[
        int, Field(ge=0, le=3_600, description="How long the load must be low before pods are taken away.")
    ] = 300,
) -> Output:
    """Let a deployment's number of pods follow its load, between two bounds. Afterwards, a number set by hand does not
    last. The deployment's containers must have processors requested, or there is nothing to measure against."""

    def change(cluster: Cluster) -> Output:
        found = find_object(cluster["deployments"], f"{namespace}/{deployment}", "deployment")
        found["autoscaler"] = {"least": least, "most": most, "cpu_percent": cpu_percent, "calm_seconds": calm_seconds}
        return {"status": "set", "message": f"{deployment} in {namespace} scales by itself from {least} to {most}."}

    args = {"namespace": namespace, "deployment": deployment, "least": least, "most": most}
    return change_once(
        context,
        "k8s_autoscaler_set",
        {**args, "cpu_percent": cpu_percent, "calm_seconds": calm_seconds},
        change,
    )


@writes("k8s", destructive=True)
def k8s_network_policy_set(
    context: Context,
    namespace: Namespace,
    workload: Name,
    may_come_from: Annotated[list[Peer], Field(description="The peers that can connect to its pods; empty: none.")],
    may_go_to: Annotated[
        list[Peer] | None, Field(description="The peers that its pods can connect to; null: any, empty: none.")
    ] = None,
) -> Output:
    """Set which connections to and from a deployment's pods are allowed. All others are dropped, including those that
    worked before, and open connections end. Name resolution and health checks are always allowed. A policy that is too
    narrow cuts a service off without any error in its own log: read its callers' logs afterwards."""

    def change(cluster: Cluster) -> Output:
        found = find_object(cluster["deployments"], f"{namespace}/{workload}", "deployment")
        found["let_in"] = [peer.model_dump() for peer in may_come_from]
        found["let_out"] = None if may_go_to is None else [peer.model_dump() for peer in may_go_to]
        return {"status": "set", "message": f"{len(may_come_from)} peers can connect to {workload}."}

    args = {
        "namespace": namespace,
        "workload": workload,
        "may_come_from": [peer.model_dump() for peer in may_come_from],
        "may_go_to": None if may_go_to is None else [peer.model_dump() for peer in may_go_to],
    }
    return change_once(context, "k8s_network_policy_set", args, change)


@writes("k8s", destructive=False)
def k8s_job_run(
    context: Context,
    namespace: Namespace,
    name: Name,
    container: Container,
    tries: Annotated[int, Field(ge=1, le=10, description="How often it is started where it fails.")] = 1,
    deadline_seconds: Annotated[
        int, Field(ge=10, le=86_400, description="It is ended after so long, whatever it is doing.")
    ] = 600,
    keep_seconds: Annotated[
        int, Field(ge=0, le=604_800, description="How long its pods and logs are kept after its end.")
    ] = 86_400,
) -> Output:
    """Run a container once, to its end: a migration, a repair, a report. More than one try means that what it does may
    be done more than once. Its answer has the pod's name; read its end by k8s_pod_logs."""

    def change(cluster: Cluster) -> Output:
        in_namespace(cluster["deployments"], namespace, cluster)
        job = {"namespace": namespace, "name": name, "image": container.image}
        cluster["pods"][f"{namespace}/{name}-0"] = {**new_pod(job, 0), "phase": "Succeeded"}
        return {"status": "started", "pod": f"{name}-0", "message": f"Job {name} runs in {namespace}."}

    args = {"namespace": namespace, "name": name, "container": container.model_dump(), "tries": tries}
    return change_once(
        context,
        "k8s_job_run",
        {**args, "deadline_seconds": deadline_seconds, "keep_seconds": keep_seconds},
        change,
    )
