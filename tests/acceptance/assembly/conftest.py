"""A stack with an app whose five assembly tools take a tenth of a second each."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.acceptance.running import ROOT, RunningStack, running


@pytest.fixture(scope="package")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    home = tmp_path_factory.mktemp("gathering") / "home"
    with running(home, "--app", str(ROOT / "tests" / "apps" / "gather")) as stack:
        yield stack


@pytest.fixture
def client(gathering: RunningStack) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {gathering.token('requester')}"}
    with httpx.Client(base_url=gathering.api, timeout=60, headers=headers) as made:
        yield made


class Talk:
    def __init__(self, http: httpx.Client, agent: str = "gather") -> None:
        self.http = http
        made = http.post("/v1/conversations", json={"agent": agent})
        made.raise_for_status()
        self.path = f"/v1/conversations/{made.json()['id']}/turns"

    def begin(self, message: str) -> str:
        started = self.http.post(self.path, json={"message": message})
        started.raise_for_status()
        return str(started.json()["turn_id"])

    def read(self, turn_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/v1/turns/{turn_id}").json()
        return found

    def events(self, turn_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Kind and data of every event of the turn's stream, which ends with the turn."""
        found, kind = [], ""
        with self.http.stream("GET", f"/v1/turns/{turn_id}/events", timeout=120) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((kind, json.loads(line.removeprefix("data: "))))
        return found


def node_milliseconds(events: list[tuple[str, dict[str, Any]]], node: str) -> float:
    at = {kind: datetime.fromisoformat(data["at"]) for kind, data in events if data.get("node") == node}
    return (at["node_end"] - at["node_start"]).total_seconds() * 1e3
