"""Workers killed between the preflight and the navigator: nobody is classified twice (S1-11, S1-15)."""

import time

import httpx
import pytest

from tests.acceptance.assembly.conftest import Talk
from tests.acceptance.running import RunningStack

pytestmark = pytest.mark.soak


def test_a_worker_killed_between_preflight_and_navigator_does_not_run_preflight_again(
    gathering: RunningStack, client: httpx.Client
) -> None:
    talk = Talk(client)
    turn_id = talk.begin("hold on")
    deadline = time.monotonic() + 90
    while "preflight" not in talk.read(turn_id)["nodes"] and time.monotonic() < deadline:
        time.sleep(0.02)
    nodes = talk.read(turn_id)["nodes"]
    assert "preflight" in nodes and "navigator" not in nodes, "the first phase is under way"
    killed = gathering.kill("worker-turns", "worker-llm")
    gathering.wait_restarted(killed)
    events = talk.events(turn_id)
    turn = talk.read(turn_id)
    assert (turn["status"], turn["answer"]) == ("completed", "Done.")
    assert sorted(turn["nodes"]) == sorted(set(turn["nodes"])), "every node ran once"
    asked = [data["call_id"] for kind, data in events if kind == "generation.start"]
    assert asked.count("m1") == 1 and asked.count("m2") == 1, "the two questions of the preflight"
    assert [data["stage"] for kind, data in events if kind == "stage"].count("preflight") == 1
