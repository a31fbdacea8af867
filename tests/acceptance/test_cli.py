"""The command line against a really running stack."""

import json
import re
import signal

from perdure.cli.chat import VOID_NOTICE
from tests.acceptance.command import Command, Terminal
from tests.acceptance.running import WORKERS, RunningStack


def test_status_reports_every_part_well_and_agents_and_topologies_are_listed(perdure: Command) -> None:
    status = perdure("status", "--json")
    assert status.code == 0 and status.json["well"] and perdure("status").code == 0
    assert {part["name"] for part in status.json["parts"]} >= {"api", "temporal", "postgres", "redis", *WORKERS}
    assert "refunds" in [agent["id"] for agent in perdure("agents", "list", "--json").json["items"]]
    assert "skill_pipeline" in perdure("topologies", "list").out
    assert perdure("topologies", "show", "skill_pipeline").json["nodes"]
    assert perdure("topologies", "show", "skill_pipeline", "--mermaid").out.startswith("flowchart")
    assert perdure("topologies", "show", "nonsense").code == 4


def test_a_pause_shows_the_exact_call_and_the_command_that_decides_it(perdure: Command) -> None:
    asking = perdure.start("chat", "refunds", "-m", "Refund order 301")
    approval_id = perdure.pending("Refund order 301")["id"]
    decision = perdure("approvals", "approve", approval_id, "--comment", "fine")
    chat = asking.ended()
    assert (decision.code, chat.code) == (0, 0)
    assert '"order": "301"' in decision.out and '"order": "301"' in chat.out
    assert f"approvals approve {approval_id}" in chat.out
    assert "fine" in chat.out and "Order 301 was refunded" in chat.out
    again = perdure("approvals", "approve", approval_id)
    assert (again.code, "reviewer" in again.err) == (5, True)
    history = perdure("approvals", "show", approval_id, "--json").json["history"]
    assert [entry["what"] for entry in history][:2] == ["approval.opened", "approval.decided"]


def test_arguments_that_violate_the_schema_are_refused_and_the_call_stays_pending(perdure: Command) -> None:
    chat = perdure.start("chat", "refunds", "-m", "Refund order 304")
    approval = perdure.pending("Refund order 304")
    wrong = perdure("approvals", "edit", approval["id"], "--args", '{"order": "not a number"}')
    assert (wrong.code, "args_invalid" in wrong.err) == (2, True)
    other = perdure("approvals", "approve", approval["id"], "--digest", "0" * 64)
    assert (other.code, "digest_differs" in other.err) == (1, True)
    assert perdure("approvals", "approve", approval["id"], "--as", "requester").code == 1
    assert perdure("approvals", "respond", approval["id"], "ask the customer first").code == 0
    assert "ask the customer first" in chat.ended().out


def test_a_paused_turn_is_stopped(perdure: Command) -> None:
    chat = perdure.start("chat", "refunds", "-m", "Refund order 305")
    turn_id = perdure.pending("Refund order 305")["turn_id"]
    assert perdure("turns", "stop", turn_id).code == 0
    ended = chat.ended()
    assert ended.code == 1 and "stopped" in ended.out
    assert perdure("turns", "show", turn_id, "--json").json["status"] == "stopped"


def test_a_finished_turn_can_be_watched_again_and_resumed_anywhere(perdure: Command) -> None:
    chat = perdure("chat", "refunds", "-m", "/echo once more")
    assert (chat.code, chat.out.splitlines()[0], chat.err) == (0, "once more", "")
    turn_id = perdure("turns", "list", "--limit", "1", "--json").json["items"][0]["turn_id"]
    events = [json.loads(line) for line in perdure("turns", "watch", turn_id, "--json").out.splitlines()]
    assert [event["event"] for event in events][-2:] == ["done", "workflow_complete"]
    middle = len(events) // 2
    rest = perdure("turns", "watch", turn_id, "--json", "--after", events[middle]["id"]).out.splitlines()
    assert [json.loads(line)["event"] for line in rest] == [event["event"] for event in events[middle + 1 :]]
    assert perdure("turns", "watch", turn_id, "--json", "--after", events[-2]["id"]).out == ""


def test_a_new_user_talks_with_a_token_of_their_own_and_sees_only_their_turns(perdure: Command) -> None:
    token = perdure("users", "add", "bob", "--json").json["token"]
    assert perdure("chat", "refunds", "-m", "/echo hi", PERDURE_TOKEN=token).code == 0
    turns = perdure("turns", "list", "--json", PERDURE_TOKEN=token).json["items"]
    assert [turn["answer"] for turn in turns] == ["hi"]
    assert perdure("users", "list", PERDURE_TOKEN=token).code == 1
    assert perdure("users", "role", "bob", "requester", "reviewer").code == 0
    assert "bob" in perdure("users", "list").out
    assert perdure("turns", "list", PERDURE_TOKEN="wrong").code == 1


def test_a_chat_outlives_the_death_of_the_api(stack: RunningStack, perdure: Command) -> None:
    words = " ".join(f"w{number}" for number in range(150))
    chat = perdure.start("chat", "refunds", "-m", f"/echo {words}")
    assert chat.stdout is not None and chat.stderr is not None
    with chat:
        begun = chat.stdout.read(20)
        stack.wait_restarted(stack.kill("api"))
        shown = (begun + chat.stdout.read()).split(f"\n{VOID_NOTICE}\n")[-1]
        assert (chat.stderr.read(), chat.wait(30)) == ("", 0)
    assert shown.splitlines()[0].split() == words.split()


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


def test_a_conversation_in_a_terminal_ends_with_the_input(perdure: Command) -> None:
    chat = Terminal(perdure, "chat", "refunds")
    chat.until(r"> $")
    chat.type("/echo hello terminal\n")
    chat.until(r"completed .*> $")
    chat.type("\x04")
    seen = chat.until(r"--conversation \S+\s")
    assert chat.left() == 0
    assert "\nhello terminal\n" in seen
