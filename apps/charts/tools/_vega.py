"""A design as a Vega-Lite specification. Names and titles are data in it, never markup or expressions."""

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_TYPES = {"quantitative": "quantitative", "temporal": "temporal", "nominal": "nominal", "boolean": "nominal"}
_MARKS: dict[str, dict[str, Any]] = {"line": {"type": "line", "point": True}, "arc": {"type": "arc", "tooltip": True}}
MOST_TITLE = 80


def vega_lite(design: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None, palette: Sequence[str] = ()) -> Any:
    """The specification; without `rows` whoever draws it brings the data under the name `table`."""
    mark = str(design["mark"])
    encoding = {}
    for channel, one in design["encodings"].items():
        name = "theta" if mark == "arc" and channel == "size" else channel
        encoding[name] = _channel(name, one)
    made: dict[str, Any] = {
        "$schema": SCHEMA,
        "data": {"name": "table"} if rows is None else {"values": [*rows]},
        "mark": _MARKS.get(mark, {"type": mark, "tooltip": True}),
        "encoding": encoding,
        "background": "white",
    }
    if design.get("title"):
        made["title"] = {"text": str(design["title"])[:MOST_TITLE]}
    if "row" not in encoding:
        made |= {"width": 560, "height": 340}
    if palette:
        made["config"] = {"range": {"category": [*palette]}, "mark": {"color": palette[0]}}
    return made


def _channel(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    if not one["column"]:
        return {"aggregate": "count", "type": "quantitative", "title": "rows"}
    made: dict[str, Any] = {
        "field": _field(str(one["column"])),
        "type": _TYPES[str(one["kind"])],
        "title": str(one["column"])[:MOST_TITLE],
    }
    if one["binned"]:
        made["bin"] = True
    if one["scale"] == "log":
        made["scale"] = {"type": "log"}
    if made["type"] == "nominal" and name in ("x", "y"):
        made["sort"] = None
    return made


def _field(name: str) -> str:
    """A column's name as a field: dots and brackets in it are no path."""
    escaped = name.replace("\\", "\\\\")
    for each in ".[]":
        escaped = escaped.replace(each, f"\\{each}")
    return escaped
