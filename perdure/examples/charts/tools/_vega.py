"""A design as a Vega-Lite specification. Names and titles are data in it, never markup, paths or expressions."""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_TYPES = {"quantitative": "quantitative", "temporal": "temporal", "nominal": "nominal", "boolean": "nominal"}
_MARKS: dict[str, dict[str, Any]] = {"line": {"type": "line", "point": True}, "arc": {"type": "arc", "tooltip": True}}
_PLAIN = re.compile(r"[^\W\d][\w ]{0,79}")
MOST_TITLE = 80
MOST_LEVEL = 6
"""Most names that fit side by side below an axis; more are written vertically."""
LINE_CHARACTERS = 90
MOST_NOTES = 6
"""Most lines of warnings below the picture."""
MOST_TICKED = 8
"""Moments on an axis that has a tick for each."""


def vega_lite(design: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None, palette: Sequence[str] = ()) -> Any:
    """Returns the specification. Without `rows`, the renderer supplies them under the name `table`.

    A column whose name could be read as a path becomes a field with another name; `usermeta.fields` maps the two.
    """
    mark = str(design["mark"])
    fields = _fields(design["encodings"])
    encoding = {}
    for channel, one in design["encodings"].items():
        name = "theta" if mark == "arc" and channel == "size" else channel
        encoding[name] = _channel(name, one, fields)
    made: dict[str, Any] = {
        "$schema": SCHEMA,
        "data": {"name": "table"} if rows is None else {"values": [_row(row, fields) for row in rows]},
        "mark": _MARKS.get(mark, {"type": mark, "tooltip": True}),
        "encoding": encoding,
        "background": "white",
        "usermeta": {"fields": {field: column for column, field in fields.items() if field != column}},
    }
    left_out = [fields[str(one["column"])] for one in design["encodings"].values() if _leaves_out(mark, one)]
    if left_out:
        made["transform"] = [{"filter": {"field": field, "valid": True}} for field in left_out]
    title: dict[str, Any] = {"text": str(design["title"])[:MOST_TITLE]} if design.get("title") else {}
    notes = [line for note in design.get("notes") or () for line in wrap(str(note), LINE_CHARACTERS)]
    if notes:
        title |= {"text": title.get("text", ""), "subtitle": notes[:MOST_NOTES], "subtitleColor": "#666"}
    if title:
        made["title"] = title
    if "row" not in encoding:
        made |= {"width": 560, "height": 340}
    if palette:
        made["config"] = {"range": {"category": [*palette]}, "mark": {"color": palette[0]}}
    return made


def _leaves_out(mark: str, one: Mapping[str, Any]) -> bool:
    """Returns whether rows without a value are omitted, since they would be drawn as zero. A line has a gap there."""
    return bool(one.get("missing")) and mark != "line" and one["kind"] in ("quantitative", "temporal")


def _fields(encodings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    columns = dict.fromkeys(str(one["column"]) for one in encodings.values() if one["column"])
    return {column: column if _PLAIN.fullmatch(column) else f"field_{number}" for number, column in enumerate(columns)}


def _row(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The cells that are shown, and no others."""
    return {field: row.get(column) for column, field in fields.items()}


def _channel(name: str, one: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    if not one["column"]:
        return {"aggregate": "count", "type": "quantitative", "title": "rows"}
    made: dict[str, Any] = {
        "field": fields[str(one["column"])],
        "type": _TYPES[str(one["kind"])],
        "title": str(one["column"])[:MOST_TITLE],
    }
    if one["binned"]:
        made["bin"] = True
    if one["scale"] == "log":
        made["scale"] = {"type": "log"}
    if made["type"] == "temporal":  # else a day is drawn as the one before it wherever clocks are behind UTC
        made["scale"] = {"type": "utc"}
        distinct = int(one.get("distinct") or 0)
        if name in ("x", "y") and 1 < distinct <= MOST_TICKED:  # otherwise hours appear between a few days
            made["axis"] = {"tickCount": distinct - 1}
    if made["type"] == "nominal" and name in ("x", "y"):
        made["sort"] = None
        if name == "x" and 0 < int(one.get("distinct") or 0) <= MOST_LEVEL:
            made["axis"] = {"labelAngle": 0, "labelLimit": 90}
    return made
