"""Jenkins: jobs and builds, and what starts and stops them."""

from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import Field

from .offering import Output, change_once, find_object, read_cluster, reads, writes
from .state import Cluster

Job = Annotated[
    str,
    Field(pattern="^[A-Za-z0-9_./-]{1,120}$", description="The job's name, with its folders, as it is listed."),
]
Build = Annotated[int, Field(ge=1, description="The build's number within its job.")]


def _build(cluster: Cluster, job: str, number: int) -> Cluster:
    builds = {str(build["number"]): build for build in find_object(cluster["jobs"], job, "job")["builds"]}
    return find_object(builds, str(number), f"build of {job} numbered")


@reads("jenkins")
def jenkins_jobs_list(
    context: Context,
    only_failing: Annotated[bool, Field(description="Only jobs whose newest finished build did not succeed.")] = False,
) -> Output:
    """List the Jenkins jobs with their branch and the number and result of their newest build. A result is SUCCESS,
    FAILURE, ABORTED, or RUNNING while the build is in progress."""
    jobs = [
        {"name": job["name"], "branch": job["branch"], "newest": job["builds"][-1]}
        for job in read_cluster(context)["jobs"].values()
        if not only_failing or job["builds"][-1]["result"] == "FAILURE"
    ]
    names = ", ".join(f"{job['name']} #{job['newest']['number']} {job['newest']['result']}" for job in jobs)
    return {"status": "ok", "jobs": jobs, "message": f"Jobs: {names}."}


@reads("jenkins")
def jenkins_build_show(context: Context, job: Job, number: Build) -> Output:
    """Show one build: its result, its parameters, how many seconds it took. Parameters that Jenkins keeps as
    credentials are shown by their names only."""
    build = _build(read_cluster(context), job, number)
    return {"status": "ok", "build": build, "message": f"{job} #{number}: {build['result']}."}


@reads("jenkins")
def jenkins_build_log(
    context: Context,
    job: Job,
    number: Build,
    lines: Annotated[
        int, Field(ge=1, le=2000, description="How many lines to read, counted from the end, where failures show.")
    ] = 100,
    contains: Annotated[
        str, Field(max_length=100, description="Only lines that contain this text, case-sensitive; empty: every line.")
    ] = "",
) -> Output:
    """Read the console output of a build from its end. Long logs are cut: request lines that contain ERROR first, and
    all lines only if these do not explain the failure."""
    build = _build(read_cluster(context), job, number)
    log = [f"[{job} #{number}] step {step} of 5" for step in range(1, 6)]
    log.append("ERROR 2 tests failed" if build["result"] == "FAILURE" else f"Finished: {build['result']}")
    shown = [line for line in log if contains in line][-lines:]
    return {"status": "ok", "lines": shown, "message": shown[-1] if shown else "No such line."}


@writes("jenkins", destructive=False)
def jenkins_build_start(
    context: Context,
    job: Job,
    parameters: Annotated[
        dict[str, str],
        Field(
            description="The job's parameters by name, all as text. Those not named take their defaults. Never a "
            "credential: parameters are shown to all users who can see the build."
        ),
    ] = {},  # noqa: B006 - a schema's default, which nothing changes
    cause: Annotated[str, Field(max_length=200, description="Why, in one sentence; shown with the build.")] = "",
) -> Output:
    """Start a build of a job. It waits in Jenkins' queue until an executor is free; the answer has its number at once.
    A job that deploys does so without asking again: read what the job does before starting it."""

    def change(cluster: Cluster) -> Output:
        builds = find_object(cluster["jobs"], job, "job")["builds"]
        build = {"number": len(builds) + 1, "result": "RUNNING", "parameters": parameters, "seconds": 0}
        builds.append(build)
        return {"status": "started", "number": build["number"], "message": f"Build {job} #{build['number']} started."}

    return change_once(context, "jenkins_build_start", {"job": job, "parameters": parameters, "cause": cause}, change)


@writes("jenkins", destructive=True)
def jenkins_build_stop(
    context: Context,
    job: Job,
    number: Build,
    force: Annotated[
        bool, Field(description="Kill it at once instead of letting its current step end and its clean-up run.")
    ] = False,
) -> Output:
    """Stop a running build. What it has already done is not undone: a deployment may be left incomplete. A build that
    has ended is not changed, and the answer states that."""

    def change(cluster: Cluster) -> Output:
        build = _build(cluster, job, number)
        if build["result"] != "RUNNING":
            return {"status": "ended_before", "message": f"{job} #{number} had ended: {build['result']}."}
        build["result"] = "ABORTED"
        return {"status": "stopped", "message": f"Build {job} #{number} was stopped."}

    return change_once(context, "jenkins_build_stop", {"job": job, "number": number, "force": force}, change)
