"""The path over a graph, from the nodes that have ended."""

import pytest

from perdure.pages.diagrams import END, START, path_over

Way = tuple[str, str]
LOOP = [(START, "entry"), ("entry", "gate"), ("entry", "model"), ("model", "gate"), ("gate", "model")]
LOOP += [("model", "final"), ("gate", "final"), ("final", END)]
FORK = [(START, "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", END)]
BEGUN = [(START, "entry"), ("entry", "model")]
CASES: list[tuple[str, list[Way], str, bool, list[Way]]] = [
    ("nothing has ended", LOOP, "", False, []),
    ("under way", LOOP, "entry model", False, BEGUN),
    ("to the end", LOOP, "entry model final", True, [*BEGUN, ("model", "final"), ("final", END)]),
    ("broken off", LOOP, "entry model final", False, [*BEGUN, ("model", "final")]),
    ("around", LOOP, "entry model gate model", False, [*BEGUN, ("model", "gate"), ("gate", "model")]),
    ("taken up again", LOOP, "entry model gate final entry gate", False,
     [*BEGUN, ("model", "gate"), ("gate", "final"), ("entry", "gate")]),
    ("two branches and a join", FORK, "a c b d", True, FORK),
    ("nested nodes are their node's", LOOP, "entry model/x model", False, BEGUN),
    ("a node that nothing leads to", LOOP, "elsewhere", True, []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ways", "nodes", "rests", "taken"), CASES, ids=[case[0] for case in CASES])
def test_the_path_is_what_the_nodes_tell(name: str, ways: list[Way], nodes: str, rests: bool, taken: list[Way]) -> None:
    edges = [{"source": a, "target": b, "form": "join" if b == "d" else "goto"} for a, b in ways]
    path = path_over(edges, nodes.split(), rests=rests)
    assert path.taken == set(taken)
    assert sum(path.visits.values()) == sum("/" not in node for node in nodes.split())
