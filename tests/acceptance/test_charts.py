"""The chart builder on a really running stack: killed while it waits, asked from the command line."""

import json
from pathlib import Path

from perdure import Client
from perdure.sdk.tables.client_side import ClientTable, finish
from tests.acceptance.command import Command
from tests.acceptance.running import WORKERS, RunningStack

AGENT = "chart_builder"


def test_a_turn_waiting_for_its_client_survives_the_death_of_every_worker(stack: RunningStack, tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("region,sales\nNorth,30\nSouth,10\nNorth,5\n")
    kept = ClientTable.read(path)
    with Client(stack.api, stack.token("requester")) as perdure:
        conversation = perdure.conversations.create(AGENT)
        turn = perdure.turns.start(conversation.id, "Plot sales by region", metadata={"client_table": kept.describe()})
        waiting = perdure.turns.wait(turn.turn_id, timeout_seconds=60)
        assert waiting.waiting_for is not None and waiting.waiting_for.kind == "client_run"
        killed = stack.kill(*WORKERS)
        made = finish(perdure, turn.turn_id, kept, timeout_seconds=120)
        stack.wait_restarted(killed)
    assert made.turn.status == "completed", made.turn.error
    assert made.specification is not None
    assert made.specification["data"]["values"] == [{"region": "North", "sales": 35}, {"region": "South", "sales": 10}]
    assert made.turn.nodes.count("entry_classif_message_type") == 1, "nothing was asked twice"
    assert made.png()[:8] == b"\x89PNG\r\n\x1a\n"


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
