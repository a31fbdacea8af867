"""From a function's type hints to the JSON Schema of its arguments, and from arguments to a call."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PydanticUserError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from perdure.context import ToolContext


class ToolDefinitionError(Exception):
    """A tool is not written as it must be; says which and what to change. Raised when its module is imported."""


class _Untitled(GenerateJsonSchema):
    """Titles repeat the names, and every model call pays for their tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one tool function."""

    schema: dict[str, JsonValue]
    """JSON Schema of an object that allows no other property."""
    context_name: str | None
    """The parameter that gets the ToolContext; None where the function takes none."""
    model: type[BaseModel]
    names: Mapping[str, str]
    """Field of `model` to parameter. They differ because a field may not be called `json` or `model_x`."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Parameters":
        """The parameters of `function`.

        Raises: ToolDefinitionError.
        """
        name = function.__name__
        hints = _hints(function)
        context_name: str | None = None
        fields: dict[str, Any] = {}
        names: dict[str, str] = {}
        for position, parameter in enumerate(inspect.signature(function).parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ToolDefinitionError(f"tool {name}: give every argument a name of its own, without *, ** and /")
            if parameter.name not in hints:
                raise ToolDefinitionError(f"tool {name}: parameter {parameter.name} has no type hint")
            if hints[parameter.name] is ToolContext:
                if position:
                    raise ToolDefinitionError(f"tool {name}: the ToolContext must be the first parameter")
                context_name = parameter.name
                continue
            if isinstance(parameter.default, FieldInfo):
                raise ToolDefinitionError(
                    f"tool {name}: write {parameter.name}: Annotated[type, Field(...)], with the default after the ="
                )
            required = parameter.default is parameter.empty
            field_name = f"argument_{position}"
            names[field_name] = parameter.name
            fields[field_name] = (
                hints[parameter.name],
                Field(... if required else parameter.default, alias=parameter.name),
            )
        model = _model(name, fields)
        return cls(_schema(name, model), context_name, model, names)

    def bind(self, args: Mapping[str, object]) -> dict[str, object]:
        """`args` as the keyword arguments of the call, with the types that the hints name.

        Raises: pydantic.ValidationError.
        """
        read = self.model.model_validate(dict(args))
        return {self.names[name]: getattr(read, name) for name in self.names}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is evaluated, so anything may be raised
        raise ToolDefinitionError(f"tool {function.__name__}: its type hints cannot be read: {error}") from error


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ToolDefinitionError(f"tool {name}: a parameter's type cannot be read from JSON: {reason}") from error


def _schema(name: str, model: type[BaseModel]) -> dict[str, JsonValue]:
    try:
        schema = model.model_json_schema(schema_generator=_Untitled)
    except PydanticInvalidForJsonSchema as error:
        reason = str(error).splitlines()[0]
        raise ToolDefinitionError(f"tool {name}: a parameter's type has no JSON form: {reason}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema
