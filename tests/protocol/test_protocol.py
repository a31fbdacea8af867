"""The whole approval protocol on real Postgres, against a model of it; and mutants of it, each of which is found."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.harness import Harness
from tests.protocol.ground import Ground
from tests.protocol.machine import POLICIES, Protocol
from tests.protocol.mutants import MUTANTS, Mutant
from tests.scale import sized

EXAMPLES = sized(800, 80)
STEPS = 40
EXAMPLES_FOR_A_MUTANT = 150
"""Each of them is found before."""
MUTANTS_PLANTED = sized(len(MUTANTS), 3)
"""All of them in full; the others take a minute together."""


REACHED = {
    *(("decide", says) for says in ("approved", "edited", "pending", "rejected", "responded", "403", "410")),
    *(("decide", f"409 {code}") for code in ("already_decided", "already_voted", "claimed", "digest_differs")),
    *(("withdraw", says) for says in ("withdrawn", "403", "409 already_running")),
    *(("run", says) for says in ("acts", "on_hold", "is denied", "is done")),
    *((verb, says) for verb in ("claim", "reassign", "escalate") for says in ("pending", "403")),
    ("read", "expired"),
    ("settle", "settled"),
}
"""What the examples come to at least: else they would show little."""


@pytest.fixture(scope="module")
async def ground(harness: Harness) -> AsyncIterator[Ground]:
    made = await Ground.made(harness, POLICIES)
    yield made
    await made.close()


def settled(examples: int) -> settings:
    """The same examples at every run, none of them made smaller: each step is a transaction or several."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


async def run(ground: Ground, examples: int) -> Counter[tuple[str, str]]:
    """Hypothesis in a thread of its own; the connections stay on this loop. What was answered, how often."""
    answers = Counter[tuple[str, str]]()
    given = {"ground": ground, "loop": asyncio.get_running_loop(), "answers": answers}
    machine = type("OnThisGround", (Protocol,), given)
    await asyncio.to_thread(run_state_machine_as_test, machine, settings=settled(examples))
    return answers


@pytest.mark.sized
@pytest.mark.timeout(600)
async def test_the_program_answers_and_records_what_the_model_says(ground: Ground) -> None:
    answers = await run(ground, EXAMPLES)
    missing = REACHED - answers.keys()
    assert not missing, f"nobody was ever answered {sorted(missing)}"


@pytest.mark.sized
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS[:MUTANTS_PLANTED], ids=lambda mutant: mutant.name)
async def test_a_planted_mistake_is_found(ground: Ground, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises((AssertionError, asyncpg.PostgresError)):
        await run(ground, EXAMPLES_FOR_A_MUTANT)
