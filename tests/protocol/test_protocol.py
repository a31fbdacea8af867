"""The whole approval protocol on real Postgres, against a model of it; and mutants of it, each of which is found."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import perdure.core.approvals.assignments
import perdure.core.approvals.decisions
import perdure.store.approvals.decisions as cast
import perdure.store.approvals.review
import perdure.store.calls.tool_calls
from tests.harness import Harness
from tests.protocol.model import ADMIN, REQUESTER, Call, Model, Policy, Refused, Request
from tests.protocol.real_system import Crash, RealSystem, Seen
from tests.scale import sized

T = TypeVar("T")
PEOPLE = {
    REQUESTER: frozenset({"requester", "reviewer"}),
    **{name: frozenset({"reviewer"}) for name in ("ann", "bob", "cem", "dot")},
    "eve": frozenset({"requester"}),
    ADMIN: frozenset({"admin"}),
}
POLICIES = {
    "plain": (Policy("plain"), Policy("plain", hold_seconds=9_500)),
    "two": (
        Policy("two", quorum=2, escalates=True, fallback="dot", expires_seconds=8_500, fallback_seconds=3_500),
        Policy("two", quorum=3, escalates=True, expires_seconds=8_500),
    ),
    "three": (Policy("three", quorum=3, hold_seconds=2_500), Policy("three", quorum=2, hold_seconds=2_500)),
    "named": (
        Policy("named", quorum=2, reviewers=("ann", "bob"), fallback="cem"),
        Policy("named", quorum=2, reviewers=("ann", "bob", "cem")),
    ),
    "held": (
        Policy("held", hold_seconds=2_500, fallback="eve", escalates=True, expires_seconds=8_500),
        Policy("held", escalates=True, expires_seconds=8_500),
    ),
    "own": (Policy("own", allow_self=True, quorum=2), Policy("own", quorum=2)),
}
NAMES = tuple(sorted(PEOPLE))
COMPARED = [name for name in Seen.__slots__ if name != "senders"]
MOST_CALLS = 6
"""Another is opened where no call waits any more."""
MOST_STATEMENTS = 12
"""No request has more: a crash beyond its last one comes just before the commit."""
_OFTEN = {"approve": 7, "decide": 6, "decide_anyhow": 4, "hand_on": 9, "change_people": 4}
WEIGHTS = _OFTEN | {"time": 7, "run": 6, "report": 6, "rare": 2, "again": 5}
"""One rule chooses by these: of several, Hypothesis leaves some out of each example, and all are needed in most."""


@dataclass(frozen=True, slots=True)
class Roll:
    """The random values of a step."""

    kind: str
    pick: int
    other: int
    call: int
    decision: str
    verb: int
    seconds: int
    text: int
    amount: int | None
    comment: str
    crash: int | None

    @classmethod
    def by(cls, chance: random.Random) -> "Roll":
        """Draws the next step. Drawn from Hypothesis, most fields would equal those of the last step."""
        return cls(
            kind=chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], pick=chance.randrange(60),
            other=chance.randrange(60), call=chance.randrange(60),
            decision=chance.choice(["approve", "approve", "edit", "reject", "respond"]), verb=chance.randrange(60),
            seconds=chance.choice([1_000, 1_000, 3_000, 7_000, 21_000]), text=chance.randrange(3),
            amount=chance.choice([None, None, 0, 3]), comment=chance.choice(["because", ""]),
            crash=chance.choice([None, None, None, None, chance.randrange(MOST_STATEMENTS + 1)]),
        )  # fmt: skip


class Protocol(RuleBasedStateMachine):
    """One conversation of the model with the program; a subclass gives it its system and the system's loop."""

    system: RealSystem
    loop: asyncio.AbstractEventLoop
    answers: Counter[tuple[str, str]]
    """The number of answers by verb and answer, over all runs of the subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(PEOPLE, POLICIES)
        self.chance = random.Random()
        self.sent: list[Request] = []
        self.attempts = 0

    def await_(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done where the system's connections live."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def send(self, request: Request, crash_at: int | None = None) -> str:
        """Send it to both. One that breaks off changes nothing, and may be sent again."""
        self.sent.append(request)
        if crash_at is not None:
            try:
                self.await_(self.system.perform(request, crash_at))
            except Crash:
                return "crashed"
            return "refused before it crashed"
        try:
            wanted = self.model.perform(request)
        except Refused as refused:
            wanted = str(refused)
        said = self.await_(self.system.perform(request))
        assert said == wanted, f"{request}: the program says {said}, it should be {wanted}"
        self.answers[request.verb, said.rstrip("0123456789 ") if request.verb == "run" else said] += 1
        return said

    @initialize(seed=st.integers(0, 2**40))
    def begin(self, seed: int) -> None:
        self.await_(self.system.begin(PEOPLE))
        self.chance.seed(seed)
        for name in self.chance.choices(sorted(POLICIES), k=3):
            self.open(name)

    def open(self, name: str) -> None:
        self.model.open(name)
        self.await_(self.system.open(name))

    @rule()
    def step(self) -> None:
        if len(self.model.calls) < MOST_CALLS and all(call.status != "pending" for call in self.model.calls):
            self.open(self.chance.choice(sorted(POLICIES)))
        roll = Roll.by(self.chance)
        waiting = [number for number, call in enumerate(self.model.calls) if call.status == "pending"]
        most = waiting if waiting and roll.call % 4 else range(len(self.model.calls))
        request = getattr(self, f"_{roll.kind}")(roll, one(most, roll.pick // 7))
        if request is not None:
            note(f"  {request}, crash at {roll.crash}: {self.send(request, roll.crash)}")

    def _approve(self, roll: Roll, number: int) -> Request:
        return self._decide(replace(roll, decision="approve"), number)

    def _decide(self, roll: Roll, number: int) -> Request:
        """A valid decision of a reviewer who can still decide, if there is one."""
        call = self.model.calls[number]
        voted = {vote.by for vote in call.votes}
        able = [name for name in NAMES if name not in voted and self.model.owners(call, name)] or NAMES
        amount = len(self.sent) + 8 if roll.decision == "edit" else None
        return Request("decide", able[roll.pick % len(able)], number, roll.decision, call.text, amount, "because")

    def _decide_anyhow(self, roll: Roll, number: int) -> Request:
        return Request("decide", one(NAMES, roll.pick), number, roll.decision, roll.text, roll.amount, roll.comment)

    def _hand_on(self, roll: Roll, number: int) -> Request:
        verb = one(("claim", "claim", "release", "reassign", "reassign", "escalate", "withdraw", "withdraw"), roll.verb)
        return Request(verb, one(NAMES, roll.pick), number, comment="no", to=one(NAMES, roll.other), seconds=2_500)

    def _change_people(self, roll: Roll, number: int) -> Request | None:
        verb = one(("delegate", "delegate", "set_role"), roll.verb)
        user, to = one(NAMES, roll.pick), one(NAMES, roll.other)
        return Request(verb, user, to=to, seconds=4_500) if user != to else None

    def _time(self, roll: Roll, number: int) -> Request:
        verb = one(("pass_time", "pass_time", "read", "reconcile", "reconcile"), roll.verb)
        return Request(verb, call=number, seconds=roll.seconds)

    def _run(self, roll: Roll, number: int) -> Request | None:
        """A decided call: no turn of these tests reserves another."""
        decided = [place for place, call in enumerate(self.model.calls) if call.status != "pending"]
        self.attempts += 1
        return Request("run", call=one(decided, roll.pick), attempt=self.attempts) if decided else None

    def _report(self, roll: Roll, number: int) -> Request | None:
        """A worker's report about its current or former call; after giving it back it reports nothing."""
        begun = [place for place, call in enumerate(self.model.calls) if call.epoch]
        if not begun:
            return None
        number, verb = one(begun, roll.pick), one(("settle", "give_back"), roll.verb)
        call, back = self.model.calls[number], one((0, 0, 1), roll.other)
        if call.epoch == back or (verb == "settle" and call.ledger == "planned" and not back):
            return None
        return Request(verb, call=number, epoch=call.epoch - back)

    def _rare(self, roll: Roll, number: int) -> Request:
        """Workers run undecided calls, too."""
        self.attempts += 1
        verb = one(("change_policy", "change_policy", "change_policy", "end", "tamper", "run"), roll.verb)
        return Request(verb, call=number, attempt=self.attempts)

    def _again(self, roll: Roll, number: int) -> Request | None:
        """Something that was sent before, whatever came of it."""
        request = self.sent[-1 - roll.pick % len(self.sent)] if self.sent else Request("reconcile")
        gave_back = request.verb == "settle" and self.model.calls[request.call].ledger == "planned"
        return None if gave_back or request.verb in ("pass_time", "set_role", "change_policy") else request

    @invariant()
    def the_records_hold(self) -> None:
        """The records of the model, and invariants that hold in any case."""
        if not self.model.calls:
            return
        for number, (call, seen) in enumerate(
            zip(self.model.calls, self.await_(self.system.read_calls()), strict=True)
        ):
            wanted = _seen(call, self.model.now)
            other = [name for name in COMPARED if getattr(seen, name) != getattr(wanted, name)]
            told = ", ".join(f"{name} is {getattr(seen, name)}, not {getattr(wanted, name)}" for name in other)
            assert not other, f"call {number} ({call.policy.name}): {told}"
            assert seen.trail.get("approval.decided", 0) <= 1, "decided at most once"
            in_the_requesters = [vote for vote in seen.votes if REQUESTER in vote]
            assert not in_the_requesters or call.policy.allow_self, "never by the requester, nor in their place"
            may_send = 1 if call.ledger == "reserved" and not call.ended else 0
            assert len(seen.senders) <= may_send, f"workers {seen.senders} may send"


def one(of: Sequence[T], number: int) -> T:
    return of[number % len(of)]


def _seen(call: Call, now: int) -> Seen:
    same = ("status", "version", "role", "reviewers", "assignee", "escalated", "ledger", "epoch")
    return Seen(
        **{name: getattr(call, name) for name in same},
        claimer=call.claim[0] if call.claim[1] > now else "",
        votes=tuple((vote.by, vote.owner) for vote in call.votes),
        trail=dict(call.trail),
    )


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
