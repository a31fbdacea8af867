"""A model's argument text as the one form that is stored, shown, approved and sent; or a text that says why not.

Invariants:
- Nothing is guessed: unreadable text is repaired once by json-repair, then is an error for the model, never `{}`
  (S0-47, S2-24). A repair mends form; a text that was cut off stays an error, because the field that is missing at
  its end may be the one that made a small change of a large one, and so do two objects, because json-repair would
  quietly keep the second (measured).
- What is accepted survives Postgres' jsonb unchanged, digest included. jsonb knows one kind of number, so a whole
  number is always an integer here (measured: `1e23` comes back as 100000000000000000000000, `-0.0` as 0.0).
- What is accepted fits the tool's schema, and stays fitting when it is checked again.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import json_repair
from pydantic import JsonValue

from perdure.contracts.values import canonical_json, digest_of
from perdure.core.json_schema import Misfit, misfits, told_of
from perdure.core.text import is_clean

MOST_CHARACTERS = 262_144
"""Longer argument texts are refused unread."""
MOST_REPAIR_CHARACTERS = 8_192
"""Longer broken texts are not repaired: json-repair is quadratic on hostile text (measured: 2.9 s for 17,500)."""
MOST_DEPTH = 32
_MOST_DIGITS = 300
"""An integer beyond every float is no argument of a tool."""
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text or a value came to."""

    args: dict[str, JsonValue]
    """Canonical; empty where there is a fault."""
    digest: str
    """Of `args`; see perdure/contracts/values.py."""
    fault: str | None = None
    """Why these are no arguments for the tool, in words for the model; None where they are."""
    repaired: bool = False
    misfits: tuple[Misfit, ...] = ()
    """By field, how they break the schema."""


class InvalidArguments(Exception):
    """Why a value is no set of arguments, or none that jsonb gives back as it was."""


def parse_arguments(text: str, schema: Mapping[str, JsonValue]) -> Parsed:
    """The arguments in a model's `text`, canonical and fitting `schema`, after at most one repair."""
    if len(text) > MOST_CHARACTERS:
        return _faulty(f"the arguments are longer than {MOST_CHARACTERS} characters; send less")
    if not text.strip() and not schema.get("properties"):
        return check_arguments({}, schema)  # some providers send nothing where there is nothing to say
    try:
        return check_arguments(_parse(text), schema)
    except InvalidArguments as unfit:
        return _faulty(f"the arguments could not be read: {unfit}; send them again as one JSON object")
    except (ValueError, RecursionError):
        repaired = _repair(text)
    if repaired is None:
        return _faulty("the arguments are not JSON and could not be repaired; send them again as one JSON object")
    checked = check_arguments(repaired, schema)
    return replace(checked, repaired=checked.fault is None)


def check_arguments(value: object, schema: Mapping[str, JsonValue]) -> Parsed:
    """Arguments that are JSON already: those a reviewer edited, or stored ones checked again before they are used."""
    try:
        args = canonical(value)
        if not isinstance(args, dict):
            raise InvalidArguments("they must be one JSON object")
    except InvalidArguments as unfit:
        return _faulty(f"the arguments could not be read: {unfit}; send them again as one JSON object")
    found = misfits(args, schema)
    if not found:
        return Parsed(args, digest_of(args))
    return replace(_faulty(f"the arguments do not fit: {told_of(found)}"), misfits=tuple(found))


def _parse(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) < len(pairs):
        raise InvalidArguments("a name is given twice")
    return read


def _refuse_constant(name: str) -> object:
    raise InvalidArguments(f"{name} is not a number")


def _repair(text: str) -> dict[str, object] | None:
    """What json-repair makes of `text`, where that is an object with something in it."""
    if len(text) > MOST_REPAIR_CHARACTERS or not _whole(text):
        return None
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _whole(text: str) -> bool:
    """Whether `text` holds exactly one object from its first brace to its last."""
    outside = _QUOTED.sub("", text)
    depth, closed = 0, False
    for character in outside:
        if character == "{":
            if closed:
                return False
            depth += 1
        elif character == "}":
            depth -= 1
            closed = depth <= 0
    return closed and '"' not in outside


def canonical(value: object, depth: int = MOST_DEPTH) -> JsonValue:
    """`value` as jsonb would give it back.

    Raises: Unfit.
    """
    if depth == 0 and isinstance(value, list | dict):
        raise InvalidArguments(f"they are nested deeper than {MOST_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_clean(value):
            raise InvalidArguments("a text holds a NUL or half a character")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArguments("a number is too large")
        if not value.is_integer():
            return value
        value = int(value)
    if isinstance(value, int):
        if abs(value) >= 10**_MOST_DIGITS:
            raise InvalidArguments("a number is too large")
        return value
    if isinstance(value, list):
        return [canonical(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {_name(key): canonical(item, depth - 1) for key, item in value.items()}
    raise InvalidArguments(f"{type(value).__name__} is not JSON")


def _name(key: object) -> str:
    if not isinstance(key, str) or not is_clean(key):
        raise InvalidArguments("a name holds a NUL or half a character")
    return key


def _faulty(fault: str) -> Parsed:
    return Parsed({}, digest_of({}), fault)


# --- Arguments as a person wrote them, in JSON: read strictly, nothing repaired and nothing guessed.


class InvalidArgumentText(Exception):
    """What was written is no set of arguments for this tool; the message says why."""


def parsed(text: str) -> dict[str, Any]:
    """A JSON object, read strictly.

    Raises: Unfit.
    """
    value = parsed_value(text)
    if not isinstance(value, dict):
        raise InvalidArgumentText("the arguments must be a JSON object")
    return value


def parsed_value(text: str) -> Any:
    """Any JSON value, read strictly.

    Raises: Unfit.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_names, parse_constant=_refuse_number_word)
    except json.JSONDecodeError as error:
        line = (text.split("\n") or [""])[error.lineno - 1].strip()
        raise InvalidArgumentText(
            f"that is not JSON: {error.msg} at column {error.colno} of the line {line!r}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentText(f"that is not JSON: {error}") from error


def same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether both are the same JSON; 1 and `true` are not."""
    return canonical_json(before) == canonical_json(after)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return read


def _refuse_number_word(name: str) -> object:
    raise ValueError(f"{name} is not a number")


# --- The object that a model was to answer with: read strictly, repaired once, believed only where it fits its schema.

_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(?P<inside>.*?)\n?\s*```\s*\Z", re.DOTALL)


def read_object(text: str, schema: Mapping[str, JsonValue]) -> Parsed:
    """The object in what a model said; its fault is in words for the model."""
    fenced = _FENCED.match(text)
    parsed = parse_arguments(fenced["inside"] if fenced else text, schema)
    if parsed.fault is None:
        return parsed
    return Parsed({}, parsed.digest, parsed.fault.replace("the arguments", "the answer", 1))


# --- Marks that a topology looks for in a model's whole answer, found before the answer is cut to a reference.

MOST = 20
"""Marks beyond these are ignored: a runaway answer must not fill a history."""


def extracted(pattern: str, text: str) -> tuple[str, ...]:
    """The first group of every match of `pattern`, in order, each once."""
    if not pattern:
        return ()
    found = dict.fromkeys(match.group(1)[:200] for match in re.finditer(pattern, text))
    return tuple(found)[:MOST]
