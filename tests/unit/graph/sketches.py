"""Small topologies, drawn with a few words, for tests of the validator and the compiler."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from perdure.graph.spec import END, FRESH, Edge, Fork, Goto, Join, NodeSpec, Outcome, RunLimits, State, Topology
from perdure.graph.state import ADDITIVE, Field, StateSchema
from tests.topologies.stand_ins import stand_ins

STATE = StateSchema(
    (Field("status", "completed"), Field("way", "left"), Field("trail", [], ADDITIVE), Field("note", ""))
)


def ways(words: str) -> list[Edge]:
    """`a>b` goes to b, `a>.` to the end, `a>b+c` forks, `b+c>d` joins and `b+c>>d` joins deferred."""
    edges: list[Edge] = []
    for word in words.split():
        start, end = word.replace(">>", ">").split(">")
        if "+" in start:
            edges.append(Join(tuple(filter(None, start.split("+"))), end, deferred=">>" in word))
        elif "+" in end:
            edges.append(Fork(start, tuple(filter(None, end.split("+")))))
        else:
            edges.append(Goto(start, END if end == "." else end))
    return edges


def sketch(
    nodes: str,
    *edges: Edge | str,
    pauses: str = "",
    limit: str = "",
    entries: Mapping[str, str] | None = None,
    bodies: Mapping[str, Any] | None = None,
    extra: Sequence[NodeSpec] = (),
    **more: Any,
) -> Topology:
    """Returns a topology with a stand-in for each word of `nodes`; the first is the entry. Its status is `completed`
    from the start. `limit` names the nodes that keep the limit `rounds`. Edges are given as they are or in words: see
    `ways`."""
    ids = nodes.split()
    made: Mapping[str, Any] = {**stand_ins(ids), **(bodies or {})}
    fields: dict[str, Any] = {
        "name": "sketch", "version": 1, "state": STATE,
        "nodes": (
            *(NodeSpec(one, made[one], one in pauses.split(), limit="rounds" * (one in limit.split())) for one in ids),
            *extra,
        ),
        "edges": tuple(edge for each in edges for edge in (ways(each) if isinstance(each, str) else (each,))),
        "entries": entries or {FRESH: ids[0]}, "limits": RunLimits(counted={"rounds": 9} if limit else {}),
        "statuses": {"waiting": Outcome.AWAITING},
    }  # fmt: skip
    return Topology(**(fields | more))


async def left_or_right(state: State) -> Literal["left", "right"]:
    """The way that the state names."""
    return "right" if state["way"] == "right" else "left"


async def always(state: State) -> bool:
    """An optional branch that is wanted."""
    return True


async def by_note(state: State) -> bool:
    """An optional branch that the state asks for."""
    return state["note"] == "please"
