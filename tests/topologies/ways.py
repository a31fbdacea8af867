"""Whether an executed trace is a path of the manifest: read from the manifest's lines alone, joins and forks included.

Every turn that is played on the fakes, and every row of the route tables, is held against it.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from perdure.graph.manifest import Line, lines_of
from perdure.graph.spec import END, START, Topology


def assert_is_a_path(
    topology: Topology, events: Sequence[tuple[str, Mapping[str, JsonValue]]], entry: str, *, cut_off: bool = False
) -> None:
    """Each node that started was led to by a line from one that had ended, a join from all its sources; the last leads
    to the end, unless the run was `cut_off` by its steps."""
    lines = lines_of(topology)
    may_start = {line.target for line in lines if line.source == START and line.label == entry}
    ended: set[str] = set()
    last = ""
    for kind, data in events:
        node = str(data.get("node"))
        if "/" in node:
            continue  # a nested topology has a manifest of its own
        if kind == "node_start":
            assert node in may_start, f"{node} started, and no line of the manifest led to it"
            may_start.discard(node)
        elif kind == "node_end":
            ended.add(node)
            last = node
            may_start |= {line.target for line in lines if line.source == node and _arrived(line, lines, ended)}
    ends = any(line.source == last and line.target == END for line in lines)
    assert ends or cut_off, f"it ended after {last}"


def _arrived(line: Line, lines: Sequence[Line], ended: set[str]) -> bool:
    if line.form != "join" or line.deferred:
        return True
    return all(each.source in ended for each in lines if each.form == "join" and each.target == line.target)
