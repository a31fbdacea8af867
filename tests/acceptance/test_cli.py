"""The command line against a really running stack."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from perdure.cli.chat import VOID
from tests.acceptance.command import Command, Ended
from tests.acceptance.running import ROOT, RunningStack


@pytest.fixture(scope="module")
def perdure(stack: RunningStack) -> Command:
    return Command(stack.home)


def decided(perdure: Command, prompt: str, *words: str, **environ: str) -> tuple[Ended, Ended]:
    """A chat that pauses, and the decision on it: how the decision ended, and then the chat."""
    chat = perdure.start("chat", "refunds", "-m", prompt)
    approval = perdure.pending(prompt)
    decision = perdure("approvals", words[0], approval["id"], *words[1:], **environ)
    out, err = chat.communicate(timeout=60)
    return decision, Ended(chat.returncode, out, err)


def test_status_finds_every_part_well(perdure: Command) -> None:
    ended = perdure("status", "--json")
    assert ended.code == 0
    assert {part["name"] for part in ended.json["parts"]} >= {
        "api",
        "temporal",
        "postgres",
        "redis",
        "worker-turns",
        "worker-llm",
        "worker-relay",
    }
    assert ended.json["well"] and perdure("status").code == 0


def test_agents_and_topologies_are_listed_and_drawn(perdure: Command) -> None:
    assert "refunds" in [agent["id"] for agent in perdure("agents", "list", "--json").json["items"]]
    assert "skill_pipeline" in perdure("topologies", "list").out
    assert perdure("topologies", "show", "skill_pipeline").json["nodes"]
    assert perdure("topologies", "show", "skill_pipeline", "--mermaid").out.startswith("flowchart")
    assert perdure("topologies", "show", "nonsense").code == 4


def test_an_echo_is_streamed_and_answered(perdure: Command) -> None:
    ended = perdure("chat", "refunds", "-m", "/echo one two three")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "one two three"


def test_a_pause_shows_the_exact_call_and_the_command_that_decides_it(perdure: Command) -> None:
    decision, chat = decided(perdure, "Refund order 301", "approve", "--comment", "fine")
    assert (decision.code, chat.code) == (0, 0)
    assert '"order": "301"' in decision.out and '"order": "301"' in chat.out
    approval_id = decision.out.splitlines()[-1].split("(")[1].rstrip(")")
    assert f"approvals approve {approval_id}" in chat.out
    assert "fine" in chat.out and "Order 301 was refunded" in chat.out
    again = perdure("approvals", "approve", approval_id)
    assert (again.code, "reviewer" in again.err) == (5, True)
    history = perdure("approvals", "show", approval_id, "--json").json["history"]
    assert [entry["what"] for entry in history][:2] == ["approval.opened", "approval.decided"]


def test_arguments_that_do_not_fit_are_refused_and_the_call_still_waits(perdure: Command) -> None:
    chat = perdure.start("chat", "refunds", "-m", "Refund order 304")
    approval = perdure.pending("Refund order 304")
    wrong = perdure("approvals", "edit", approval["id"], "--args", '{"order": "not a number"}')
    assert (wrong.code, "args_invalid" in wrong.err) == (2, True)
    other = perdure("approvals", "approve", approval["id"], "--digest", "0" * 64)
    assert (other.code, "digest_differs" in other.err) == (1, True)
    own = perdure("approvals", "approve", approval["id"], "--as", "requester")
    assert own.code == 1
    answered = perdure("approvals", "respond", approval["id"], "ask the customer first")
    assert answered.code == 0
    assert "ask the customer first" in chat.communicate(timeout=60)[0]


def test_a_paused_turn_is_stopped(perdure: Command) -> None:
    chat = perdure.start("chat", "refunds", "-m", "Refund order 305")
    turn_id = perdure.pending("Refund order 305")["turn_id"]
    assert perdure("turns", "stop", turn_id).code == 0
    out, _ = chat.communicate(timeout=60)
    assert chat.returncode == 1 and "stopped" in out
    assert perdure("turns", "show", turn_id, "--json").json["status"] == "stopped"


def test_a_finished_turn_can_be_watched_again_and_resumed_anywhere(perdure: Command) -> None:
    perdure("chat", "refunds", "-m", "/echo once more")
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
        shown = (begun + chat.stdout.read()).split(f"\n{VOID}\n")[-1]
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


def test_a_conversation_in_a_terminal_ends_with_the_input(stack: RunningStack, perdure: Command) -> None:
    leader, follower = pty.openpty()
    chat = subprocess.Popen(
        [sys.executable, "-m", "perdure", "chat", "refunds"],
        cwd=ROOT,
        env={**perdure.environ, "TERM": "xterm"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    seen = _until(leader, "", r"> $")
    os.write(leader, b"/echo hello terminal\n")
    seen = _until(leader, seen, r"completed .*> $")
    os.write(leader, b"\x04")
    seen = _until(leader, seen, r"--conversation \S+\s")
    assert chat.wait(30) == 0
    os.close(leader)
    assert "\nhello terminal\n" in seen.replace("\r", "")


def _until(descriptor: int, seen: str, pattern: str) -> str:
    """All that was written so far, once it ends as it should."""
    deadline = time.monotonic() + 60
    while not re.search(pattern, re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", seen), re.DOTALL):
        assert select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0], seen
        seen += os.read(descriptor, 4096).decode("utf-8", "replace")
    return seen


def test_a_second_stack_on_the_same_folder_is_refused_with_the_address_of_the_first(
    stack: RunningStack, perdure: Command
) -> None:
    ended = perdure.process("up")
    assert ended.code == 2 and stack.api in ended.err
