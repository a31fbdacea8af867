"""JSON Schemas that authors write: every mistake with its place, before any value is checked against one."""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from perdure.apps.problems import AppProblem
from perdure.apps.yaml_file import Place, YamlFile


def schema_mistakes(schema: object, file: YamlFile, place: Place) -> Iterator[AppProblem]:
    """What keeps the value at `place` from being the schema of an object."""
    if not isinstance(schema, dict):
        return  # told as a wrong type already
    try:
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        where = (*place, *error.absolute_path)
        told = error.message if len(error.message) <= 200 else f"{error.message[:199]}…"
        yield file.problem(where, f"{'.'.join(map(str, where))} is no JSON Schema: {told}")
        return
    if schema.get("type") != "object":
        yield file.problem((*place, "type"), f"{'.'.join(map(str, place))} must be of type: object")
    lost = [(where, to) for where, to in _references(schema, place) if not _leads_somewhere(schema, to)]
    for where, reference in lost:
        yield file.problem(where, f"the reference {reference!r} leads nowhere within the schema")
    if not lost:
        try:
            Draft202012Validator(schema).is_valid({})
        except RecursionError:
            yield file.problem(place, f"{'.'.join(map(str, place))} refers to itself without end")


def _references(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "$ref" and isinstance(inner, str):
                yield (*place, name), inner
            else:
                yield from _references(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _references(inner, (*place, index))


def _leads_somewhere(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a JSON pointer into the schema finds a schema; anchors and other documents are not read."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    found: Any = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return isinstance(found, Mapping | bool)
