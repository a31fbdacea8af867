"""The picture of a manifest, as the text of a Mermaid flowchart.

Rounded: a node. Hexagon: a node that can pause. Dotted line: a branch that runs only when wanted. Thick line: into a
join. A nested topology is a box of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from graph.spec import END, FRESH, START

INDENT: Final = "    "
PAUSE_STYLE: Final = "classDef pauses fill:#fff4d6,stroke:#b7791f,color:#3d2a05"
ENDS_STYLE: Final = "classDef ends fill:#e6e6e6,stroke:#666666,color:#1a1a1a"


def mermaid_of(manifest: Mapping[str, Any]) -> str:
    """The flowchart of a manifest made by `manifest_of`; ends with a line break."""
    lines = ["flowchart TD", *(INDENT + line for line in _inside(manifest, "")), INDENT + ENDS_STYLE]
    if any(node["pauses"] for node in manifest["nodes"]):
        lines.append(INDENT + PAUSE_STYLE)
    return "\n".join(lines) + "\n"


def _inside(manifest: Mapping[str, Any], prefix: str) -> Iterator[str]:
    yield f'{prefix}{START}(["start"]):::ends'
    for node in manifest["nodes"]:
        yield from _node(node, prefix)
    yield f'{prefix}{END}(["end"]):::ends'
    yield from (_edge(edge, prefix) for edge in manifest["edges"])


def _node(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    name = prefix + node["id"]
    if "sub" in node:
        yield f'subgraph {name}["{node["id"]}"]'
        yield from (INDENT + line for line in _inside(node["sub"], f"{name}__"))
        yield "end"
    elif node["pauses"]:
        yield f'{name}{{{{"{node["id"]}"}}}}:::pauses'
    else:
        yield f'{name}("{node["id"]}")'


def _edge(edge: Mapping[str, Any], prefix: str) -> str:
    label = "" if edge["form"] == "entry" and edge["label"] == FRESH else edge["label"]
    if edge["optional"]:
        label = f"{label}, if wanted" if label else "if wanted"
    line = "-.->" if edge["optional"] else "==>" if edge["form"] == "join" else "-->"
    told = f'|"{label}"|' if label else ""
    return f"{prefix}{edge['source']} {line}{told} {prefix}{edge['target']}"
