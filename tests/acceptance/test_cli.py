"""The command line and the quick start's REST lines against a really running stack."""

import json
import re
import shutil
import signal
import subprocess

from tests.acceptance.command import Command, shell_output
from tests.acceptance.running import ROOT, WORKERS, RunningStack
from tests.acceptance.test_first_steps import blocks


def test_status_reports_every_part_well_and_agents_and_topologies_are_listed(perdure: Command) -> None:
    status = perdure("status", "--json")
    assert status.code == 0 and status.json["well"] and perdure("status").code == 0
    assert {part["name"] for part in status.json["parts"]} >= {"api", "temporal", "postgres", "redis", *WORKERS}
    assert "refunds" in [agent["id"] for agent in perdure("agents", "list", "--json").json["items"]]
    assert "skill_pipeline" in perdure("topologies", "list").out
    assert perdure("topologies", "show", "skill_pipeline").json["nodes"]
    assert perdure("topologies", "show", "skill_pipeline", "--mermaid").out.startswith("flowchart")
    assert perdure("topologies", "show", "nonsense").code == 4


def test_ctrl_c_leaves_the_turn_running_and_says_how_to_come_back(perdure: Command) -> None:
    words = 300  # six seconds of speech: a busy machine must not let it end before the signal
    chat = perdure.start("chat", "refunds", "-m", "/echo " + "word " * words)
    assert chat.stdout is not None
    with chat:
        chat.stdout.read(10)
        chat.send_signal(signal.SIGINT)
        rest = chat.stdout.read()
        assert chat.wait(30) == 130
    turn_id = re.findall(r"turns watch (\S+)", rest)[0]
    watched = [line for line in perdure("turns", "watch", turn_id).out.splitlines() if "title.generated" not in line]
    assert "\n".join(watched).count("word") == words


def test_the_quick_starts_rest_lines_start_a_turn_and_follow_it(stack: RunningStack, perdure: Command) -> None:
    assert shutil.which("curl"), "the quick start's lines need curl"
    (lines,) = [block for block in blocks(ROOT / "docs/quickstart.md") if block[0].startswith("export API=")]
    exported = f"export API={stack.api} TOKEN={stack.token('requester')}"
    conversation, turn, events = lines[1:]
    conversation_id = json.loads(shell_output(f"{exported}; {conversation}"))["id"]
    started = json.loads(shell_output(f"{exported}; {turn.replace('/ID/', f'/{conversation_id}/')}"))
    assert started["status"] == "accepted"
    follow = f"{exported}; {events.replace('/TURN/', '/' + started['turn_id'] + '/')}"
    with subprocess.Popen(["/bin/sh", "-c", follow], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        perdure.pending("Refund order 1001")
        assert perdure("turns", "stop", started["turn_id"]).code == 0
        stream, _ = reading.communicate(timeout=60)
    assert b"event: tool.awaiting_approval" in stream and b"event: done" in stream
