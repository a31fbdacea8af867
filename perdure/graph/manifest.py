"""The public form of a topology: a JSON manifest, and a drawing made from that manifest.

Both come from the value that is compiled, so that a page always shows the topology that runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import JsonValue

from perdure.contracts.activities import ALL, ActivityRef, RetryClass
from perdure.core.calls.retries import NUMBERS, TOOL_ERRORS, errors_allowed
from perdure.graph.spec import END, FRESH, START, Edge, Fork, Goto, Join, NodeSpec, Sub, Switch, Topology

ENTRY_KIND: Final = "ENTRY"
"""The kind of every edge out of START."""


@dataclass(frozen=True, slots=True)
class Line:
    """One edge, from one node to one node."""

    source: str
    target: str
    form: str
    """`entry`, `goto`, `switch`, `fork` or `join`."""
    label: str = ""
    """The name of an entry, or the router's label of a switch."""
    kind: str = ""
    condition: str = ""
    optional: bool = False
    """True for a branch that runs only if it is wanted."""
    deferred: bool = False
    """True for an edge into a join that waits for all scheduled branches."""


def manifest_of(topology: Topology) -> dict[str, JsonValue]:
    """Returns the manifest of a topology as JSON, in the topology's order. Nested topologies are inside their node."""
    return {
        "name": topology.name,
        "version": topology.version,
        "entries": dict(topology.entries),
        "nodes": [_node_manifest(node) for node in topology.nodes],
        "edges": [_line(line) for line in lines_of(topology)],
        "activities": [_activity_entry(ref, strict=topology.strict) for ref in _called_activities(topology)],
        "limits": {topology.limits.steps_setting: topology.limits.steps, **topology.limits.counted},
        "strict": topology.strict,
        "statuses": {status: meaning.value for status, meaning in topology.statuses.items()},
        "state": {one.name: one.reducer.name for one in topology.state.fields},
    }


def lines_of(topology: Topology) -> tuple[Line, ...]:
    """Returns every edge of a topology as single lines, entries first."""
    entries = [Line(START, node, "entry", name, ENTRY_KIND) for name, node in topology.entries.items()]
    return (*entries, *(line for edge in topology.edges for line in _lines(edge)))


def _lines(edge: Edge) -> Iterator[Line]:
    match edge:
        case Goto():
            yield Line(edge.source, edge.target, "goto", kind=edge.kind, condition=edge.condition)
        case Join():
            for source in edge.sources:
                line = Line(source, edge.target, "join", kind=edge.kind, condition=edge.condition)
                yield replace(line, deferred=edge.deferred)
        case Fork():
            for head in edge.heads:
                line = Line(edge.source, head, "fork", kind=edge.kind, condition=edge.condition)
                yield replace(line, optional=head in edge.optional)
        case Switch():
            for label, way in edge.targets.items():
                kind, condition = edge.kinds.get(label, ""), edge.conditions.get(label, "")
                if isinstance(way, Fork):
                    yield from (
                        replace(line, label=label, kind=line.kind or kind, condition=line.condition or condition)
                        for line in _lines(way)
                    )
                else:
                    yield Line(edge.source, way, "switch", label, kind, condition)


def _node_manifest(node: NodeSpec) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"id": node.id, "purpose": node.purpose, "pauses": node.pauses, "limit": node.limit}
    shown["calls"] = [ref.name for ref in node.calls]
    if node.writes is not None:
        shown["writes"] = [*node.writes]
    if node.reaches is not None:
        shown["reaches"] = [*node.reaches]
    return shown | {"sub": manifest_of(node.run.topology)} if isinstance(node.run, Sub) else shown


def _called_activities(topology: Topology) -> Iterator[ActivityRef[Any, Any]]:
    """Yields the activities that the topology's nodes call, each once. Those of a nested topology are in its own
    manifest."""
    names = {ref.name for node in topology.nodes for ref in node.calls}
    return (ref for ref in ALL if ref.name in names)


def _activity_entry(ref: ActivityRef[Any, Any], *, strict: bool) -> dict[str, JsonValue]:
    """Returns the retry policy of an activity. `errors` is the number of errors that ends it, or None if it is retried
    until it succeeds. The death of a worker does not count as an error."""
    numbers = NUMBERS[ref.retry]
    errors = {RetryClass.PROVIDER: errors_allowed(strict=strict), RetryClass.TOOL: TOOL_ERRORS}.get(ref.retry)
    return {
        "name": ref.name,
        "kind": ref.kind.value,
        "retry": ref.retry.value,
        "errors": errors,
        "first_wait_seconds": numbers.initial_interval.total_seconds(),
        "longest_wait_seconds": numbers.maximum_interval.total_seconds(),
        "attempt_seconds": ref.start_to_close.total_seconds(),
    }


def _line(line: Line) -> dict[str, JsonValue]:
    return {
        "source": line.source,
        "target": line.target,
        "form": line.form,
        "label": line.label,
        "kind": line.kind,
        "condition": line.condition,
        "optional": line.optional,
        "deferred": line.deferred,
    }


# The text of a Mermaid flowchart. Rounded: a node. Hexagon: a node that can pause. Dotted line: a branch that runs only
# if it is wanted. Thick line: an edge into a join. A nested topology is a box.
INDENT: Final = "    "
PAUSE_STYLE: Final = "classDef pauses fill:#fff4d6,stroke:#b7791f,color:#3d2a05"
ENDS_STYLE: Final = "classDef ends fill:#e6e6e6,stroke:#666666,color:#1a1a1a"


def mermaid_of(manifest: Mapping[str, Any]) -> str:
    """Returns the flowchart of a manifest of `manifest_of`; it ends with a line break."""
    lines = ["flowchart TD", *(INDENT + line for line in _nested_lines(manifest, "")), INDENT + ENDS_STYLE]
    if any(node["pauses"] for node in manifest["nodes"]):
        lines.append(INDENT + PAUSE_STYLE)
    return "\n".join(lines) + "\n"


def _nested_lines(manifest: Mapping[str, Any], prefix: str) -> Iterator[str]:
    yield f'{prefix}{START}(["start"]):::ends'
    for node in manifest["nodes"]:
        yield from _node_lines(node, prefix)
    yield f'{prefix}{END}(["end"]):::ends'
    yield from (_edge_line(edge, prefix) for edge in manifest["edges"])


def _node_lines(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    name = prefix + node["id"]
    if "sub" in node:
        yield f'subgraph {name}["{node["id"]}"]'
        yield from (INDENT + line for line in _nested_lines(node["sub"], f"{name}__"))
        yield "end"
    elif node["pauses"]:
        yield f'{name}{{{{"{node["id"]}"}}}}:::pauses'
    else:
        yield f'{name}("{node["id"]}")'


def _edge_line(edge: Mapping[str, Any], prefix: str) -> str:
    label = "" if edge["form"] == "entry" and edge["label"] == FRESH else edge["label"]
    if edge["optional"]:
        label = f"{label}, if wanted" if label else "if wanted"
    line = "-.->" if edge["optional"] else "==>" if edge["form"] == "join" else "-->"
    label_text = f'|"{label}"|' if label else ""
    return f"{prefix}{edge['source']} {line}{label_text} {prefix}{edge['target']}"
