"""Code blocks in a stack of real processes: figures of the shipped apps."""

import pytest

from tests.acceptance.running import RunningStack
from tests.acceptance.turns import Turns

SPACING = "Mitchell Ranch 1H: the lease line is 330.00 ft away (at least 467 ft)"


@pytest.mark.parametrize(("agent", "text", "said"), [
    ("rule_37", "Assess spacing for Mitchell Ranch 1H", SPACING),
    ("maker", "Measure 2 by 3 inch", "It has 3870.96 square millimetres."),
    ("maker", "Measure 2 by 3 ell", "It has no area: ValueError: no unit ell"),
])  # fmt: skip
async def test_a_block_computes_what_the_answer_says(stack: RunningStack, agent: str, text: str, said: str) -> None:
    async with Turns(stack, agent) as turns:
        assert said in (await turns.completed(await turns.begin(text)))["answer"]
