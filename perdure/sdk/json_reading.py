"""Reads the arguments of a call by their types: as Python's values, and those of strict types also as JSON.

Strict types read dates, sets and the like only from JSON. Other types could read JSON in another way: `date | str`
would make a date of every text that is one.
"""

from collections.abc import Callable
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import SchemaValidator, core_schema

from perdure.contracts.values import canonical_json
from perdure.sdk.outcomes import ToolRefused

_AUTHORS = frozenset({"value_error", "assertion_error"})
_KINDS_OF_FAULTS = frozenset(get_args(core_schema.ErrorType)) - _AUTHORS
"""The faults that pydantic's own types find. All others are of an author's validator, which has the value already."""
_NO_TYPES = frozenset({"metadata", "serialization", "default", "cls", "expected", "members"})


class ArgumentsRefused(ToolRefused):
    """The types of a tool's parameters refuse the arguments of a call."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        """The path of the argument, with dots; empty for the arguments as a whole."""
        self.problem = problem

    @property
    def crash(self) -> BaseException | None:
        """The error of a validator of the author's, if it was not a refusal."""
        return None if isinstance(self.__cause__, ValidationError) else self.__cause__

    @classmethod
    def of(cls, fault: Any, *within: str) -> "ArgumentsRefused":
        """Returns the refusal of one of pydantic's faults."""
        return cls(".".join(map(str, (*within, *fault["loc"]))), fault["msg"])


def faults_of(error: ValidationError) -> list[Any]:
    """Returns the faults without the values."""
    return error.errors(include_url=False, include_input=False, include_context=False)


def with_json_reading(core: Any) -> Any:
    """Returns the core schema of a model of arguments, in which each argument of a strict type is read as JSON if it is
    refused as a Python value.

    Raises: SchemaError.
    """
    if core["type"] == "definitions":
        return {**core, "schema": _with_json_reading(core["schema"], core["definitions"])}
    return _with_json_reading(core, [])


def _with_json_reading(model: Any, types: list[Any]) -> Any:
    fields = model["schema"]["fields"]
    read = {
        name: {**field, "schema": _argument(field["schema"], types, str(field.get("validation_alias", name)))}
        for name, field in fields.items()
    }
    return {**model, "schema": {**model["schema"], "fields": read}}


def _argument(part: Any, types: list[Any], name: str) -> Any:
    if part["type"] == "default":
        return {**part, "schema": _argument(part["schema"], types, name)}
    whole = [part, types] if _has(part, lambda each: each.get("type") == "definition-ref") else part
    if not _has(whole, lambda each: each.get("strict") is True or each.get("type") == "json-or-python"):
        return part
    has_unions = _has(whole, lambda each: each.get("type") in ("union", "tagged-union"))
    # Without the last argument, models within this one would keep their own validators.
    as_json = SchemaValidator(core_schema.definitions_schema(part, types) if types else part, _use_prebuilt=False)

    def read(value: Any, as_python: Callable[[Any], Any]) -> Any:
        try:
            return as_python(value)
        except ValidationError as refused:
            authors = [fault for fault in faults_of(refused) if fault["type"] not in _KINDS_OF_FAULTS]
            if authors and (not has_unions or len(authors) == refused.error_count()):
                raise ArgumentsRefused.of(authors[0], name) from refused
        return as_json.validate_json(canonical_json(value))

    return core_schema.no_info_wrap_validator_function(read, part)


def _has(part: Any, is_it: Callable[[dict[str, Any]], bool]) -> bool:
    """Returns whether a core schema has such a part."""
    if isinstance(part, list | tuple):
        return any(_has(each, is_it) for each in part)
    if not isinstance(part, dict):
        return False
    return is_it(part) or any(_has(each, is_it) for name, each in part.items() if name not in _NO_TYPES)
