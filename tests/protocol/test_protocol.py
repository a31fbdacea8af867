"""The whole approval protocol on real Postgres, against a model of it; and mutants of it, each of which is found."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import ModuleType

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import perdure.core.approvals.assignments
import perdure.core.approvals.decisions
import perdure.store.approvals.decisions as cast
import perdure.store.approvals.review
import perdure.store.calls.tool_calls
from tests.harness import Harness
from tests.protocol.machine import POLICIES, Protocol
from tests.protocol.real_system import RealSystem
from tests.scale import sized


@dataclass(frozen=True, slots=True)
class Mutant:
    """A possible mistake in the protocol, to be planted in the program under test."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]


def _text(name: str, module: ModuleType, constant: str, old: str, new: str) -> Mutant:
    """Another text in a statement; planting it fails where the statement does not say `old` any more."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        statement: str = getattr(module, constant)
        assert old in statement, f"{module.__name__}.{constant} does not say {old!r}: write the mutant anew"
        patch.setattr(module, constant, statement.replace(old, new))

    return Mutant(name, plant)


def _value(name: str, module: ModuleType, attribute: str, value: object) -> Mutant:
    return Mutant(name, lambda patch: patch.setattr(module, attribute, value))


MUTANTS = [
    _text("an old worker settles", perdure.store.calls.tool_calls, "_SETTLE", "AND epoch = $3", ""),
    _text("an edit keeps the votes before it", cast, "_COUNT_VOTE", "v.voided_at IS NULL AND $7 = 'edit'", "false"),
    _value("a claim keeps nobody away", perdure.core.approvals.decisions, "held_by_another", lambda *_: None),
    _text("a hold is not kept", cast, "_COUNT_VOTE", "$9::int > 0 AND", "false AND"),
    _value("what has begun may be withdrawn", perdure.core.approvals.assignments, "_BEGUN", frozenset()),
    _value("somebody counts twice", perdure.core.approvals.decisions, "has_voted", lambda *_: False),
    _text("an escalation is not the only one", perdure.store.approvals.review, "_ONE", "AND escalated_at IS NULL", ""),
]
"""The mistakes that are found soonest come first."""
EXAMPLES = sized(800, 60)
STEPS = 40
EXAMPLES_FOR_A_MUTANT = 150
"""Each of them is found before."""
MUTANTS_PLANTED = sized(len(MUTANTS), 3)
"""The mistakes to run in full; the others take a minute together."""
REACHED = {
    *(("decide", says) for says in ("approved", "edited", "pending", "rejected", "responded", "403", "410")),
    *(("decide", f"409 {code}") for code in ("already_decided", "already_voted", "claimed", "digest_differs")),
    *(("withdraw", says) for says in ("withdrawn", "403", "409 already_running")),
    *(("run", says) for says in ("acts", "on_hold", "is denied", "is done")),
    *((verb, says) for verb in ("claim", "reassign", "escalate") for says in ("pending", "403")),
    ("read", "expired"),
    ("settle", "settled"),
}
"""The minimum of answers in the examples; with fewer they would show little."""


@pytest.fixture(scope="module")
async def program(harness: Harness) -> AsyncIterator[RealSystem]:
    made = await RealSystem.create(harness, POLICIES)
    yield made
    await made.close()


def settled(examples: int) -> settings:
    """Settings: the same examples at every run, without shrinking, since each step is a transaction or several."""
    return settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, derandomize=True, database=None,
        report_multiple_bugs=False, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


async def run(program: RealSystem, examples: int) -> Counter[tuple[str, str]]:
    """Runs Hypothesis in a separate thread; connections stay on this loop. Returns the number of each answer."""
    answers = Counter[tuple[str, str]]()
    given = {"system": program, "loop": asyncio.get_running_loop(), "answers": answers}
    machine = type("OnThisGround", (Protocol,), given)
    await asyncio.to_thread(run_state_machine_as_test, machine, settings=settled(examples))
    return answers


@pytest.mark.sized
@pytest.mark.timeout(600)
async def test_the_program_answers_and_records_what_the_reference_model_predicts(program: RealSystem) -> None:
    missing = REACHED - (await run(program, EXAMPLES)).keys()
    assert not missing, f"no caller was ever answered {sorted(missing)}"


@pytest.mark.sized
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS[:MUTANTS_PLANTED], ids=lambda mutant: mutant.name)
async def test_a_planted_mistake_is_found(program: RealSystem, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises((AssertionError, asyncpg.PostgresError)):
        await run(program, EXAMPLES_FOR_A_MUTANT)
