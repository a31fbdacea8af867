"""Workers killed between the preflight and the navigator: no message is classified twice."""

import pytest

from perdure.client import Client
from tests.acceptance.running import RunningStack
from tests.eventually import wait_until

pytestmark = pytest.mark.soak


def test_a_worker_killed_before_navigator_does_not_run_preflight_again(
    five_tools: RunningStack, client: Client
) -> None:
    turn_id = client.turns.start(client.conversations.create("gather").id, "hold on").turn_id
    wait_until(lambda: "preflight" in client.turns.get(turn_id).nodes, 90, "the preflight never ended")
    assert "navigator" not in client.turns.get(turn_id).nodes, "the first phase is under way"
    five_tools.wait_restarted(five_tools.kill("worker-turns", "worker-llm"))
    events = list(client.turns.events(turn_id))
    turn = client.turns.get(turn_id)
    assert (turn.status, turn.answer) == ("completed", "Done.")
    assert sorted(turn.nodes) == sorted(set(turn.nodes)), "every node ran once"
    asked = [event.call_id for event in events if event.kind == "generation.start"]
    assert asked.count("m1") == 1 and asked.count("m2") == 1, "the two questions of the preflight"
    assert [event.data["stage"] for event in events if event.kind == "stage"].count("preflight") == 1
