"""The operations agent on a really running stack: its three texts, over the MCP server that the stack starts."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.examples.ops.cluster.faults import Fault, Faults, Kind
from perdure.examples.ops.cluster.state import State
from tests.acceptance.command import Command, Ended
from tests.acceptance.running import RunningStack

RESTART = "k8s_deployment_restart"


@pytest.fixture(scope="module")
def perdure(stack: RunningStack) -> Command:
    return Command(stack.home)


def folder(stack: RunningStack) -> Path:
    """Where the stack's cluster is kept."""
    return stack.home / "mcp" / "ops-cluster"


def restarted(stack: RunningStack) -> list[str]:
    return [effect["args"]["name"] for effect in State(folder(stack) / "cluster.json").effects(RESTART)]


def waiting(perdure: Command, count: int) -> list[dict[str, Any]]:
    """The approvals that wait for the agent, once there are so many."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        items: list[dict[str, Any]] = perdure("approvals", "list", "--json").json["items"]
        found = [item for item in items if item["tool"].endswith(RESTART)]
        if len(found) == count:
            return found
        time.sleep(0.2)
    raise AssertionError(f"never {count} approvals")


def ended(chat: subprocess.Popen[str]) -> Ended:
    out, err = chat.communicate(timeout=90)
    return Ended(chat.returncode, out, err)


def test_a_question_is_answered_and_nobody_is_asked(perdure: Command) -> None:
    chat = perdure("chat", "ops", "-m", "Show pods in prod")
    assert (chat.code, chat.err) == (0, "")
    assert "web" in chat.out and "api" in chat.out


def test_a_change_waits_for_its_approval_and_is_made_once(perdure: Command, stack: RunningStack) -> None:
    before = restarted(stack)
    chat = perdure.start("chat", "ops", "-m", "Restart deployment web in prod")
    (approval,) = waiting(perdure, 1)
    assert restarted(stack) == before
    assert perdure("approvals", "approve", approval["id"]).code == 0
    done = ended(chat)
    assert done.code == 0, done.err
    assert restarted(stack) == [*before, "web"]


def test_two_changes_wait_for_two_approvals_and_each_is_made_once_though_the_worker_is_killed(
    perdure: Command, stack: RunningStack
) -> None:
    before = restarted(stack)
    chat = perdure.start("chat", "ops", "-m", "Restart web and api in prod")
    both = waiting(perdure, 2)
    Faults(folder(stack) / "faults.json").arm(Fault(Kind.HANG, RESTART, when="after", seconds=60))
    assert perdure("approvals", "approve", both[0]["id"]).code == 0
    deadline = time.monotonic() + 90
    while restarted(stack) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(restarted(stack)) == len(before) + 1, "the effect is made, and its answer hangs"
    stack.kill("worker-turns")
    assert perdure("approvals", "approve", both[1]["id"]).code == 0
    done = ended(chat)
    assert done.code == 0, done.err
    assert sorted(restarted(stack)[len(before) :]) == ["api", "web"]
