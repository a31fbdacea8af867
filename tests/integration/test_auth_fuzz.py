"""Schemathesis' authentication checks on the served API: no operation answers without its declared authentication or
with a made-up one, and no requester is given another's object. test_access_matrix.py holds it in `make test`."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Api

SEED = "20261123"
PHASES = "examples,coverage,fuzzing,stateful"
STREAMS = r"/(events|stream)$"
"""Left out: their answers do not end."""
KILLED_BY_ITS_OWN_CALLS = r"^/v1/auth/(logout|password|codes|refresh)|^/v1/users/|^/v1/team/"
"""Left out: what would take the callers' own access away during the run."""


async def _token(api: Api, name: str, *roles: str) -> str:
    async with api.client("admin") as admin:
        await admin.post("/v1/users", json={"name": name, "roles": roles})
        return str((await admin.post(f"/v1/users/{name}/tokens", json={})).json()["token"])


@pytest.mark.soak
async def test_schemathesis_finds_no_operation_that_ignores_who_asks(api: Api, tmp_path: Path) -> None:
    callers = {"everything": ("requester", "reviewer", "admin"), "peer": ("requester",)}
    people = [
        {
            "name": name,
            "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {await _token(api, name, *roles)}"}],
        }
        for name, roles in callers.items()
    ]
    (tmp_path / "auth.json").write_text(json.dumps({"auth": people}))
    command = [
        *(str(Path(sys.executable).with_name("st")), "run", f"{api.url}/openapi.json"),
        *("--checks", "ignored_auth,object_level_authorization", "--phases", PHASES),
        *("--max-examples", "5", "--seed", SEED, "--no-shrink", "--continue-on-failure", "--request-timeout", "20"),
        *("--exclude-path-regex", f"{STREAMS}|{KILLED_BY_ITS_OWN_CALLS}"),
        *("--auth-wfc", str(tmp_path / "auth.json"), "--warnings", "off", "--mode", "positive"),
        *("--report", "json", "--report-json-path", str(tmp_path / "report.json")),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()[-6_000:]
    report = json.loads((tmp_path / "report.json").read_text())
    answered = [name for name, phases in report["valid_rates"].items() if any(p["accepted"] for p in phases.values())]
    assert report["complete"] and report["operations"]["tested"] == report["operations"]["selected"] > 95
    assert len(answered) > 30, answered
