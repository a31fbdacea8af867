"""Facts for the solver from a specification and a table's columns, and a design from the solver's model.

Names of columns never reach the solver: there they are c0, c1, ... Text from a user is reduced to letters.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

RULES = Path(__file__).with_name("design.lp")
SCHEMA = Path(__file__).with_name("specification.xsd")
MARKS = ("bar", "line", "area", "point", "arc", "rect", "tick")
CHANNELS = ("x", "y", "color", "size", "shape", "row")
SCALES = ("linear", "log", "band", "time")
_KNOWN_VALUES = {"mark": MARKS, "channel": CHANNELS, "scale": SCALES}
_WORD = re.compile(r"[a-z]{2,20}")
_ATOM = re.compile(r"(\w+)\((\w+)(?:,(\w+))?\)")
LIKELY_AT_LEAST = 0.5
_MAX_DISTINCT = 100_000

Design = dict[str, Any]


def specification_of(root: Element) -> dict[str, Any]:
    """A chart's specification as plain values."""
    shows = [{"column": show.get("column", ""), "on": show.get("on", "")} for show in root.findall("show")]
    return {name: root.get(name, "") for name in ("title", "concept", "intent")} | {"shows": shows}


def specification_faults(
    specification: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Returns faults that a schema cannot express: missing columns, and channels or columns that appear twice."""
    names = [str(column["name"]) for column in columns]
    faults, seen = [], set[str]()
    for position, show in enumerate(specification["shows"], 1):
        path = f"/chart/show[{position}]"
        if show["column"] not in names:
            faults.append({"path": path, "reason": f"the column {show['column'][:80]!r} does not exist"})
        for name_used in (f"column {show['column'][:80]!r}", f"channel {show['on']}" if show["on"] else ""):
            if name_used and name_used in seen:
                faults.append({"path": path, "reason": f"the {name_used} appears twice"})
            seen.add(name_used)
    return faults


def program_of(
    specification: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    marks: Sequence[Mapping[str, Any]] = (),
    exclusions: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The rules with the facts of one chart; each fact once."""
    facts = dict.fromkeys(
        [
            *_column_facts(specification, columns),
            *_request_facts(specification, marks),
            *(fact for exclusion in exclusions if (fact := _exclusion_fact(exclusion))),
        ]
    )
    return RULES.read_text(encoding="utf-8") + "\n" + "\n".join(facts)


def _column_facts(specification: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[str]:
    channels = {show["column"]: show["on"] for show in specification["shows"]}
    facts = []
    for number, column in enumerate(columns):
        name, minimum, maximum = f"c{number}", column.get("least"), column.get("most")
        facts.append(f"column({name},{column['kind']},{min(int(column['distinct']), _MAX_DISTINCT)}).")
        if minimum is not None and minimum < 0:
            facts.append(f"negative({name}).")
        if minimum is not None and minimum > 0:
            facts.append(f"positive({name}).")
            if maximum is not None and maximum / minimum > 1_000:
                facts.append(f"wide({name}).")
        if column["name"] in channels:
            facts.append(f"shown({name}).")
            if len(channels) > 1 and column["name"] == next(iter(channels)):
                facts.append(f"first({name}).")
            channel = channels[column["name"]]
            if channel:
                facts.append(f"wants({name},{channel}).")
        elif not channels:
            facts.append(f"offered({name}).")
    return facts


def _request_facts(specification: Mapping[str, Any], marks: Sequence[Mapping[str, Any]]) -> list[str]:
    facts = [f"intent({specification['intent']})."] if specification["intent"] else []
    facts += [f'concept("{word}").' for word in _WORD.findall(specification["concept"].lower())]
    for mark in marks:
        score = float(mark.get("score", 0))
        if mark.get("mark") in MARKS and LIKELY_AT_LEAST <= score <= 1:
            facts.append(f"likely({mark['mark']},{round(score * 100)}).")
    return facts


def _exclusion_fact(exclusion: Mapping[str, Any]) -> str:
    """Returns one exclusion; empty if it names nothing that the rules know."""
    selector, value, scope = (
        str(exclusion.get("selector")),
        str(exclusion.get("value")),
        str(exclusion.get("scope") or "*"),
    )
    if value not in _KNOWN_VALUES.get(selector, ()) or scope not in ("*", *MARKS, *CHANNELS):
        return ""
    return f"excluded({selector},{value},{chr(34) + '*' + chr(34) if scope == '*' else scope})."


def requested_marks(atoms: Sequence[str]) -> list[str]:
    """The marks that the person's words mean."""
    parsed = [match.groups() for atom in atoms if (match := _ATOM.fullmatch(atom))]
    return sorted(mark for kind, mark, _ in parsed if kind == "wished")


def design_of(atoms: Sequence[str], specification: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> Design:
    """The design that a model stands for."""
    names = {f"c{number}": column for number, column in enumerate(columns)}
    encodings: dict[str, dict[str, Any]] = {}
    scales: dict[str, str] = {}
    binned, mark = set[str](), ""
    for kind, first, second in (match.groups() for atom in atoms if (match := _ATOM.fullmatch(atom))):
        if kind == "chosen":
            mark = first
        elif kind == "at":
            column = names[first]
            missing = bool(column.get("nulls"))
            counts = {"distinct": int(column["distinct"]) - missing, "missing": missing}
            encodings[second] = {"column": column["name"], "kind": column["kind"], **counts, "id": first}
        elif kind == "counted":
            encodings[first] = {"column": "", "kind": "quantitative", "id": ""}
        elif kind == "scale":
            scales[first] = second
        elif kind == "binned":
            binned.add(first)
    for encoding in encodings.values():
        column_id = encoding.pop("id")
        encoding |= {"scale": scales.get(column_id, ""), "binned": column_id in binned}
    ordered = {channel: encodings[channel] for channel in CHANNELS if channel in encodings}
    return {"title": specification["title"], "mark": mark, "encodings": ordered}
