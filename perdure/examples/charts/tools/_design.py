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
_KNOWN = {"mark": MARKS, "channel": CHANNELS, "scale": SCALES}
_WORD = re.compile(r"[a-z]{2,20}")
_ATOM = re.compile(r"(\w+)\((\w+)(?:,(\w+))?\)")
LIKELY_AT_LEAST = 0.5
_MOST_DISTINCT = 100_000

Design = dict[str, Any]


def specification_of(root: Element) -> dict[str, Any]:
    """A chart's specification as plain values."""
    shows = [{"column": one.get("column", ""), "on": one.get("on", "")} for one in root.findall("show")]
    return {name: root.get(name, "") for name in ("title", "concept", "intent")} | {"shows": shows}


def specification_faults(
    specification: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Returns faults that a schema cannot express: missing columns, and channels or columns that appear twice."""
    names = [str(column["name"]) for column in columns]
    faults, seen = [], set[str]()
    for place, show in enumerate(specification["shows"], 1):
        path = f"/chart/show[{place}]"
        if show["column"] not in names:
            faults.append({"path": path, "reason": f"the column {show['column'][:80]!r} does not exist"})
        for given in (f"column {show['column'][:80]!r}", f"channel {show['on']}" if show["on"] else ""):
            if given and given in seen:
                faults.append({"path": path, "reason": f"the {given} appears twice"})
            seen.add(given)
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
            *_of_columns(specification, columns),
            *_of_person(specification, marks),
            *(fact for one in exclusions if (fact := _excluded(one))),
        ]
    )
    return RULES.read_text(encoding="utf-8") + "\n" + "\n".join(facts)


def _of_columns(specification: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[str]:
    wanted = {show["column"]: show["on"] for show in specification["shows"]}
    facts = []
    for number, column in enumerate(columns):
        name, least, most = f"c{number}", column.get("least"), column.get("most")
        facts.append(f"column({name},{column['kind']},{min(int(column['distinct']), _MOST_DISTINCT)}).")
        if least is not None and least < 0:
            facts.append(f"negative({name}).")
        if least is not None and least > 0:
            facts.append(f"positive({name}).")
            if most is not None and most / least > 1_000:
                facts.append(f"wide({name}).")
        if column["name"] in wanted:
            facts.append(f"shown({name}).")
            if len(wanted) > 1 and column["name"] == next(iter(wanted)):
                facts.append(f"first({name}).")
            channel = wanted[column["name"]]
            if channel:
                facts.append(f"wants({name},{channel}).")
        elif not wanted:
            facts.append(f"offered({name}).")
    return facts


def _of_person(specification: Mapping[str, Any], marks: Sequence[Mapping[str, Any]]) -> list[str]:
    facts = [f"intent({specification['intent']})."] if specification["intent"] else []
    facts += [f'concept("{word}").' for word in _WORD.findall(specification["concept"].lower())]
    for mark in marks:
        score = float(mark.get("score", 0))
        if mark.get("mark") in MARKS and LIKELY_AT_LEAST <= score <= 1:
            facts.append(f"likely({mark['mark']},{round(score * 100)}).")
    return facts


def _excluded(one: Mapping[str, Any]) -> str:
    """Returns one exclusion; empty if it names nothing that the rules know."""
    selector, value, scope = str(one.get("selector")), str(one.get("value")), str(one.get("scope") or "*")
    if value not in _KNOWN.get(selector, ()) or scope not in ("*", *MARKS, *CHANNELS):
        return ""
    return f"excluded({selector},{value},{chr(34) + '*' + chr(34) if scope == '*' else scope})."


def wished_of(atoms: Sequence[str]) -> list[str]:
    """The marks that the person's words mean."""
    found = [match.groups() for atom in atoms if (match := _ATOM.fullmatch(atom))]
    return sorted(mark for kind, mark, _ in found if kind == "wished")


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
            of_it = {"distinct": int(column["distinct"]) - missing, "missing": missing}
            encodings[second] = {"column": column["name"], "kind": column["kind"], **of_it, "id": first}
        elif kind == "counted":
            encodings[first] = {"column": "", "kind": "quantitative", "id": ""}
        elif kind == "scale":
            scales[first] = second
        elif kind == "binned":
            binned.add(first)
    for encoding in encodings.values():
        own = encoding.pop("id")
        encoding |= {"scale": scales.get(own, ""), "binned": own in binned}
    ordered = {channel: encodings[channel] for channel in CHANNELS if channel in encodings}
    return {"title": specification["title"], "mark": mark, "encodings": ordered}
