"""What the compiler promises beside the routes: forks, joins, nesting, limits, failures, events, numbers of steps."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langsmith.utils import tracing_is_enabled

from perdure.contracts.activities import MODEL_COMPLETE
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.messages import Patch
from perdure.graph import registry
from perdure.graph.compile import CompiledTopology, compile_topology, topology
from perdure.graph.ports import Ports
from perdure.graph.spec import END, FRESH, Fork, NodeSpec, RunLimits, State, Sub, Switch, Topology
from perdure.graph.state import Field, StateSchema
from perdure.workflows.turn_segment import Steps
from tests.topologies.stand_ins import Rows, ScriptedPorts, at_once, scripted_ports
from tests.unit.graph.sketches import by_note, left_or_right, sketch

DIAMOND = sketch("a b c d", "a>b+c b+c>d d>.")
SWITCH = Switch("x", left_or_right, {"left": "a", "right": "d"})
OPTIONAL = sketch("x a b c d", SWITCH, Fork("a", ("b",), {"c": by_note}), "b+c>>d d>.")
LOOP = Switch("d", left_or_right, {"left": "a", "right": END})
Pace = Callable[[str], Awaitable[None]]
INNER = replace(sketch("x y", "x>y y>."), name="inner", statuses={})
NESTING = sketch("a n", "a>n n>.", bodies={"n": Sub(INNER)})
ASKED, LOOKING = {"role": "user", "text": "Why?"}, {"role": "assistant", "text": "Looking."}


async def run(
    drawn: Topology, rows: Rows | None = None, pace: Pace = at_once, **start: Any
) -> tuple[Any, ScriptedPorts]:
    """Final state and ports of a fresh run."""
    state, ports = drawn.state.initial(**start), scripted_ports(rows, pace)
    final = await compile_topology(drawn).run(state, FRESH, ports)
    assert state == drawn.state.initial(**start), "a run leaves its start as it was"
    return final, ports


def slow(*nodes: str) -> Pace:
    """A pace at which these nodes end after all others of their step."""

    async def pace(node: str) -> None:
        if node in nodes:
            await asyncio.sleep(0.01 * (1 + nodes.index(node)))

    return pace


@pytest.mark.parametrize("pace", [at_once, slow("b"), slow("c"), slow("c", "b")])
async def test_the_order_of_the_topology_counts_whichever_branch_is_faster(pace: Pace) -> None:
    failed: Rows = {name: [{"trail": [name], "error": {"code": name}}] for name in "bc"}
    state, ports = await run(DIAMOND, failed, pace)
    assert ports.recorded.trace() == ["a", "b", "c", "d"]
    assert (state["trail"], state["error"]) == (["b", "c"], {"code": "c"})
    state, ports = await run(replace(DIAMOND, limits=RunLimits(steps=2)), pace=pace)
    assert (state["status"], state["current_node"], ports.recorded.trace()) == ("limited", "c", ["a", "b", "c"])
    ports = scripted_ports({"b": [LookupError("b")], "c": [ValueError("c")]}, pace)
    with pytest.raises(LookupError):
        await compile_topology(DIAMOND).run(DIAMOND.state.initial(), FRESH, ports)
    assert ports.recorded.trace() == ["a", "b", "c"]


async def test_many_branches_start_and_merge_in_the_order_of_the_topology() -> None:
    """Python draws a new hash seed for every test run: an order taken from a set would show here."""
    heads = ("quince", "apple", "zebra", "mango", "kiwi", "fig")
    forked = "+".join(sorted(heads))
    many = sketch(" ".join(["a", *heads, "d"]), f"a>{forked} {forked}>d d>.")
    state, ports = await run(many, {head: [{"trail": [head]}] for head in heads})
    assert ports.recorded.trace() == ["a", *heads, "d"]
    assert state["trail"] == list(heads)


async def trace(drawn: Topology, rows: Rows | None = None, **start: Any) -> str:
    return " ".join((await run(drawn, rows, **start))[1].recorded.trace())


async def test_a_join_runs_once_in_every_round_after_all_scheduled_branches() -> None:
    assert await trace(sketch("a b c d e", "a>b+c b>e e+c>d d>.")) == "a b c e d"
    assert await trace(sketch("a b c d e f", "a>b+c b>e e>f f+c>>d d>.")) == "a b c e f d"
    assert await trace(OPTIONAL) == "x a b d"
    assert await trace(OPTIONAL, note="please") == "x a b c d"
    assert await trace(OPTIONAL, way="right") == "x d"
    for join in ("b+c>d", "b+c>>d"):
        loop = sketch("a b c d", "a>b+c", join, LOOP, limit="d")
        assert await trace(loop, {"d": [{}, {"way": "right"}]}) == "a b c d a b c d"


async def test_a_nested_topology_runs_as_one_node_and_its_additions_arrive_once() -> None:
    state, ports = await run(NESTING, {"a": [{"trail": ["a"]}], "x": [{"trail": ["x"]}], "y": [{"trail": ["y"]}]})
    assert ports.recorded.trace() == ["a", "n", "n/x", "n/y"]
    assert [data["node"] for kind, data in ports.recorded.events if kind == "node_end"] == ["a", "n/x", "n/y", "n"]
    assert (state["trail"], state["current_node"]) == (["a", "x", "y"], "n")


async def test_nested_topologies_in_parallel_keep_each_others_additions() -> None:
    other = replace(sketch("z", "z>."), name="other", statuses={})
    both = sketch("a m n d", "a>m+n m+n>d d>.", bodies={"m": Sub(other), "n": Sub(INNER)})
    rows: Rows = {"a": [{"trail": ["a"]}], "z": [{"trail": ["z"]}], "x": [{"trail": ["x"]}], "y": [{"trail": ["y"]}]}
    state, ports = await run(both, rows)
    assert ports.recorded.trace() == ["a", "m", "n", "m/z", "n/x", "n/y", "d"]
    assert state["trail"] == ["a", "z", "x", "y"]


@pytest.mark.parametrize(("given", "node"), [(DIAMOND, "a"), (NESTING, "y")])
async def test_a_node_that_raises_lets_its_exception_through(given: Topology, node: str) -> None:
    with pytest.raises(LookupError, match=f"by {node}"):
        await run(given, {node: [LookupError(f"by {node}")]})


async def test_a_failed_branch_stops_and_its_sibling_finishes() -> None:
    long = sketch("a b c d e f", "a>b+c b>e c>f e+f>d d>.")
    compiled, ports = compile_topology(long), scripted_ports({"b": [ValueError("b")]})
    with pytest.raises(ValueError, match="b"):
        await compiled.run(long.state.initial(), FRESH, ports)
    assert ports.recorded.trace() == ["a", "b", "c", "f"]


async def test_a_looping_failed_branch_reports_its_failure_not_the_limit() -> None:
    again = Switch("b", left_or_right, {"left": "b", "right": "e"})
    limits = RunLimits(steps=8, counted={"rounds": 3})
    loop = sketch("a b c d e", "a>b+c", again, "e+c>d d>.", limit="b", limits=limits)
    with pytest.raises(ValueError, match="first"):
        await run(loop, {"b": [ValueError("first")]})


async def test_two_branches_may_not_write_a_last_value_but_the_next_fork_may() -> None:
    with pytest.raises(InvariantBroken, match="note") as refused:
        await run(DIAMOND, {"b": [{"note": "b"}], "c": [{"note": "c"}]})
    assert refused.value.code == "branches_collide"
    loop = sketch("a b c d", "a>b+c b+c>d", LOOP, limit="d")
    state, _ = await run(loop, {"b": [{"note": "b"}], "c": [{}, {"note": "c"}], "d": [{}, {"way": "right"}]})
    assert state["note"] == "c"


def ring(steps: int) -> Topology:
    """a -> b -> a ..., with a limit of steps."""
    again = Switch("b", left_or_right, {"left": "a", "right": END})
    return sketch("a b", "a>b", again, limit="b", limits=RunLimits(steps, "RING_STEPS", {"rounds": 9}))


@pytest.mark.parametrize(("drawn", "steps", "ends"), [
    *((ring(9), *case) for case in ((5, "limited"), (6, "completed"), (7, "completed"))),
    *((DIAMOND, *case) for case in ((2, "limited"), (3, "completed"))),  # the branches of a fork share a step
])  # fmt: skip
async def test_the_step_limit_is_exact(drawn: Topology, steps: int, ends: str) -> None:
    limited = replace(drawn, limits=replace(drawn.limits, steps=steps))
    state, ports = await run(limited, {"b": [{}, {}, {"way": "right"}]})
    assert state["status"] == ends
    assert drawn is DIAMOND or len(ports.recorded.trace()) == min(steps, 6)


async def test_the_step_limit_ends_cleanly_with_what_was_done_and_the_name_of_the_setting() -> None:
    state, _ = await run(ring(4), {"a": [{"trail": ["first"]}, {"trail": ["second"]}]})
    assert state["trail"] == ["first", "second"]
    assert (state["error"]["code"], state["error"]["retry_after_seconds"]) == ("iteration_limit", None)
    assert all(part in state["error"]["message"] for part in ("4", "RING_STEPS", "sketch"))


async def test_a_nested_topology_that_meets_its_limit_ends_the_whole_run() -> None:
    deep = replace(ring(3), name="deep", statuses={})
    state, ports = await run(sketch("a n", "a>n n>.", bodies={"n": Sub(deep)}), {"a": [{"trail": ["kept"]}]})
    assert (state["status"], state["trail"]) == ("limited", ["kept"])
    assert all(part in state["error"]["message"] for part in ("3", "RING_STEPS", "deep"))
    assert ports.recorded.trace() == ["a", "n", "n/a", "n/b", "n/a"]


async def undeclared_label(state: State) -> Literal["left"]:
    return "up"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("given", "entry", "rows", "status", "named"),
    [
        (DIAMOND, "approval", {}, "completed", "approval"),
        (DIAMOND, FRESH, {}, "running", "running"),
        (DIAMOND, FRESH, {"d": [{"status": "asleep"}]}, "completed", "asleep"),
        (NESTING, FRESH, {"x": [{"colour": "red"}]}, "completed", r"n/x.*colour"),
        (sketch("a", Switch("a", undeclared_label, {"left": END})), FRESH, {}, "completed", r"`a`.*`up`"),
    ],
    ids=["an unknown entry", "no outcome", "an unknown status", "an unknown field", "a router that breaks its promise"],
)
async def test_a_breach_is_refused_by_name(given: Topology, entry: str, rows: Rows, status: str, named: str) -> None:
    with pytest.raises(InvariantBroken, match=named):
        await compile_topology(given).run(given.state.initial(status=status), entry, scripted_ports(rows))


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_cancelled_run_is_cancelled_also_inside_a_fork(node: str) -> None:
    started = asyncio.Event()

    async def hang(name: str) -> None:
        if name == node:
            started.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(run(DIAMOND, pace=hang))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def talking_node(messages: list[Any]) -> Topology:
    """One node that leaves these messages."""
    schema = StateSchema((Field("status", "completed"), Field("tokens_used", 0)))

    async def talk(state: State, ports: Ports) -> Patch:
        return {"messages": messages, "tokens_used": 12}

    return sketch("a", "a>.", state=schema, bodies={"a": talk})


@pytest.mark.parametrize(("before", "added", "shown"), [
    ([ASKED], [{"role": "assistant", "text": "Because."}], "Because."),
    ([ASKED], [{"role": "assistant", "content": "So."}], "So."),
    ([ASKED], [{"role": "assistant", "text": "x" * 900}], "x" * 400),
    ([ASKED], [{"role": "assistant", "text": "T"}, {"role": "tool"}], "T"),
    ([ASKED], [{"role": "tool", "text": "42"}], None), ([ASKED], [], None), ([], [], None),
    ([ASKED, LOOKING], [{"role": "tool", "text": "42"}], None),
])  # fmt: skip
async def test_node_end_shows_status_tokens_and_words(before: list[Any], added: list[Any], shown: str | None) -> None:
    _, ports = await run(talking_node([*before, *added]), messages=before)
    data: dict[str, Any] = {"status": "completed", "tokens_used": 12}
    message = {"message": {"role": "assistant", "content": shown}} if shown else {}
    assert ports.recorded.events == [("node_start", {"node": "a"}), ("node_end", {"node": "a", "data": data | message})]


async def test_tracing_is_off_inside_a_run_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def look(state: State, ports: Ports) -> Patch:
        seen.append(tracing_is_enabled())
        return {}

    compiled: CompiledTopology = compile_topology(sketch("a", "a>.", bodies={"a": look}))
    monkeypatch.setattr("langsmith.utils.get_env_var", lambda *args, **kwargs: "true")
    assert tracing_is_enabled()
    await compiled.run(compiled.topology.state.initial(), FRESH, scripted_ports())
    assert seen == [False]


def test_every_registered_topology_is_compiled_once_and_shared() -> None:
    assert registry.names()
    for name in registry.names():
        version = registry.spec(name).version
        assert topology(name, version) is topology(name, version)
        assert topology(name, version).topology is registry.spec(name)
    with pytest.raises(CallerError) as refused:
        topology("nothing")
    assert refused.value.code == "unknown_topology"


def test_reading_a_topology_imports_no_langgraph() -> None:
    script = "import sys, perdure.graph.registry, perdure.graph.manifest; "
    script += "assert not any(m.startswith('langgraph') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


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


CALLING = calling(sketch("p q", "p>q q>.", name="inner", statuses={}), p=1, q=2)


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8))
async def test_calls_of_branches_get_the_same_ids_in_any_order(waits: list[int]) -> None:
    calls: dict[str, list[int]] = {}
    left = iter(waits)

    async def pace(stage: str) -> None:
        for _ in range(3 * next(left, 0)):
            await asyncio.sleep(0)

    compiled = compile_topology(
        calling(sketch("a n c d", "a>n+c n+c>d d>.", bodies={"n": Sub(CALLING)}), a=1, c=2, d=1)
    )
    await compiled.run(compiled.topology.state.initial(), FRESH, ports(Steps(), calls, pace))
    assert calls == {"a": [1], "p": [2], "q": [4, 6], "c": [3, 5], "d": [7]}
