"""The parameters of a tool's function: their JSON Schema, their defaults, and the values of a call."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import SchemaError, SchemaValidator, core_schema

from perdure.contracts.values import canonical_json
from perdure.sdk.context import ToolContext
from perdure.sdk.default_values import has_unordered_elements, in_order, stable_text
from perdure.sdk.exact_types import checks_more, impossible_values
from perdure.sdk.json_reading import ArgumentsRefused, faults_of, with_json_reading


class ToolDefinitionError(Exception):
    """A tool's definition is invalid. The message names the tool and the change. Raised when its module is imported."""


class _ArgumentsSchema(GenerateJsonSchema):
    """Omits titles, because they repeat the names and cost tokens in every model call, and the defaults that their own
    type would refuse or change, also within models. A default of null stays, because none is filled in."""

    def __init__(self, *, with_factories: bool = True) -> None:
        super().__init__()
        self.removed: list[str] = []
        self.has_factories = False
        """True if a default comes from a factory."""
        self._with_factories = with_factories
        self._types: list[Any] = []

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> dict[str, Any]:
        self._types = schema["definitions"] if schema["type"] == "definitions" else []
        return super().generate(schema, mode)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        """Returns the schema with the default, also of a factory that always returns the same value. The value of any
        other factory, such as a new id, is made when the call runs."""
        factory = schema.get("default_factory")
        if factory is not None:
            schema = {name: value for name, value in schema.items() if name != "default_factory"}
            if self._with_factories and _is_constant(factory):
                self.has_factories = True
                schema["default"] = factory()
        made, default = super().default_schema(schema), schema.get("default")
        if made.get("default") is None:
            return made
        if has_unordered_elements(default) and isinstance(made["default"], list):
            made["default"].sort(key=repr)
        if self._is_kept(schema["schema"], made["default"], default):
            return made
        if factory is None:
            self.removed.append(stable_text(default))
        return {name: value for name, value in made.items() if name != "default"}

    def encode_default(self, dft: Any) -> Any:
        return in_order(super().encode_default(dft), dft)

    def _is_kept(self, schema: Any, shown: object, default: object) -> bool:
        try:
            validator = SchemaValidator(core_schema.definitions_schema(schema, self._types) if self._types else schema)
        except SchemaError:  # a part that needs its whole
            return True
        return _is_same(validator, shown, default)


def _is_constant(factory: Any) -> bool:
    """Returns whether a factory without arguments uses no name but its own, and has no function within it: `list`, or
    `lambda: ["a"]`."""
    code = getattr(factory, "__code__", None)
    if code is None:
        return factory in (list, dict, set, frozenset, tuple, str, int, float, bool)
    outer = code.co_names or code.co_freevars or code.co_argcount or code.co_kwonlyargcount
    return not outer and not any(isinstance(constant, CodeType) for constant in code.co_consts)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one tool function."""

    schema: dict[str, JsonValue]
    """JSON Schema of an object without additional properties."""
    context_name: str | None
    """The parameter that receives the ToolContext; None if the function has none."""
    model: type[BaseModel]
    names: Mapping[str, str]
    """Parameters by field of `model`. They differ because a field cannot be named `json` or `model_x`."""
    own_defaults: Mapping[str, str] = field(default_factory=dict)
    """The defaults that the schema does not have, as texts that are equal in every process."""
    versioned_schema: dict[str, JsonValue] = field(default_factory=dict)
    """The schema that the tool's version covers: without the defaults of factories, which it did not have at first."""

    @property
    def checks_more(self) -> bool:
        """True if the types may refuse values that fit the schema: dates, decimals, patterns, an author's validators.

        Only types that are known to refuse nothing more count as False.
        """
        return checks_more(self.model.__pydantic_core_schema__)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Parameters":
        """Returns the parameters of `function`.

        Raises: ToolDefinitionError if a parameter is invalid.
        """
        name = function.__name__
        hints = _type_hints(function)
        context_name: str | None = None
        hinted: dict[str, Any] = {}
        names: dict[str, str] = {}
        for position, parameter in enumerate(inspect.signature(function).parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ToolDefinitionError(
                    f"tool {name}: each argument needs its own name; *, ** and / are not supported"
                )
            if parameter.name not in hints:
                raise ToolDefinitionError(f"tool {name}: parameter {parameter.name} has no type hint")
            if hints[parameter.name] is ToolContext:
                if position:
                    raise ToolDefinitionError(f"tool {name}: ToolContext must be the first parameter")
                context_name = parameter.name
                continue
            if isinstance(parameter.default, FieldInfo):
                raise ToolDefinitionError(
                    f"tool {name}: write {parameter.name}: Annotated[type, Field(...)], with the default after ="
                )
            required = parameter.default is parameter.empty
            field_name = f"argument_{position}"
            names[field_name] = parameter.name
            hinted[field_name] = (
                hints[parameter.name],
                Field(... if required else parameter.default, alias=parameter.name),
            )
        model = _arguments_model(name, hinted)
        schema, removed, has_factories = _arguments_schema(function, hints, model)
        versioned = schema
        if has_factories:
            versioned = _arguments_schema(function, hints, model, with_factories=False)[0]
        return cls(schema, context_name, model, names, removed, versioned)

    def bind(self, args: Mapping[str, object]) -> dict[str, object]:
        """Returns `args` as the keyword arguments of the call, converted to the types of the hints.

        Raises: ArgumentsRefused, whatever a validator of the author's raises.
        """
        try:
            validated = self.model.model_validate(dict(args))
        except ArgumentsRefused:
            raise
        except ValidationError as error:
            raise ArgumentsRefused.of(faults_of(error)[0]) from error
        except BaseException as error:  # also sys.exit() in a validator
            raise ArgumentsRefused("", f"the arguments could not be checked ({type(error).__name__})") from error
        return {self.names[name]: getattr(validated, name) for name in self.names}


def _is_same(types: TypeAdapter[Any] | SchemaValidator, shown: object, default: object) -> bool:
    """Returns whether the types make the default of what the schema shows, which must be JSON: infinity is not."""
    try:
        canonical_json(shown)
        return bool(_validated(types, shown) == default)
    except Exception:  # a validator of the author's, or a comparison, can raise anything
        return False


def _validated(types: TypeAdapter[Any] | SchemaValidator, value: object) -> Any:
    """Returns the value of a default as its type reads it: as Python's, or else as JSON.

    Raises: whatever a validator raises.
    """
    try:
        return types.validate_python(value)
    except ValidationError:
        return types.validate_json(canonical_json(value))


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # evaluating a hint can raise anything
        raise ToolDefinitionError(f"tool {function.__name__}: the type hints cannot be resolved: {error}") from error


def _arguments_model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        # The schema check compares decimals exactly. pydantic compares floats and refuses 8388955.54 for 0.01. Without
        # the last argument, models within this one would keep their validators.
        read = with_json_reading(_without_steps(model.__pydantic_core_schema__))
        model.__pydantic_validator__ = SchemaValidator(read, _use_prebuilt=False)
    except (PydanticUserError, SchemaError) as error:  # a bound or a pattern that cannot be used is a SchemaError
        reason = str(error).splitlines()[0 if isinstance(error, PydanticUserError) else -1].strip()
        raise ToolDefinitionError(f"tool {name}: a parameter's type cannot be parsed from JSON: {reason}") from error
    if impossible := impossible_values(model.__pydantic_core_schema__):
        raise ToolDefinitionError(f"tool {name}: {impossible}")
    return model


def _without_steps(part: Any) -> Any:
    """Returns a core schema whose floats have no `multiple_of`."""
    if isinstance(part, list | tuple):
        return type(part)(map(_without_steps, part))
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    dropped = "multiple_of" if kind == "float" else ""
    # A dictionary of fields is not a type, and its fields can have these names.
    kept = ("default", "metadata", "serialization", "config") if isinstance(kind, str) else ()
    return {name: each if name in kept else _without_steps(each) for name, each in part.items() if name != dropped}


def _arguments_schema(
    function: Callable[..., Any], hints: Mapping[str, Any], model: type[BaseModel], *, with_factories: bool = True
) -> tuple[dict[str, JsonValue], dict[str, str], bool]:
    """Returns the schema, the defaults that it does not have, and whether some of its defaults are from factories."""
    generator = _ArgumentsSchema(with_factories=with_factories)
    try:
        schema = generator.generate(model.__pydantic_core_schema__)
    except PydanticInvalidForJsonSchema as error:
        reason = str(error).splitlines()[0]
        message = f"tool {function.__name__}: a parameter's type has no JSON schema: {reason}"
        raise ToolDefinitionError(message) from error
    schema.pop("title", None)
    removed = _remove_unfit_defaults(function, hints, schema.setdefault("properties", {}))
    if generator.removed:
        removed[""] = stable_text(sorted(set(generator.removed)))  # also those within models
    return schema, removed, generator.has_factories


def _remove_unfit_defaults(function: Callable[..., Any], hints: Mapping[str, Any], properties: Any) -> dict[str, str]:
    """Removes each default that its own type would refuse or change when it is parsed from JSON. Returns the defaults
    that the schema does not have.

    The engine fills in a schema's defaults as if the model had sent them. A removed default stays the function's own.
    """
    own: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        shown = properties.get(name, {})
        if "default" in shown and not _is_same(TypeAdapter(hints[name]), shown["default"], parameter.default):
            del shown["default"]
        if name in properties and "default" not in shown and parameter.default is not parameter.empty:
            own[name] = stable_text(parameter.default)
    return own
