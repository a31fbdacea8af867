"""Parses a model's argument text into the one form that is stored, shown, approved and sent, or into an error text.

Invariants:
- Nothing is guessed. Unreadable text is repaired once by json-repair; otherwise it is an error for the model, never
  `{}`. An object that was encoded twice is decoded twice. No text and `null` are `{}`, which the schema must allow.
  A repair corrects form only. A text that was cut off stays an error: the field that is missing at its end may be
  the one that limits the change. Two objects are an error, too: json-repair would silently keep the second (measured).
- Accepted arguments survive Postgres' jsonb unchanged, digest included. Because jsonb has one kind of number, a whole
  number is always an integer here. (Measured: `1e23` returns as 100000000000000000000000, `-0.0` as 0.0.)
- Accepted arguments match the tool's schema, and still match it when they are checked again.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import json_repair
from pydantic import JsonValue

from perdure.contracts.values import canonical_json, digest_of
from perdure.core.agents.tool_schemas import replaced_properties
from perdure.core.bounded_schemas import Effort
from perdure.core.calls.defaults import with_defaults
from perdure.core.calls.jsonb import InvalidArguments, jsonb_form
from perdure.core.json_schema import SchemaError, effort_for, schema_errors, schema_errors_text

MAX_ARGUMENTS_CHARACTERS = 262_144
"""Longer argument texts are rejected unread."""
MAX_REPAIR_CHARACTERS = 8_192
"""Longer invalid texts are not repaired: json-repair is quadratic on hostile text (measured: 2.9 s for 17,500
characters)."""
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
MAX_REPLAYED_CHARACTERS = 8_192
"""Maximum length of rejected arguments that are shown to the model again."""
_REJECTED = "_invalid_arguments"
_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(?P<inside>.*?)\n?\s*```\s*\Z", re.DOTALL)
MAX_GROUPS = 20
"""Further markers are ignored, so that a runaway answer does not fill a history."""


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """The result of parsing or checking arguments."""

    args: dict[str, JsonValue]
    """Canonical arguments; empty if there is a fault."""
    digest: str
    """The digest of `args`; see perdure/contracts/values.py."""
    fault: str | None = None
    """The reason why the arguments are invalid, in words for the model; None if they are valid."""
    repaired: bool = False
    schema_errors: tuple[SchemaError, ...] = ()
    """The fields that violate the schema."""


_Check = Callable[[object, Mapping[str, JsonValue]], ParsedArguments]


def parse_arguments(text: str, schema: Mapping[str, JsonValue]) -> ParsedArguments:
    """Parses a model's `text` into canonical arguments and checks them against `schema`, after at most one repair. The
    schema's defaults are filled in."""
    return _parse_checked(text, schema, freeze_arguments)


def _parse_checked(text: str, schema: Mapping[str, JsonValue], check: _Check) -> ParsedArguments:
    if len(text) > MAX_ARGUMENTS_CHARACTERS:
        return _invalid_arguments(f"the arguments exceed {MAX_ARGUMENTS_CHARACTERS} characters; send fewer")
    try:
        value = _parse_or_none(text)
        if isinstance(value, str):
            return _check_inner_text(value, schema, check)
        return _check_parsed({} if value is None else value, schema, check)
    except InvalidArguments as unfit:
        return _invalid_arguments(f"the arguments are invalid: {unfit}; send them again as one JSON object")
    except (ValueError, RecursionError):
        repaired = _repair_object(text)
    if repaired is None:
        return _invalid_arguments(
            "the arguments are not valid JSON and could not be repaired; send them again as one JSON object"
        )
    checked = _check_parsed(repaired, schema, check)
    return replace(checked, repaired=checked.fault is None)


def _check_inner_text(text: str, schema: Mapping[str, JsonValue], check: _Check) -> ParsedArguments:
    """Checks arguments that were encoded twice, so that the first decoding gave a string."""
    try:
        value = _parse_or_none(text)
    except (ValueError, RecursionError):
        value = text
    checked = _check_parsed({} if value is None else value, schema, check)
    return replace(checked, repaired=checked.fault is None)


def replayed_arguments(text: str) -> str:
    """Returns a model's rejected arguments for the next request to it: `text` itself if it is a JSON object, else an
    object with the text, cut if it is long. Providers reject a request whose arguments are not an object."""
    if not text.strip():
        return ""
    if len(text) <= MAX_REPLAYED_CHARACTERS:
        try:
            if isinstance(jsonb_form(_parse(text)), dict):
                return text
        except (InvalidArguments, ValueError, RecursionError):
            pass
    return canonical_json({_REJECTED: text[:MAX_REPLAYED_CHARACTERS]})


def check_arguments(value: object, schema: Mapping[str, JsonValue], effort: Effort | None = None) -> ParsedArguments:
    """Checks arguments that are JSON already."""
    try:
        args = jsonb_form(value)
        if not isinstance(args, dict):
            raise InvalidArguments("they must be a JSON object")
    except InvalidArguments as unfit:
        return _invalid_arguments(f"the arguments are invalid: {unfit}; send them again as one JSON object")
    found = schema_errors(args, schema, effort)
    if not found:
        return ParsedArguments(args, digest_of(args))
    return replace(
        _invalid_arguments(f"the arguments do not match the schema: {schema_errors_text(found)}"),
        schema_errors=tuple(found),
    )


def freeze_arguments(value: object, schema: Mapping[str, JsonValue]) -> ParsedArguments:
    """Checks the arguments of a call that is made or edited, and fills in the schema's defaults, so that the reviewer
    sees and the digest covers what will run."""
    effort = effort_for(value)
    checked = check_arguments(value, schema, effort)
    args = checked.args if checked.fault else with_defaults(checked.args, schema, effort)
    return checked if args == checked.args else ParsedArguments(args, digest_of(args))


def _parse_or_none(text: str) -> object:
    """Parses a model's text. Some providers send no text, or `null`, if there are no arguments."""
    return _parse(text) if text.strip() else None


def _check_parsed(value: object, schema: Mapping[str, JsonValue], check: _Check) -> ParsedArguments:
    """Checks a model's arguments, with the properties' own names instead of those that the model was sent."""
    replaced = replaced_properties(schema)
    if not replaced:
        return check(value, schema)
    try:
        return check(_with_own_names(jsonb_form(value), replaced), schema)
    except InvalidArguments as unfit:
        return _invalid_arguments(f"the arguments are invalid: {unfit}; send them again as one JSON object")


def _with_own_names(value: JsonValue, replaced: Mapping[str, str]) -> JsonValue:
    """Returns `value` with its properties renamed.

    Raises: InvalidArguments if an object has both names of a property.
    """
    if isinstance(value, list):
        return [_with_own_names(item, replaced) for item in value]
    if not isinstance(value, dict):
        return value
    repeated = [own for sent, own in replaced.items() if sent in value and own in value]
    if repeated:
        raise InvalidArguments(f"the name {repeated[0]!r} appears twice")
    return {replaced.get(name, name): _with_own_names(item, replaced) for name, item in value.items()}


def _parse(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidArguments(f"the name {repeated!r} appears twice")
    return unique


def _refuse_constant(name: str) -> object:
    raise InvalidArguments(f"{name} is not a valid number")


def _repair_object(text: str) -> dict[str, object] | None:
    """Returns json-repair's result for `text` if it is an object that is not empty."""
    if len(text) > MAX_REPAIR_CHARACTERS or not _is_complete(text):
        return None
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _is_complete(text: str) -> bool:
    """Returns whether `text` contains exactly one object, from its first brace to its last."""
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


def _invalid_arguments(fault: str) -> ParsedArguments:
    return ParsedArguments({}, digest_of({}), fault)


class InvalidArgumentText(Exception):
    """The text is not a set of arguments for this tool; the message contains the reason."""


def parse_object(text: str) -> dict[str, Any]:
    """Parses a JSON object strictly.

    A person wrote it, so nothing is repaired.

    Raises: InvalidArgumentText.
    """
    value = parsed_value(text)
    if not isinstance(value, dict):
        raise InvalidArgumentText("the arguments must be a JSON object")
    return value


def parsed_value(text: str) -> Any:
    """Parses any JSON value strictly.

    Raises: InvalidArgumentText.
    """
    try:
        return _parse(text)
    except json.JSONDecodeError as error:
        line = (text.split("\n") or [""])[error.lineno - 1].strip()
        raise InvalidArgumentText(f"invalid JSON: {error.msg} at column {error.colno} of the line {line!r}") from error
    except (InvalidArguments, ValueError, RecursionError) as error:
        raise InvalidArgumentText(f"invalid JSON: {error}") from error


def same_json(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns whether both are the same JSON. 1 and `true` are different."""
    return canonical_json(before) == canonical_json(after)


def read_object(text: str, schema: Mapping[str, JsonValue]) -> ParsedArguments:
    """Returns the object in a model's answer. Its fault is in words for the model. The text is parsed strictly,
    repaired once, and accepted only if it matches the schema. Defaults are not filled in, because the model did not say
    them. No text and `null` are not an answer, unless the object has no properties."""
    fenced = _FENCED.match(text)
    text = fenced["inside"] if fenced else text
    if text.strip() in ("", "null") and schema.get("properties"):
        return _invalid_arguments("the answer is empty; answer with one JSON object")
    parsed = _parse_checked(text, schema, check_arguments)
    if parsed.fault is None:
        return parsed
    return ParsedArguments({}, parsed.digest, parsed.fault.replace("the arguments", "the answer", 1))


def extract_groups(pattern: str, text: str) -> tuple[str, ...]:
    """Returns the first group of every match of `pattern`, in order, without duplicates. A topology extracts them from
    a model's whole answer, before the answer is replaced by a reference."""
    if not pattern:
        return ()
    found = dict.fromkeys(match.group(1)[:200] for match in re.finditer(pattern, text))
    return tuple(found)[:MAX_GROUPS]
