"""A design as a Vega-Lite specification. Names and titles are data in it, never markup, paths or expressions."""

import re
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_TYPES = {"quantitative": "quantitative", "temporal": "temporal", "nominal": "nominal", "boolean": "nominal"}
_MARKS: dict[str, dict[str, Any]] = {"line": {"type": "line", "point": True}, "arc": {"type": "arc", "tooltip": True}}
_PLAIN_NAME = re.compile(r"[^\W\d][\w ]{0,79}")
MAX_TITLE_CHARACTERS = 80
MAX_HORIZONTAL_LABELS = 6
"""Most names that fit side by side below an axis; more are written vertically."""
LINE_CHARACTERS = 90
MAX_NOTE_LINES = 6
"""Most lines of warnings below the picture."""
MAX_TICKS = 8
"""Moments on an axis that has a tick for each."""


def vega_lite(design: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None, palette: Sequence[str] = ()) -> Any:
    """Returns the specification. Without `rows`, the renderer supplies them under the name `table`.

    A column whose name could be read as a path becomes a field with another name; `usermeta.fields` maps the two.
    """
    mark = str(design["mark"])
    fields = _fields(design["encodings"])
    channels = {}
    for channel, encoding in design["encodings"].items():
        name = "theta" if mark == "arc" and channel == "size" else channel
        channels[name] = _channel(name, encoding, fields)
    specification: dict[str, Any] = {
        "$schema": SCHEMA,
        "data": {"name": "table"} if rows is None else {"values": [_row(row, fields) for row in rows]},
        "mark": _MARKS.get(mark, {"type": mark, "tooltip": True}),
        "encoding": channels,
        "background": "white",
        "usermeta": {"fields": {field: column for column, field in fields.items() if field != column}},
    }
    filtered_fields = [
        fields[str(encoding["column"])] for encoding in design["encodings"].values() if _omits_missing(mark, encoding)
    ]
    if filtered_fields:
        specification["transform"] = [{"filter": {"field": field, "valid": True}} for field in filtered_fields]
    title: dict[str, Any] = {"text": str(design["title"])[:MAX_TITLE_CHARACTERS]} if design.get("title") else {}
    notes = [line for note in design.get("notes") or () for line in wrap(str(note), LINE_CHARACTERS)]
    if notes:
        title |= {"text": title.get("text", ""), "subtitle": notes[:MAX_NOTE_LINES], "subtitleColor": "#666"}
    if title:
        specification["title"] = title
    if "row" not in channels:
        specification |= {"width": 560, "height": 340}
    if palette:
        specification["config"] = {"range": {"category": [*palette]}, "mark": {"color": palette[0]}}
    return specification


def _omits_missing(mark: str, encoding: Mapping[str, Any]) -> bool:
    """Returns whether rows without a value are omitted, since they would be drawn as zero. A line has a gap there."""
    return bool(encoding.get("missing")) and mark != "line" and encoding["kind"] in ("quantitative", "temporal")


def _fields(encodings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    columns = dict.fromkeys(str(encoding["column"]) for encoding in encodings.values() if encoding["column"])
    return {
        column: column if _PLAIN_NAME.fullmatch(column) else f"field_{number}" for number, column in enumerate(columns)
    }


def _row(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The cells that are shown, and no others."""
    return {field: row.get(column) for column, field in fields.items()}


def _channel(name: str, encoding: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    if not encoding["column"]:
        return {"aggregate": "count", "type": "quantitative", "title": "rows"}
    channel: dict[str, Any] = {
        "field": fields[str(encoding["column"])],
        "type": _TYPES[str(encoding["kind"])],
        "title": str(encoding["column"])[:MAX_TITLE_CHARACTERS],
    }
    if encoding["binned"]:
        channel["bin"] = True
    if encoding["scale"] == "log":
        channel["scale"] = {"type": "log"}
    if channel["type"] == "temporal":  # else a day is drawn as the one before it wherever clocks are behind UTC
        channel["scale"] = {"type": "utc"}
        distinct = int(encoding.get("distinct") or 0)
        if name in ("x", "y") and 1 < distinct <= MAX_TICKS:  # otherwise hours appear between a few days
            channel["axis"] = {"tickCount": distinct - 1}
    if channel["type"] == "nominal" and name in ("x", "y"):
        channel["sort"] = None
        if name == "x" and 0 < int(encoding.get("distinct") or 0) <= MAX_HORIZONTAL_LABELS:
            channel["axis"] = {"labelAngle": 0, "labelLimit": 90}
    return channel
