"""The numbers of steps: branches count apart, so that no pace of theirs changes which call has which name."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.activities import MODEL_COMPLETE
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.messages import Patch
from perdure.graph.compile import compile_topology
from perdure.graph.ports import Ports
from perdure.graph.spec import FRESH, NodeSpec, State, Sub
from perdure.workflows.turn_segment import Steps
from tests.topologies.stand_ins import scripted_ports
from tests.unit.graph.sketches import sketch

Pace = Callable[[str], Awaitable[None]]


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 9))
def test_each_branch_has_its_own_step_numbers_and_none_is_used_twice(order: list[int], last: int) -> None:
    run = Steps(last)
    first, second = run.for_branches(2)
    counters = (second, *first.for_branches(2))
    taken: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for each in order:
        taken[each % 3].append(counters[each % 3].next_number())
    alone = Steps(last).for_branches(2)
    again = (alone[1], *alone[0].for_branches(2))
    for place, numbers in taken.items():
        assert numbers == [again[place].next_number() for _ in numbers], "as if no other branch had run"
    everything = [number for numbers in taken.values() for number in numbers]
    assert len(set(everything)) == len(everything) and all(number > last for number in everything)
    assert run.last == max(everything, default=last) and run.next_number() == run.last > max(everything, default=last)


def test_a_counter_continues_from_its_last_value() -> None:
    steps = Steps()
    assert [steps.next_number(), steps.next_number()] == [1, 2]
    steps.advance(7)
    steps.advance(3)
    assert steps.next_number() == 8


@dataclass(frozen=True, slots=True)
class Recorder:
    """A model port that tells who called under which number."""

    steps: Steps
    calls: dict[str, list[int]]
    pace: Pace

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        self.calls.setdefault(ask.stage, []).append(self.steps.next_number())
        await self.pace(ask.stage)
        return ModelReply()


@dataclass(frozen=True, slots=True)
class Caller:
    """A node that calls so many times."""

    id: str
    times: int

    async def __call__(self, state: State, ports: Ports) -> Patch:
        for _ in range(self.times):
            await ports.model.complete(ModelCallRequest(messages=(), tools=(), prompt={}, stage=self.id))
        return {}


def ports(steps: Steps, calls: dict[str, list[int]], pace: Pace) -> Ports:
    """Ports that do nothing but record."""
    model: Any = Recorder(steps, calls, pace)
    return replace(
        scripted_ports(),
        model=model,
        apart=lambda branches: [ports(own, calls, pace) for own in steps.for_branches(branches)],
    )


def calling(topology: Any, **times: int) -> Any:
    """The sketch with these nodes calling."""
    nodes = tuple(
        NodeSpec(node.id, Caller(node.id, times[node.id]), calls=(MODEL_COMPLETE,)) if node.id in times else node
        for node in topology.nodes
    )
    return replace(topology, nodes=nodes)


INNER = calling(sketch("p q", "p>q q>.", name="inner", statuses={}), p=1, q=2)


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8))
async def test_calls_of_branches_get_the_same_ids_in_any_order(waits: list[int]) -> None:
    calls: dict[str, list[int]] = {}
    left = iter(waits)

    async def pace(stage: str) -> None:
        for _ in range(3 * next(left, 0)):
            await asyncio.sleep(0)

    compiled = compile_topology(calling(sketch("a n c d", "a>n+c n+c>d d>.", bodies={"n": Sub(INNER)}), a=1, c=2, d=1))
    await compiled.run(compiled.topology.state.initial(), FRESH, ports(Steps(), calls, pace))
    assert calls == {"a": [1], "p": [2], "q": [4, 6], "c": [3, 5], "d": [7]}
