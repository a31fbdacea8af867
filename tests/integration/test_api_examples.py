"""The agents `care_navigator`, `skeleton` and `chart_builder` over REST: what is skipped, approved, drawn."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.apps import SHIPPED
from perdure.local.ports import free_port
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_turns import conversation as begun
from tests.integration.test_api_turns import refusal
from tests.unit.examples.payments_process import wait_until_healthy

AGENT = "care_navigator"
SALES = "region,sales,day\nNorth,30,2024-01-01\nSouth,10,2024-01-02\nNorth,5,2024-01-03\nNorth,,2024-01-04\n"


@pytest.fixture(scope="module", autouse=True)
def calendar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, home = free_port(), tmp_path_factory.mktemp("calendar")
    environ = {**os.environ, "BOOKINGS_PORT": str(port), "PERDURE_COMPANION_HOME": str(home)}
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, str(Path(SHIPPED) / "care" / "bookings.py")], env=environ)
    try:
        wait_until_healthy(address, process)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PERDURE_SECRET_BOOKINGS_URL", address)
            yield address
    finally:
        process.kill()
        process.wait()


async def conversation(client: httpx.AsyncClient, *tables: str, agent: str = "chart_builder") -> str:
    path = f"/v1/conversations/{await begun(client, agent=agent)}"
    for number, table in enumerate(tables):
        params, headers = {"name": f"t{number}.csv"}, {"Content-Type": "text/csv"}
        sent = await client.post(f"{path}/files", params=params, content=table, headers=headers)
        assert sent.status_code == 201, sent.text
    return path


async def say(client: httpx.AsyncClient, path: str, message: str, **given: Any) -> dict[str, Any]:
    answer = await client.post(f"{path}/turns", params={"wait": 100}, json={"message": message, **given}, timeout=120)
    assert answer.status_code == 200, answer.text
    turn: dict[str, Any] = answer.json()
    return turn


async def stages(client: httpx.AsyncClient, of: dict[str, Any]) -> list[dict[str, Any]]:
    """The `stage` events of a turn's stream, which ends with the turn."""
    lines = (await client.get(of["events"])).text.splitlines()
    told = [after for before, after in pairwise(lines) if before == "event: stage"]
    return [json.loads(line.removeprefix("data: ")) for line in told]


async def test_an_approved_booking_is_made_exactly_once(api: Api, calendar: str) -> None:
    async with api.client() as client, api.client("reviewer") as reviewer, httpx.AsyncClient() as outside:
        found = await say(client, await conversation(client, agent=AGENT), "Book p1 at Monday 10:00")
        assert found["status"] == "awaiting_approval"
        assert (await outside.get(f"{calendar}/bookings")).json() == {"bookings": []}, "nothing before a decision"
        (approval_id,) = found["waiting_for"]["ids"]
        approval = (await reviewer.get(f"/v1/approvals/{approval_id}")).json()
        assert (approval["tool"], approval["args"]) == ("book_session", {"provider": "p1", "slot": "Monday 10:00"})
        decision = {"decision": "approve", "digest": approval["digest"]}
        for expected in (200, 409):
            decided = await reviewer.post(f"/v1/approvals/{approval_id}/decision", json=decision)
            assert decided.status_code == expected, decided.text
        told = await stages(client, found)  # to the turn's end
        done = (await client.get(f"/v1/turns/{found['turn_id']}")).json()
        assert done["status"] == "completed" and all(each in done["answer"] for each in ("p1", "Monday 10:00"))
        assert done["nodes"].count("preflight") == 1 and done["nodes"][-1] == "finalize"
        assert [each["stage"] for each in told].count("preflight") == 1
        booked = (await outside.get(f"{calendar}/bookings")).json()
        assert booked == {"bookings": [{"number": 1, "provider": "p1", "slot": "Monday 10:00"}]}
        effects = (await reviewer.get("/v1/effects")).json()["items"]
    mine = [(each["tool"], each["effect"], each["state"]) for each in effects if each["turn_id"] == found["turn_id"]]
    assert mine == [("book_session", "keyed", "done")]


async def test_a_skeleton_refuses_metadata_that_it_cannot_use(requester: Caller) -> None:
    bad: list[dict[str, Any]] = [{"input_type": each} for each in ("video", "", 3, ["text"], None)]
    bad += [{"trace_id": each} for each in ("two words", "x" * 129, 7)]
    body = {"agent": "skeleton", "message": "a sound"}
    refused = [await requester.post("/v1/execute", json={**body, "metadata": each}) for each in bad]
    assert [refusal(each) for each in refused] == [(422, "bad_input_type")] * 5 + [(422, "bad_trace_id")] * 3


async def test_plotting_a_column_against_another_returns_a_picture(api: Api) -> None:
    async with api.client() as client:
        path = await conversation(client, SALES)
        turn = await say(client, path, "Plot sales by region")
        assert turn["status"] == "completed", turn["error"]
        assert turn["output"]["warnings"][0] in turn["answer"], "the person reads what the picture leaves out"
        pictures = turn["output"]["pictures"]
        png, svg = [(await client.get(pictures[kind])) for kind in ("png", "svg")]
        assert (png.headers["content-type"], svg.headers["content-type"]) == ("image/png", "image/svg+xml")
        assert png.content[:8] == b"\x89PNG\r\n\x1a\n" and "sandbox" in svg.headers["content-security-policy"]
        assert all(word in svg.text for word in ("North", "South", "region", "sales")), "the picture says what it shows"
        drawn = (await client.get(pictures["specification"])).json()
        assert drawn["data"]["values"] == [{"region": "North", "sales": 35}, {"region": "South", "sales": 10}]
        assert drawn["mark"]["type"] == "bar" and drawn["encoding"]["y"]["field"] == "sales"
        metrics = (await client.get(f"/v1/turns/{turn['turn_id']}/metrics")).json()
        labels = ["classify", "plan", "specify", "marks", "feedback"]
        assert [call["label"] for call in metrics["calls"]] == labels and metrics["source"] == "server"
        assert metrics["totals"]["input_tokens"] == turn["usage"]["input_tokens"] > 0
        assert all(call["seconds"] > 0 and call["number"] == 1 for call in metrics["calls"])
        assert metrics["retries"] == {"classify": 1, "planning": 1, "specify": 1, "marks": 1}
        assert turn["answer"] and turn["output"]["text"].startswith("<p>")
        kept = sorted(file["name"] for file in (await client.get(f"{path}/files")).json()["items"] if file["turn_id"])
        assert kept == ["chart.png", "chart.svg", "chart.vl.json", "rows.json"]
