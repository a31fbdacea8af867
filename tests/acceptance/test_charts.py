"""The chart builder on a really running stack, asked from the command line and killed while it waits."""

import json

from perdure import Client
from tests.acceptance.command import Command
from tests.acceptance.running import RunningStack

AGENT = "chart_builder"


def test_a_command_answers_a_question_after_a_restart_of_the_worker(stack: RunningStack, perdure: Command) -> None:
    with Client(stack.api, stack.token("requester")) as client:
        conversation = client.conversations.create(AGENT)
        client.files.upload(conversation.id, "sales.csv", b"region,sales\nNorth,30\nSouth,10\n")
        turn = client.turns.start(conversation.id, "Plot something")
        assert client.turns.wait(turn.turn_id, timeout_seconds=60).status == "awaiting_answer"
        assert perdure("turns", "answer", turn.turn_id).code == 0
        stack.wait_restarted(stack.kill("worker-turns"))
        assert perdure("turns", "answer", turn.turn_id, "sales by region").code == 0
        ended = client.turns.wait(turn.turn_id, through_pauses=True, timeout_seconds=120)
        assert ended.status == "completed" and ended.output is not None
        picture = client.files.read(str(ended.output["pictures"]["png"]).rpartition("/")[2])
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    shown = json.loads(perdure("turns", "show", turn.turn_id, "--json").out)
    assert shown["nodes"].count("planning_transformation_node") == 2
    assert perdure("turns", "answer", turn.turn_id, "again").code == 2, "it asks nothing any more"
