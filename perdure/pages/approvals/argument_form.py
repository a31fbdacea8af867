"""The form fields of a call's arguments, and the arguments that a submitted form contains."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.core.calls.arguments import InvalidArgumentText, parsed_value
from perdure.core.json_schema import field_type, follow_reference
from perdure.core.text import flat, printable_runs
from perdure.pages.request import Form

_LINE_CHARACTERS = 80

"""Longer texts get a field of several lines."""

_MAX_SCHEMAS = 2_000

"""Maximum parts of a schema that are read for one field. Alternatives can be nested and can refer to themselves."""

_MAX_DEPTH = 6
_FieldKinds = tuple[set[str], list[str], bool]


class Shape(StrEnum):
    """Kinds of form fields for a value."""

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
    """The name of the form's field."""
    shape: Shape
    value: str
    is_given: bool
    """True if the call has this argument."""
    required: bool
    nullable: bool
    """True if an empty field can mean null."""
    allowed_values: str
    """The allowed values, in words."""
    meaning: str
    choices: tuple[str, ...] = ()
    fault: str = ""

    @property
    def given_key(self) -> str:
        """The name of the form field that states whether an optional argument is given."""
        return f"gives.{self.key}"


@dataclass(frozen=True, slots=True)
class EditedArguments:
    """The arguments that were read from the fields."""

    args: dict[str, Any]
    faults: Mapping[str, str]
    """Messages by argument."""


def fields_of(
    args: Mapping[str, Any],
    schema: Mapping[str, Any],
    typed: Form | None = None,
    faults: Mapping[str, str] | None = None,
) -> list[Field]:
    """Returns the fields for these arguments, with the earlier input and its faults. The fields are made from the
    tool's schema. A field that is not touched returns its value unchanged. Values that a form would change are edited
    as JSON: texts with a hidden character or another kind of line end. So is every value that is not a text, a number
    or a choice."""
    properties = schema.get("properties")
    declared: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    fields = []
    for number, name in enumerate([*declared, *(name for name in args if name not in declared)]):
        is_required = isinstance(required, list) and name in required
        field = _argument_field(
            name, f"arg.{number}", args, follow_reference(declared.get(name, {}), schema), schema, is_required
        )
        fields.append(_with_typed_text(field, typed, (faults or {}).get(name, "")))
    return fields


def read_fields(args: Mapping[str, Any], schema: Mapping[str, Any], form: Form) -> EditedArguments:
    """Returns the arguments that the form contains, and a fault for each field that cannot be read."""
    arguments: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for field in fields_of(args, schema):
        text = form.raw(field.key)
        if text is None:  # the form had no such field, so the value stays
            if field.is_given:
                arguments[field.name] = args[field.name]
            continue
        if not text and not field.required and not form.get(field.given_key):
            continue
        try:
            arguments[field.name] = _parse_value(field, text)
        except InvalidArgumentText as error:
            faults[field.name] = str(error)
    return EditedArguments(arguments, faults)


def _argument_field(
    name: str, key: str, args: Mapping[str, Any], spec: Mapping[str, Any], root: Mapping[str, Any], required: bool
) -> Field:
    is_given = name in args
    kinds, choices, nullable = _read_kinds(spec, root, iter(range(_MAX_SCHEMAS))) or (set(), [], False)
    value = args.get(name)
    shape = _editable_shape(value, kinds, choices) if is_given and value is not None else _choose_shape(kinds, choices)
    if is_given and value is None and not nullable:
        shape = Shape.JSON
    return Field(
        name=name,
        key=key,
        shape=shape,
        value=_field_text(value, shape) if is_given else "",
        is_given=is_given,
        required=required,
        nullable=nullable,
        allowed_values=field_type(spec, root),
        meaning=flat(str(spec.get("description") or ""), 300),
        choices=tuple(choices) if shape is Shape.CHOICE else (),
    )


def _with_typed_text(field: Field, typed: Form | None, fault: str) -> Field:
    text = typed.raw(field.key) if typed is not None else None
    if typed is None or text is None:
        return field
    is_given = field.required or bool(typed.get(field.given_key))
    return Field(
        field.name, field.key, field.shape, text, is_given, field.required, field.nullable, field.allowed_values,
        field.meaning, field.choices, fault,
    )  # fmt: skip


def _read_kinds(
    spec: Mapping[str, Any], root: Mapping[str, Any], budget: Iterator[int], depth: int = 0
) -> _FieldKinds | None:
    """Returns the JSON types that a field can hold, its choices as JSON, and whether null is allowed.

    Returns None if that cannot be found out within `budget` parts.
    """
    if next(budget, None) is None or depth > _MAX_DEPTH:
        return None
    alternatives = spec.get("anyOf") or spec.get("oneOf")
    if isinstance(alternatives, list):
        kinds_read: list[_FieldKinds] = []
        for schema in alternatives:
            alternative = _read_kinds(follow_reference(schema, root), root, budget, depth + 1)
            if alternative is None:
                return None
            kinds_read.append(alternative)
        kinds = {name for names, _, _ in kinds_read for name in names}
        all_choices = [schema for _, choices, _ in kinds_read for schema in choices]
        all_named = all(choices or names == {"null"} for names, choices, _ in kinds_read)
        return (
            kinds - {"null"},
            all_choices if all_named else [],
            "null" in kinds or any(null for _, _, null in kinds_read),
        )
    options = [spec["const"]] if "const" in spec else spec.get("enum")
    declared = spec.get("type")
    kinds = set(map(str, declared)) if isinstance(declared, list) else {str(declared)} if declared else set()
    if isinstance(options, list):
        return kinds, [_to_json(schema) for schema in options if schema is not None], None in options
    if kinds == {"boolean"}:
        return kinds, ["true", "false"], False
    return kinds - {"null"} or kinds, [], "null" in kinds


def _choose_shape(kinds: set[str], choices: list[str]) -> Shape:
    if choices:
        return Shape.CHOICE
    if kinds == {"string"}:
        return Shape.LINE
    return Shape.NUMBER if kinds and kinds <= {"integer", "number"} else Shape.JSON


def _editable_shape(value: Any, kinds: set[str], choices: list[str]) -> Shape:
    """Returns how an existing value is edited, so that it comes back unchanged."""
    shape = _choose_shape(kinds, choices)
    if shape is Shape.CHOICE:
        return shape if _to_json(value) in choices else Shape.JSON
    if shape is Shape.NUMBER:
        return shape if isinstance(value, int | float) and not isinstance(value, bool) else Shape.JSON
    if (
        shape is not Shape.LINE
        or not isinstance(value, str)
        or "\t" in value
        or any(is_hidden for _, is_hidden in printable_runs(value))
    ):
        return Shape.JSON
    return Shape.LINES if "\n" in value or len(value) > _LINE_CHARACTERS else Shape.LINE


def _field_text(value: Any, shape: Shape) -> str:
    if shape in (Shape.LINE, Shape.LINES):
        return str(value) if value is not None else ""
    if value is None and shape is not Shape.JSON:
        return ""
    return json.dumps(value, indent=2 if shape is Shape.JSON else None, ensure_ascii=shape is Shape.JSON)


def _parse_value(field: Field, text: str) -> Any:
    if not text and field.nullable:
        return None
    if field.shape in (Shape.LINE, Shape.LINES):
        return text
    return _parse_number(text) if field.shape is Shape.NUMBER else parsed_value(text)


def _parse_number(text: str) -> Any:
    with suppress(InvalidArgumentText):
        value = parsed_value(text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    raise InvalidArgumentText("it is not a number")


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
