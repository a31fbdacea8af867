"""The operations agent on a really running stack: its three texts, over the MCP server that the stack starts."""

from pathlib import Path

from perdure.examples.ops.cluster.faults import Fault, FaultKind, Faults
from perdure.examples.ops.cluster.state import State
from tests.acceptance.command import Command
from tests.acceptance.running import RunningStack
from tests.eventually import wait_until

RESTART = "k8s_deployment_restart"


def folder(stack: RunningStack) -> Path:
    """Where the stack's cluster is kept."""
    return stack.home / "mcp" / "ops-cluster"


def restarted(stack: RunningStack) -> list[str]:
    return [effect["args"]["name"] for effect in State(folder(stack) / "cluster.json").effects(RESTART)]


def test_two_approved_changes_are_made_once_though_the_worker_is_killed(perdure: Command, stack: RunningStack) -> None:
    before = restarted(stack)
    chat = perdure.start("chat", "ops", "-m", "Restart web and api in prod")
    both = perdure.waiting("Restart web and api in prod", 2)
    Faults(folder(stack) / "faults.json").arm(Fault(FaultKind.HANG, RESTART, when="after", seconds=60))
    assert perdure("approvals", "approve", both[0]["id"]).code == 0
    wait_until(lambda: restarted(stack) != before, 90, "the effect was never made")
    assert len(restarted(stack)) == len(before) + 1, "the effect is made, and its answer hangs"
    stack.kill("worker-turns")
    assert perdure("approvals", "approve", both[1]["id"]).code == 0
    done = chat.wait_ended()
    assert done.code == 0, done.err
    assert sorted(restarted(stack)[len(before) :]) == ["api", "web"]
