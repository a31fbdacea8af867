"""Argo CD: applications, how far they are from their repository, and what brings them nearer."""

from typing import Annotated

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from .offering import Output, change_once, find_object, read_cluster, reads, writes
from .state import Cluster

App = Annotated[
    str, Field(pattern="^[a-z0-9-]{1,63}$", description="The application's name as argo_apps_list shows it.")
]
GitRevision = Annotated[
    str,
    Field(
        pattern="^[0-9a-f]{7,40}$",
        description="A commit of the application's repository, 7 to 40 hexadecimal digits. Branch names are not taken, "
        "because what they mean may change between the approval and the call.",
    ),
]


def _app(cluster: Cluster, name: str) -> Cluster:
    return find_object(cluster["apps"], name, "application")


@reads("argo")
def argo_apps_list(
    context: Context,
    only_out_of_sync: Annotated[
        bool, Field(description="Only applications whose cluster state differs from their repository.")
    ] = False,
) -> Output:
    """List the Argo CD applications: repository, revision that runs, sync status (Synced or OutOfSync) and health
    (Healthy, Progressing, Degraded). An application that is Progressing is in the middle of a roll-out."""
    apps = [app for app in read_cluster(context)["apps"].values() if not only_out_of_sync or app["sync"] == "OutOfSync"]
    names = ", ".join(f"{app['name']} ({app['sync']}, {app['health']})" for app in apps)
    return {"status": "ok", "apps": apps, "message": f"Applications: {names}."}


@reads("argo")
def argo_app_diff(
    context: Context,
    app: App,
    revision: Annotated[
        str | None, Field(description="Compare with this commit; if omitted, with the newest of the tracked branch.")
    ] = None,
) -> Output:
    """Show what a sync of an application would change in the cluster, object by object, as a unified diff. Fields that
    controllers set by themselves are left out. Read it before every sync: the approval of a sync is for what it does at
    the moment at which it runs."""
    found = _app(read_cluster(context), app)
    wanted = revision or found["revisions"][-1]
    differs = wanted != found["revision"]
    lines = [f"- revision {found['revision']}", f"+ revision {wanted}"] if differs else []
    return {"status": "ok", "diff": lines, "message": f"{app}: {len(lines)} lines differ from {wanted}."}


@reads("argo")
def argo_app_history(
    context: Context,
    app: App,
    most: Annotated[int, Field(ge=1, le=50, description="How many deployments to show, the newest last.")] = 10,
) -> Output:
    """Show which commits of its repository an application ran, in the order of their deployment, with the one that runs
    now. Use it to choose the commit for argo_app_rollback."""
    found = _app(read_cluster(context), app)
    history = found["revisions"][-most:]
    return {"status": "ok", "history": history, "now": found["revision"], "message": f"{app} runs {found['revision']}."}


@writes("argo", destructive=True)
def argo_app_sync(
    context: Context,
    app: App,
    revision: Annotated[
        GitRevision | None, Field(description="The commit to deploy; if omitted, the newest of the tracked branch.")
    ] = None,
    prune: Annotated[
        bool, Field(description="Delete objects that are in the cluster and no longer in the repository.")
    ] = False,
    force: Annotated[
        bool, Field(description="Replace objects whose immutable fields changed; they are unavailable for a moment.")
    ] = False,
    dry_run: Annotated[bool, Field(description="Only say what would be done.")] = False,
) -> Output:
    """Bring the cluster to what the application's repository says: every object that differs is applied, in the order
    of its sync wave, and hooks run between the waves. A sync that fails half-way leaves what it had applied; sync again
    or roll back. With `prune`, objects that were removed from the repository are deleted, together with their data."""

    def change(cluster: Cluster) -> Output:
        found = _app(cluster, app)
        wanted = revision or found["revisions"][-1]
        if dry_run:
            return {"status": "dry_run", "revision": wanted, "message": f"{app} would be brought to {wanted}."}
        found["sync"], found["health"], found["revision"] = "Synced", "Healthy", wanted
        if wanted not in found["revisions"]:
            found["revisions"].append(wanted)
        return {"status": "synced", "revision": wanted, "message": f"Application {app} was synced to {wanted}."}

    args = {"app": app, "revision": revision, "prune": prune, "force": force, "dry_run": dry_run}
    return change_once(context, "argo_app_sync", args, change)


@writes("argo", destructive=True)
def argo_app_rollback(context: Context, app: App, to_revision: GitRevision) -> Output:
    """Deploy an earlier commit of an application again. Automated sync is switched off by it, or the next commit would
    undo the rollback; switch it on again by argo_app_automation when the repository is mended. The repository itself is
    not changed, so that the application is OutOfSync afterwards."""

    def change(cluster: Cluster) -> Output:
        found = _app(cluster, app)
        if to_revision not in found["revisions"]:
            raise ToolError(f"{app} never ran {to_revision}; it ran {', '.join(found['revisions'])}")
        found["revision"], found["sync"], found["automated"] = to_revision, "OutOfSync", False
        return {"status": "rolled_back", "revision": to_revision, "message": f"{app} is back at {to_revision}."}

    return change_once(context, "argo_app_rollback", {"app": app, "to_revision": to_revision}, change)


@writes("argo", destructive=False)
def argo_app_automation(
    context: Context,
    app: App,
    automated: Annotated[bool, Field(description="Whether each new commit is deployed automatically.")],
    self_heal: Annotated[
        bool, Field(description="Whether changes made by hand in the cluster are undone within a few minutes.")
    ] = False,
) -> Output:
    """Switch an application's automated sync on or off. Off, commits wait for a manual sync; on, they are deployed
    within three minutes. With `self_heal`, other tools' changes to its objects do not last: a deployment scaled by hand
    goes back to the repository's number."""

    def change(cluster: Cluster) -> Output:
        found = _app(cluster, app)
        found["automated"], found["self_heal"] = automated, self_heal
        return {"status": "set", "message": f"Automated sync of {app} is {'on' if automated else 'off'}."}

    return change_once(
        context, "argo_app_automation", {"app": app, "automated": automated, "self_heal": self_heal}, change
    )
