"""Code blocks in a stack of real processes: figures of the shipped apps, and a worker killed while a block runs."""

from typing import Any

import pytest

from tests.acceptance.running import RunningStack
from tests.acceptance.turns import Turns, json_of
from tests.eventually import until

SPACING = "Mitchell Ranch 1H: the lease line is 330.00 ft away (at least 467 ft)"


async def block(turns: Turns, turn_id: str) -> dict[str, Any]:
    """The turn's call of a tool, as far as there is one."""
    calls = (await json_of(turns.requester.get(f"/v1/turns/{turn_id}/calls")))["items"]
    return next((call for call in calls if call["kind"] == "tool"), {})


@pytest.mark.parametrize(("agent", "text", "said"), [
    ("rule_37", "Assess spacing for Mitchell Ranch 1H", SPACING),
    ("maker", "Measure 2 by 3 inch", "It has 3870.96 square millimetres."),
    ("maker", "Measure 2 by 3 ell", "It has no area: ValueError: no unit ell"),
])  # fmt: skip
async def test_a_block_computes_what_the_answer_says(stack: RunningStack, agent: str, text: str, said: str) -> None:
    async with Turns(stack, agent) as turns:
        assert said in (await turns.completed(await turns.begin(text)))["answer"]


async def test_a_worker_that_is_killed_while_a_block_runs_loses_nothing(stack: RunningStack) -> None:
    async with Turns(stack, "maker") as turns:
        short = await turns.begin("Turn 1000")
        await turns.completed(short)
        rounds = int(1_000 * 4.0 / (await block(turns, short))["seconds"])
        turn_id = await turns.begin(f"Turn {rounds}")

        async def runs() -> bool:
            return (await block(turns, turn_id)).get("state") == "running"

        await until(runs, 60)
        stack.wait_restarted(stack.kill("worker-turns"))
        turn = await turns.completed(turn_id)
        assert turn["answer"] == f"It was turned {rounds} times."
        assert len([each for each in await turns.messages(turn) if each["role"] == "tool"]) <= 1
        kinds = [each.kind for each in await turns.events(turn_id)]
        assert kinds.count("tool.executing") == 2 and kinds.count("tool.result") == 1
