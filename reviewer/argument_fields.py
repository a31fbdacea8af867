"""A call's arguments as the fields of a form, made from the tool's schema, and back to exact arguments.

What is not touched comes back as it was: a text that a form would change on its way (a hidden character, a line end of
another kind) is edited as JSON, and so is every value that is more than a text, a number or a choice.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from policy.argument_text import Unfit, parsed_value
from policy.printable import flat, pieces
from policy.schema_outline import followed, kind
from reviewer.forms import Form

_LINE_CHARACTERS = 80
"""A longer text gets a field of several lines."""
_MOST_LOOKS = 2_000
"""Parts of a schema by which one field is shaped: alternatives may each have alternatives, and name themselves."""
_DEEPEST = 6
_Kinds = tuple[set[str], list[str], bool]


class Shape(StrEnum):
    """How a value is typed."""

    LINE = "line"
    LINES = "lines"
    NUMBER = "number"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Field:
    """One argument in the form."""

    name: str
    key: str
    """Of the form's field."""
    shape: Shape
    value: str
    given: bool
    """Whether the call has this argument."""
    required: bool
    nullable: bool
    """Whether an empty field may stand for null."""
    may_hold: str
    """In words."""
    meaning: str
    choices: tuple[str, ...] = ()
    fault: str = ""

    @property
    def gives(self) -> str:
        """The form's field that says whether an argument is given which need not be."""
        return f"gives.{self.key}"


@dataclass(frozen=True, slots=True)
class Edit:
    """What the fields came to."""

    args: dict[str, Any]
    faults: Mapping[str, str]
    """By argument, in words."""


def fields_of(
    args: Mapping[str, Any],
    schema: Mapping[str, Any],
    typed: Form | None = None,
    faults: Mapping[str, str] | None = None,
) -> list[Field]:
    """The fields for these arguments, with what was typed into them before and what was wrong with it."""
    properties = schema.get("properties")
    declared: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    found = []
    for number, name in enumerate([*declared, *(name for name in args if name not in declared)]):
        needed = isinstance(required, list) and name in required
        field = _field(name, f"arg.{number}", args, followed(declared.get(name, {}), schema), schema, needed)
        found.append(_typed(field, typed, (faults or {}).get(name, "")))
    return found


def read_fields(args: Mapping[str, Any], schema: Mapping[str, Any], form: Form) -> Edit:
    """The arguments that the form's fields say."""
    read: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for field in fields_of(args, schema):
        text = form.whole(field.key)
        if text is None:  # the form had no such field: it stays as it was
            if field.given:
                read[field.name] = args[field.name]
            continue
        if not text and not field.required and not form.get(field.gives):
            continue
        try:
            read[field.name] = _value(field, text)
        except Unfit as unfit:
            faults[field.name] = str(unfit)
    return Edit(read, faults)


def _field(
    name: str, key: str, args: Mapping[str, Any], spec: Mapping[str, Any], root: Mapping[str, Any], required: bool
) -> Field:
    given = name in args
    kinds, choices, nullable = _kinds(spec, root, iter(range(_MOST_LOOKS))) or (set(), [], False)
    value = args.get(name)
    shape = _shape(value, kinds, choices) if given and value is not None else _shape_of(kinds, choices)
    if given and value is None and not nullable:
        shape = Shape.JSON
    return Field(
        name=name,
        key=key,
        shape=shape,
        value=_written(value, shape) if given else "",
        given=given,
        required=required,
        nullable=nullable,
        may_hold=kind(spec, root),
        meaning=flat(str(spec.get("description") or ""), 300),
        choices=tuple(choices) if shape is Shape.CHOICE else (),
    )


def _typed(field: Field, typed: Form | None, fault: str) -> Field:
    text = typed.whole(field.key) if typed is not None else None
    if typed is None or text is None:
        return field
    given = field.required or bool(typed.get(field.gives))
    return Field(
        field.name, field.key, field.shape, text, given, field.required, field.nullable, field.may_hold, field.meaning,
        field.choices, fault,
    )  # fmt: skip


def _kinds(spec: Mapping[str, Any], root: Mapping[str, Any], looks: Iterator[int], depth: int = 0) -> _Kinds | None:
    """The types of JSON that a field may hold, its choices as JSON, and whether null is one; None where that is not to
    be found out within `looks`."""
    if next(looks, None) is None or depth > _DEEPEST:
        return None
    either = spec.get("anyOf") or spec.get("oneOf")
    if isinstance(either, list):
        read: list[_Kinds] = []
        for each in either:
            found = _kinds(followed(each, root), root, looks, depth + 1)
            if found is None:
                return None
            read.append(found)
        kinds = {name for names, _, _ in read for name in names}
        all_choices = [each for _, choices, _ in read for each in choices]
        named = all(choices or names == {"null"} for names, choices, _ in read)
        return kinds - {"null"}, all_choices if named else [], "null" in kinds or any(null for _, _, null in read)
    options = [spec["const"]] if "const" in spec else spec.get("enum")
    told = spec.get("type")
    kinds = set(map(str, told)) if isinstance(told, list) else {str(told)} if told else set()
    if isinstance(options, list):
        return kinds, [_json(each) for each in options if each is not None], None in options
    if kinds == {"boolean"}:
        return kinds, ["true", "false"], False
    return kinds - {"null"} or kinds, [], "null" in kinds


def _shape_of(kinds: set[str], choices: list[str]) -> Shape:
    if choices:
        return Shape.CHOICE
    if kinds == {"string"}:
        return Shape.LINE
    return Shape.NUMBER if kinds and kinds <= {"integer", "number"} else Shape.JSON


def _shape(value: Any, kinds: set[str], choices: list[str]) -> Shape:
    """How a value that is there is edited, so that it comes back as it was."""
    shape = _shape_of(kinds, choices)
    if shape is Shape.CHOICE:
        return shape if _json(value) in choices else Shape.JSON
    if shape is Shape.NUMBER:
        return shape if isinstance(value, int | float) and not isinstance(value, bool) else Shape.JSON
    if shape is not Shape.LINE or not isinstance(value, str) or "\t" in value or any(hid for _, hid in pieces(value)):
        return Shape.JSON
    return Shape.LINES if "\n" in value or len(value) > _LINE_CHARACTERS else Shape.LINE


def _written(value: Any, shape: Shape) -> str:
    if shape in (Shape.LINE, Shape.LINES):
        return str(value) if value is not None else ""
    if value is None and shape is not Shape.JSON:
        return ""
    return json.dumps(value, indent=2 if shape is Shape.JSON else None, ensure_ascii=shape is Shape.JSON)


def _value(field: Field, text: str) -> Any:
    if not text and field.nullable:
        return None
    if field.shape in (Shape.LINE, Shape.LINES):
        return text
    return _number(text) if field.shape is Shape.NUMBER else parsed_value(text)


def _number(text: str) -> Any:
    with suppress(Unfit):
        value = parsed_value(text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    raise Unfit("that is not a number")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
