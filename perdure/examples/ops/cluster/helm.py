"""Helm: releases, their history, and what changes them."""

from functools import partial
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from .offering import Name, Namespace, Output, change_once, find_object, in_namespace, read_cluster, reads, writes
from .state import Cluster

Release = Annotated[
    str,
    Field(pattern="^[a-z0-9.-]{1,53}$", description="The release's name as helm_releases_list shows it."),
]
Revision = Annotated[int, Field(ge=1, description="A revision that helm_release_history shows for this release.")]
TimeoutSeconds = Annotated[
    int,
    Field(
        ge=1,
        le=1800,
        description="How long to wait for the release's workloads to be ready before the operation counts as failed.",
    ),
]


def _release(cluster: Cluster, namespace: str, name: str) -> Cluster:
    return find_object(cluster["releases"], f"{namespace}/{name}", "release")


@reads("helm")
def helm_releases_list(
    context: Context,
    namespace: Annotated[
        str | None, Field(description="Only releases of this namespace; if omitted, of every namespace.")
    ] = None,
) -> Output:
    """List the Helm releases with chart, revision and status. A status other than `deployed` means that the last
    operation did not end well or still runs: look at its history before changing anything."""
    cluster = read_cluster(context)
    releases = cluster["releases"]
    found = list(releases.values()) if namespace is None else in_namespace(releases, namespace, cluster)
    shown = [{name: each[name] for name in ("namespace", "name", "chart", "revision", "status")} for each in found]
    return {"status": "ok", "releases": shown, "message": f"{len(shown)} releases."}


@reads("helm")
def helm_release_history(
    context: Context,
    namespace: Namespace,
    release: Release,
    most: Annotated[int, Field(ge=1, le=100, description="How many revisions to show, the newest first.")] = 10,
) -> Output:
    """Show the revisions of a release: chart, and the values given by users at each. Use it to find the revision to go
    back to, and to see what the last change was. Values may be long; credentials in them are not shown."""
    found = _release(read_cluster(context), namespace, release)
    history = found["history"][-most:][::-1]
    return {"status": "ok", "history": history, "message": f"{len(history)} revisions of {release}."}


@reads("helm")
def helm_release_values(
    context: Context,
    namespace: Namespace,
    release: Release,
    all_values: Annotated[
        bool, Field(description="Also the chart's own defaults, not only what users set. Much longer.")
    ] = False,
) -> Output:
    """Show the values with which a release runs now, as nested keys. Read them before an upgrade: keys that an upgrade
    does not name keep their value only if `reuse_values` is true."""
    found = _release(read_cluster(context), namespace, release)
    values = {**({"image": {"pullPolicy": "IfNotPresent"}} if all_values else {}), **found["values"]}
    return {"status": "ok", "values": values, "message": f"Values of {release}: {values}."}


@writes("helm", destructive=True)
def helm_upgrade(
    context: Context,
    namespace: Namespace,
    release: Release,
    chart: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9./-]+-[0-9]+\.[0-9]+\.[0-9]+$",
            description="Chart with version, such as web-0.8.3; if omitted, the chart that runs now.",
        ),
    ] = None,
    values: Annotated[
        dict[str, Any] | None,
        Field(description="Values to set, nested as in a values file. Lists are replaced whole, never merged."),
    ] = None,
    reuse_values: Annotated[
        bool, Field(description="Keep the values of the present revision that `values` does not name.")
    ] = True,
    atomic: Annotated[
        bool, Field(description="Roll back automatically if the release does not become ready within the time-out.")
    ] = True,
    timeout_seconds: TimeoutSeconds = 300,
) -> Output:
    """Upgrade a release to another chart version, other values, or both. The manifests are rendered again and applied
    as one revision; hooks of the chart run before and after, and may change databases. With `atomic`, a failure
    restores the previous revision, but does not undo the hooks. Only one operation can run on a release at a time."""
    args = {
        "namespace": namespace,
        "release": release,
        "chart": chart,
        "values": values,
        "reuse_values": reuse_values,
        "atomic": atomic,
        "timeout_seconds": timeout_seconds,
    }
    return change_once(context, "helm_upgrade", args, partial(_upgraded, args))


def _upgraded(args: dict[str, Any], cluster: Cluster) -> Output:
    namespace, release = args["namespace"], args["release"]
    found = _release(cluster, namespace, release)
    found["revision"] += 1
    found["chart"] = args["chart"] or found["chart"]
    found["values"] = {**(found["values"] if args["reuse_values"] else {}), **(args["values"] or {})}
    entry = {"revision": found["revision"], "chart": found["chart"], "values": found["values"]}
    found["history"].append(entry)
    message = f"Release {release} in {namespace} was upgraded to {found['chart']}, revision {found['revision']}."
    return {"status": "upgraded", **entry, "message": message}


@writes("helm", destructive=True)
def helm_rollback(
    context: Context,
    namespace: Namespace,
    release: Release,
    to_revision: Revision,
    cleanup_on_fail: Annotated[
        bool, Field(description="Delete objects that the rollback made where the rollback itself fails.")
    ] = False,
    timeout_seconds: TimeoutSeconds = 300,
) -> Output:
    """Bring an earlier revision of a release back: chart and values of that revision are applied again as a new
    revision. Custom resource definitions, persistent volumes and whatever hooks did stay as they are now."""

    def change(cluster: Cluster) -> Output:
        found = _release(cluster, namespace, release)
        earlier = next((each for each in found["history"] if each["revision"] == to_revision), None)
        if earlier is None:
            raise ToolError(f"{release} has no revision {to_revision}")
        found["revision"] += 1
        found["chart"], found["values"] = earlier["chart"], earlier["values"]
        found["history"].append({**earlier, "revision": found["revision"]})
        message = f"Release {release} in {namespace} is back at revision {to_revision}, as {found['revision']}."
        return {"status": "rolled_back", "revision": found["revision"], "message": message}

    args = {
        "namespace": namespace,
        "release": release,
        "to_revision": to_revision,
        "cleanup_on_fail": cleanup_on_fail,
        "timeout_seconds": timeout_seconds,
    }
    return change_once(context, "helm_rollback", args, change)


@writes("helm", destructive=True)
def helm_uninstall(
    context: Context,
    namespace: Namespace,
    release: Release,
    confirm: Annotated[Name, Field(description="The release's name again, exactly; otherwise nothing is done.")],
    keep_history: Annotated[
        bool, Field(description="Keep its revisions, so that a rollback can bring it back.")
    ] = True,
) -> Output:
    """Remove a release and every object that it made: workloads, services, config maps. Persistent volumes stay unless
    the chart deletes them. Without its history this cannot be undone."""

    def change(cluster: Cluster) -> Output:
        _release(cluster, namespace, release)
        if confirm != release:
            raise ToolError("`confirm` must repeat the release's name; nothing was removed")
        del cluster["releases"][f"{namespace}/{release}"]
        return {"status": "uninstalled", "message": f"Release {release} was removed from {namespace}."}

    args = {"namespace": namespace, "release": release, "confirm": confirm, "keep_history": keep_history}
    return change_once(context, "helm_uninstall", args, change)
