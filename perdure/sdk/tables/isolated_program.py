"""The program that processes tables in a separate process. `isolation.py` starts it and sends it one job.

A job is a line of JSON, followed by the contents of its files, on standard input. The result is JSON on standard
output. Everything is imported before the job arrives, so that a waiting process starts to work immediately.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

IDLE_SECONDS = 300
"""Seconds after which a process without a job ends."""


def main() -> None:
    """Runs one job. The arguments are the limits of memory in bytes and of processor time in seconds."""
    memory_bytes, cpu_seconds = map(int, sys.argv[1:])
    for resource_kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with suppress(OSError, ValueError):  # macOS rejects the memory limit
            resource.setrlimit(resource_kind, (limit, limit))
    from perdure.sdk.tables import reading  # noqa: F401  (imported while there is nothing to do)

    signal.alarm(IDLE_SECONDS)
    line = sys.stdin.buffer.readline()
    signal.alarm(0)
    if not line:
        return
    job = json.loads(line)
    for file in job["files"]:
        file["content"] = sys.stdin.buffer.read(file["size"])
    sys.stdout.write(json.dumps(_run_job(job)))


def _run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    from perdure.sdk.tables.plan import TableError

    try:
        return {"answer": _profile_files(job) if job["work"] == "profile" else _run_plan(job)}
    except TableError as error:
        return {"trouble": error.message}


def _profile_files(job: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Returns the columns of each file. Files after the first that are not tables give None."""
    from perdure.sdk.tables import profile_of, read_csv
    from perdure.sdk.tables.plan import TableError
    from perdure.sdk.tables.reading import as_json

    profiles: list[dict[str, Any] | None] = []
    for file in job["files"]:
        try:
            table = read_csv(file["content"], file["media_type"])
            profiles.append({"rows": table.height, "columns": as_json(profile_of(table))})
        except TableError:
            if not profiles:
                raise
            profiles.append(None)
    return profiles


def _run_plan(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of the plan on the first file, with the others for joins."""
    from perdure.sdk.tables import Plan, TableError, profile_of, read_csv, read_plan, run_plan
    from perdure.sdk.tables.reading import as_json, rows_to_show, warnings_to_show

    files, xml = job["files"], job["plan"]
    plan = read_plan(xml) if xml.strip() else Plan()
    if isinstance(plan, tuple):
        raise TableError(f"the plan is invalid: {plan[0].path}: {plan[0].reason}")
    needed_files = [file for file in files if file is files[0] or file["name"] in plan.table_names]
    result = run_plan(
        plan, {file["name"]: read_csv(file["content"], file["media_type"]) for file in needed_files}, files[0]["name"]
    )
    table = result.table
    rows = json.dumps(rows_to_show(table), ensure_ascii=False)
    profile = {"rows": table.height, "columns": as_json(profile_of(table))}
    return {**profile, "warnings": [*warnings_to_show(table), *result.warnings], "drawn": rows}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main()
