"""What the compiler promises beside the routes: forks, joins, nesting, limits, failures, events."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
from langsmith.utils import tracing_is_enabled

from perdure.contracts.errors import InvariantBroken
from perdure.contracts.messages import Patch
from perdure.graph.compile import CompiledTopology, compile_topology
from perdure.graph.ports import Ports
from perdure.graph.spec import END, FRESH, Fork, Goto, Join, RunLimits, State, Sub, Switch, Topology
from perdure.graph.state import Field, StateSchema
from tests.topologies.stand_ins import Rows, ScriptedPorts, at_once, scripted_ports
from tests.unit.graph.sketches import by_note, left_or_right, sketch

DIAMOND = sketch("a b c d", Fork("a", ("b", "c")), Join(("b", "c"), "d"), Goto("d", END))
OPTIONAL = sketch(
    "x a b c d",
    Switch("x", left_or_right, {"left": "a", "right": "d"}),
    Fork("a", ("b",), {"c": by_note}),
    Join(("b", "c"), "d", deferred=True),
    Goto("d", END),
)
Pace = Callable[[str], Awaitable[None]]


async def run(
    topology: Topology, rows: Rows | None = None, pace: Pace = at_once, **start: Any
) -> tuple[Any, ScriptedPorts]:
    """Final state and ports of a fresh run."""
    compiled, ports = compile_topology(topology), scripted_ports(rows, pace)
    return await compiled.run(topology.state.initial(**start), FRESH, ports), ports


def slow(*nodes: str) -> Pace:
    """A pace at which these nodes end after all others of their step."""

    async def pace(node: str) -> None:
        if node in nodes:
            await asyncio.sleep(0.01 * (1 + nodes.index(node)))

    return pace


@pytest.mark.parametrize("pace", [at_once, slow("b"), slow("c"), slow("c", "b")])
async def test_branches_start_and_merge_in_the_order_of_the_topology_whichever_is_faster(pace: Pace) -> None:
    state, ports = await run(DIAMOND, {"b": [{"trail": ["b"]}], "c": [{"trail": ["c"]}]}, pace)
    assert ports.recorded.trace() == ["a", "b", "c", "d"]
    assert state["trail"] == ["b", "c"]


async def test_the_order_of_the_nodes_not_of_the_fork_decides() -> None:
    turned = sketch("a c b d", Fork("a", ("b", "c")), Join(("b", "c"), "d"), Goto("d", END))
    _, ports = await run(turned)
    assert ports.recorded.trace() == ["a", "c", "b", "d"]


async def test_a_plain_join_waits_for_branches_of_different_lengths_and_runs_once() -> None:
    longer = sketch(
        *("a b c d e", Fork("a", ("b", "c")), Goto("b", "e"), Join(("e", "c"), "d"), Goto("d", END)),
    )
    _, ports = await run(longer)
    assert ports.recorded.trace() == ["a", "b", "c", "e", "d"]


@pytest.mark.parametrize(
    ("start", "trace"),
    [
        ({}, ["x", "a", "b", "d"]),
        ({"note": "please"}, ["x", "a", "b", "c", "d"]),
        ({"way": "right"}, ["x", "d"]),
    ],
)
async def test_a_deferred_join_runs_once_after_whatever_was_scheduled(start: Any, trace: list[str]) -> None:
    _, ports = await run(OPTIONAL, **start)
    assert ports.recorded.trace() == trace


async def test_a_deferred_join_waits_for_the_longest_branch() -> None:
    longer = sketch(
        "a b c d e f",
        Fork("a", ("b", "c")),
        Goto("b", "e"),
        Goto("e", "f"),
        Join(("f", "c"), "d", deferred=True),
        Goto("d", END),
    )
    _, ports = await run(longer)
    assert ports.recorded.trace() == ["a", "b", "c", "e", "f", "d"]


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_fork_inside_a_loop_joins_in_every_round(deferred: bool) -> None:
    loop = sketch(
        "a b c d",
        Fork("a", ("b", "c")),
        Join(("b", "c"), "d", deferred),
        Switch("d", left_or_right, {"left": "a", "right": END}),
        limit="d",
    )
    _, ports = await run(loop, {"d": [{}, {"way": "right"}]})
    assert ports.recorded.trace() == ["a", "b", "c", "d", "a", "b", "c", "d"]


INNER = replace(sketch("x y", Goto("x", "y"), Goto("y", END)), name="inner", statuses={})
NESTING = sketch("a n", Goto("a", "n"), Goto("n", END), bodies={"n": Sub(INNER)})


async def test_a_nested_topology_runs_as_one_node_and_its_additions_arrive_once() -> None:
    state, ports = await run(NESTING, {"a": [{"trail": ["a"]}], "x": [{"trail": ["x"]}], "y": [{"trail": ["y"]}]})
    assert ports.recorded.trace() == ["a", "n", "n/x", "n/y"]
    assert [data["node"] for kind, data in ports.recorded.events if kind == "node_end"] == ["a", "n/x", "n/y", "n"]
    assert state["trail"] == ["a", "x", "y"]


@pytest.mark.parametrize("pace", [at_once, slow("b"), slow("c"), slow("c", "b")])
async def test_behind_a_fork_the_state_names_the_branch_that_is_last_in_the_topology(pace: Pace) -> None:
    """Whichever is faster; in its own node each stand-in has seen itself named."""
    state, ports = await run(replace(DIAMOND, limits=RunLimits(steps=2)), pace=pace)
    assert (state["status"], ports.recorded.trace()) == ("limited", ["a", "b", "c"])
    assert state["current_node"] == "c"


async def test_behind_a_nested_topology_the_state_names_the_node_that_held_it() -> None:
    state, _ = await run(NESTING)
    assert state["current_node"] == "n"


async def test_nested_topologies_in_parallel_keep_each_others_additions() -> None:
    other = replace(sketch("z", Goto("z", END)), name="other", statuses={})
    both = sketch(
        "a m n d",
        Fork("a", ("m", "n")),
        Join(("m", "n"), "d"),
        Goto("d", END),
        bodies={"m": Sub(other), "n": Sub(INNER)},
    )
    rows: Rows = {"a": [{"trail": ["a"]}], "z": [{"trail": ["z"]}], "x": [{"trail": ["x"]}], "y": [{"trail": ["y"]}]}
    state, ports = await run(both, rows)
    assert ports.recorded.trace() == ["a", "m", "n", "m/z", "n/x", "n/y", "d"]
    assert state["trail"] == ["a", "z", "x", "y"]


async def test_a_node_that_raises_lets_its_exception_through() -> None:
    with pytest.raises(LookupError, match="by a"):
        await run(DIAMOND, {"a": [LookupError("by a")]})


@pytest.mark.parametrize("pace", [at_once, slow("b"), slow("c"), slow("c", "b")])
async def test_of_several_failing_branches_the_first_in_order_surfaces(pace: Pace) -> None:
    compiled, ports = compile_topology(DIAMOND), scripted_ports({"b": [LookupError("b")], "c": [ValueError("c")]}, pace)
    with pytest.raises(LookupError):
        await compiled.run(DIAMOND.state.initial(), FRESH, ports)
    assert ports.recorded.trace() == ["a", "b", "c"]


async def test_a_failed_branch_stops_and_its_sibling_finishes() -> None:
    long = sketch(
        "a b c d e f",
        Fork("a", ("b", "c")),
        Goto("b", "e"),
        Goto("c", "f"),
        Join(("e", "f"), "d"),
        Goto("d", END),
    )
    compiled, ports = compile_topology(long), scripted_ports({"b": [ValueError("b")]})
    with pytest.raises(ValueError, match="b"):
        await compiled.run(long.state.initial(), FRESH, ports)
    assert ports.recorded.trace() == ["a", "b", "c", "f"]


async def test_a_failure_inside_a_nested_topology_surfaces_like_any_other() -> None:
    with pytest.raises(ValueError, match="deep"):
        await run(NESTING, {"y": [ValueError("deep")]})


async def test_a_failed_branch_that_would_loop_surfaces_its_failure_not_the_step_limit() -> None:
    loop = sketch(
        "a b c d e",
        Fork("a", ("b", "c")),
        Switch("b", left_or_right, {"left": "b", "right": "e"}),
        Join(("e", "c"), "d"),
        Goto("d", END),
        limit="b",
        limits=RunLimits(steps=8, counted={"rounds": 3}),
    )
    with pytest.raises(ValueError, match="first"):
        await run(loop, {"b": [ValueError("first")]})


async def test_two_branches_may_not_write_a_field_where_only_the_last_value_stands() -> None:
    with pytest.raises(InvariantBroken, match="note") as refused:
        await run(DIAMOND, {"b": [{"note": "b"}], "c": [{"note": "c"}]})
    assert refused.value.code == "branches_collide"


async def test_the_next_fork_may_write_what_the_last_one_wrote() -> None:
    loop = sketch(
        "a b c d",
        Fork("a", ("b", "c")),
        Join(("b", "c"), "d"),
        Switch("d", left_or_right, {"left": "a", "right": END}),
        limit="d",
    )
    state, _ = await run(loop, {"b": [{"note": "b"}], "c": [{}, {"note": "c"}], "d": [{}, {"way": "right"}]})
    assert state["note"] == "c"


async def test_two_branches_that_both_fail_as_data_leave_one_error_the_same_every_time() -> None:
    rows: Rows = {"b": [{"error": {"code": "b"}}], "c": [{"error": {"code": "c"}}]}
    for pace in (at_once, slow("b"), slow("c")):
        state, _ = await run(DIAMOND, rows, pace)
        assert state["error"] == {"code": "c"}


def ring(steps: int) -> Topology:
    """a -> b -> a ..., with a limit of steps."""
    return sketch(
        "a b",
        Goto("a", "b"),
        Switch("b", left_or_right, {"left": "a", "right": END}),
        limit="b",
        limits=RunLimits(steps, "RING_STEPS", {"rounds": 9}),
    )


@pytest.mark.parametrize(("steps", "ends"), [(5, "limited"), (6, "completed"), (7, "completed")])
async def test_the_step_limit_is_exact(steps: int, ends: str) -> None:
    rows: Rows = {"a": [{"trail": ["a"]}] * 3, "b": [{}, {}, {"way": "right"}]}
    state, ports = await run(ring(steps), rows)
    assert state["status"] == ends
    assert len(ports.recorded.trace()) == min(steps, 6)


async def test_the_step_limit_ends_cleanly_with_what_was_done_and_the_name_of_the_setting() -> None:
    state, _ = await run(ring(4), {"a": [{"trail": ["first"]}, {"trail": ["second"]}]})
    assert state["trail"] == ["first", "second"]
    assert (state["error"]["code"], state["error"]["retry_after_seconds"]) == ("iteration_limit", None)
    assert all(part in state["error"]["message"] for part in ("4", "RING_STEPS", "sketch"))


async def test_the_branches_of_a_fork_share_a_step() -> None:
    for steps, ends in ((3, "completed"), (2, "limited")):
        state, _ = await run(replace(DIAMOND, limits=RunLimits(steps)))
        assert state["status"] == ends


async def test_a_nested_topology_that_meets_its_limit_ends_the_whole_run() -> None:
    nesting = sketch(
        "a n", Goto("a", "n"), Goto("n", END), bodies={"n": Sub(replace(ring(3), name="deep", statuses={}))}
    )
    state, ports = await run(nesting, {"a": [{"trail": ["kept"]}]})
    assert (state["status"], state["trail"]) == ("limited", ["kept"])
    assert all(part in state["error"]["message"] for part in ("3", "RING_STEPS", "deep"))
    assert ports.recorded.trace() == ["a", "n", "n/a", "n/b", "n/a"]


async def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="approval"):
        await compile_topology(DIAMOND).run(DIAMOND.state.initial(), "approval", scripted_ports())


async def test_a_run_that_ends_without_an_outcome_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="running"):
        await run(DIAMOND, status="running")


async def test_a_status_that_the_topology_does_not_know_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="asleep"):
        await run(DIAMOND, {"d": [{"status": "asleep"}]})


async def test_a_patch_with_an_unknown_field_names_node_and_field() -> None:
    with pytest.raises(InvariantBroken, match=r"n/x.*colour"):
        await run(NESTING, {"x": [{"colour": "red"}]})


async def test_a_router_that_breaks_its_promise_is_refused() -> None:
    async def liar(state: State) -> Literal["left"]:
        return "up"  # type: ignore[return-value]

    with pytest.raises(InvariantBroken, match=r"`a`.*`up`"):
        await run(sketch("a", Switch("a", liar, {"left": END})))


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


def talking(messages: list[Any]) -> Topology:
    """One node that leaves these messages."""
    schema = StateSchema((Field("status", "completed"), Field("tokens_used", 0)))

    async def talk(state: State, ports: Ports) -> Patch:
        return {"messages": messages, "tokens_used": 12}

    return sketch("a", Goto("a", END), state=schema, bodies={"a": talk})


ASKED = {"role": "user", "text": "Why?"}


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([ASKED, {"role": "assistant", "text": "Because."}], {"role": "assistant", "content": "Because."}),
        ([ASKED, {"role": "assistant", "content": "So."}], {"role": "assistant", "content": "So."}),
        ([ASKED, {"role": "assistant", "text": "x" * 900}], {"role": "assistant", "content": "x" * 400}),
        ([ASKED, {"role": "assistant", "text": "T"}, {"role": "tool"}], {"role": "assistant", "content": "T"}),
        ([ASKED, {"role": "tool", "text": "42"}], None),
        ([ASKED], None),
        ([], None),
    ],
)
async def test_node_end_shows_status_tokens_and_the_assistant_message_that_the_node_added(
    messages: list[Any], shown: Any
) -> None:
    _, ports = await run(talking(messages), messages=[ASKED])
    data: dict[str, Any] = {"status": "completed", "tokens_used": 12}
    assert ports.recorded.events == [
        ("node_start", {"node": "a"}),
        ("node_end", {"node": "a", "data": data | ({"message": shown} if shown else {})}),
    ]


async def test_node_end_does_not_show_again_what_was_said_before() -> None:
    before = [ASKED, {"role": "assistant", "text": "Looking."}]
    _, ports = await run(talking([*before, {"role": "tool", "text": "42"}]), messages=before)
    shown: Any = ports.recorded.events[-1][1]["data"]
    assert "message" not in shown


async def test_tracing_is_off_inside_a_run_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    async def look(state: State, ports: Ports) -> Patch:
        seen.append(tracing_is_enabled())
        return {}

    compiled: CompiledTopology = compile_topology(sketch("a", Goto("a", END), bodies={"a": look}))
    monkeypatch.setattr("langsmith.utils.get_env_var", lambda *args, **kwargs: "true")
    assert tracing_is_enabled()
    await compiled.run(compiled.topology.state.initial(), FRESH, scripted_ports())
    assert seen == [False]


async def test_many_branches_start_and_merge_in_the_order_of_the_topology() -> None:
    """Python draws a new hash seed for every test run: an order taken from a set would show here."""
    heads = ("quince", "apple", "zebra", "mango", "kiwi", "fig")
    edges = (Fork("a", tuple(sorted(heads))), Join(tuple(sorted(heads)), "d"), Goto("d", END))
    state, ports = await run(
        sketch(" ".join(["a", *heads, "d"]), *edges), {head: [{"trail": [head]}] for head in heads}
    )
    assert ports.recorded.trace() == ["a", *heads, "d"]
    assert state["trail"] == list(heads)
