"""The double's side of the port suites: tests/doubles/ports.py, with tools that fail like tests/doubles/target.py."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.activities import Verdicts
from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import VerdictState
from perdure.contracts.errors import Problem
from perdure.contracts.ids import approval_id
from perdure.contracts.memory import FactScope
from perdure.contracts.turns import Usage
from perdure.workflows.turn_segment import Steps
from tests.doubles.desk_variants import KEEPER
from tests.doubles.fake_turn import TURN_ID, Ambiguous, Behaviour, FakeTurn, Refused, Says
from tests.doubles.message_script import Line
from tests.doubles.ports import FakeRun
from tests.doubles.target import app_agents
from tests.ports.contract import Args, Run, T
from tests.ports.ports_workflow import Calls

GONE = Problem(code="agent_version_not_found", message="the version that this turn began with is gone")


def _target(path: str) -> Behaviour:
    """A tool with the modes of tests/doubles/target.py that the suites use."""

    def act(args: Args) -> JsonValue:
        if args.get("mode") == "refuse":
            raise Refused("the desk says no")
        if args.get("mode") == "break":
            raise Ambiguous
        return {"done": path, "number": 0}

    return act


def _too_slow(args: Args) -> JsonValue:
    raise Refused("no answer within 0.3 s")


def _resolve(args: Args) -> tuple[JsonValue, Args]:
    """Finds nothing, and would write a field that its card does not name."""
    return {"status": "not_found", "candidates": []}, {"consecutive_failed_resolves": 1, "status": "completed"}


TOOLS: dict[str, Behaviour] = {
    **{name: _target(f"/{name}") for name in ("look", "pay", "book", "post", "shout")},
    "slow_look": _too_slow,
    "entity_resolve": _resolve,
}


def _cards() -> dict[str, PlanCard]:
    """The cards of the agent `desk`, cut down as a plan has them."""
    harness = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    names = PlanCard.model_fields
    return {card.name: PlanCard.model_validate(card.model_dump(include=set(names))) for card in harness.cards}


@dataclass(frozen=True, slots=True)
class DoubleRun(Run):
    fake: FakeRun

    async def do(self, call: Callable[..., Awaitable[T]], *given: object) -> T:
        return await call(Calls(self.fake.as_ports()), *given)

    async def pause(self) -> None:
        self.fake.open()

    async def wake(self) -> None:
        self.fake.turn.wake_pending = True

    async def wake_stop(self) -> None:
        self.fake.stopped = True


@dataclass(frozen=True, slots=True)
class DoubleTurn:
    fake: FakeTurn

    async def run(self, *, step: int = 0, gone: bool = False) -> DoubleRun:
        return DoubleRun(FakeRun(self.fake, Steps(step), problem=GONE if gone else None))

    async def decide(self, call_id: str, state: VerdictState, comment: str = "", args: Args | None = None) -> None:
        self.fake.decide(call_id, state, comment, args)

    async def answer(self, call_id: str, answer: Args) -> None:
        self.fake.decide(call_id, VerdictState.ANSWERED, args=answer)

    async def forge(self, call_id: str) -> None:
        """The double has no digests: it returns what reading one would."""
        self.fake.book[approval_id(TURN_ID, call_id)].state = VerdictState.UNREADABLE

    async def garble(self, call_id: str) -> None:
        """A read that comes upon this record breaks off."""

        async def broken(read: Verdicts) -> Verdicts:
            met = any(verdict.call_id == call_id for verdict in read.verdicts)
            return Verdicts(problem=Problem(code="unexpected_error", message="unreadable")) if met else read

        self.fake.reading = broken

    async def settle(self, call_id: str, *, happened: bool) -> None:
        self.fake.settle(call_id, happened)

    async def stop(self) -> None:
        self.fake.stopped = True

    async def remember(self, fields: Args) -> None:
        """Sets a field of working memory; None removes it."""
        kept = {**self.fake.working, **fields}
        self.fake.working = {name: value for name, value in kept.items() if value is not None}

    async def dispatched(self, call_id: str) -> int:
        return sum(1 for ran, _ in self.fake.ran if ran == call_id)


async def double_turn(*lines: Line, metadata: Args | None = None, agent_id: str = "desk") -> DoubleTurn:
    says = [Says(line.text, line.calls, Usage(input_tokens=9, output_tokens=1, cost_microusd=10)) for line in lines]
    facts = tuple(FactScope) if agent_id == KEEPER else ()
    return DoubleTurn(FakeTurn(_cards(), TOOLS, says, skill_ids=("plan",), metadata=metadata or {}, facts=facts))
