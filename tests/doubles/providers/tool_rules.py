"""What vendors refuse in the tools of a request and in the schema of a requested object, in the words of their
errors."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError

from tests.doubles.providers.refusal import Body, Refusal

MAX_TOOLS, MAX_DESCRIPTION, MAX_GEMINI_TOOLS = 128, 1_024, 512
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TOP_LEVEL = ("oneOf", "anyOf", "allOf", "enum", "not")
GEMINI_FIELDS = frozenset(
    [
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "default",
        "example",
        "items",
        "minItems",
        "maxItems",
        "enum",
        "properties",
        "propertyOrdering",
        "required",
        "minProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "anyOf",
    ]
)
"""The fields of the message `Schema` of v1beta; `$ref`, `const` and `additionalProperties` are not among them."""


def tool_refusals(vendor: str, body: Body, _: str = "") -> Iterator[Refusal]:
    """The rules that the tools of a request, or its form of the answer, break. Ollama has none."""
    if vendor == "anthropic":
        yield from _anthropic(body)
    elif vendor == "mistral":
        yield from _mistral(body)
    elif vendor == "gemini":
        yield from _gemini(body)
    elif vendor != "ollama":
        yield from _openai(body)


def _openai(body: Body) -> Iterator[Refusal]:
    tools = body.get("tools") or []
    if len(tools) > MAX_TOOLS:
        problem = f"Invalid 'tools': array too long. Expected an array with maximum length 128, but got {len(tools)}."
        yield Refusal(problem, "array_above_max_length", "tools")
    for number, tool in enumerate(tools):
        function, where = tool["function"], f"tools[{number}].function"
        if not NAME.fullmatch(function["name"]):
            yield Refusal(f"Invalid '{where}.name': string does not match pattern.", "invalid_value", f"{where}.name")
        if len(function.get("description") or "") > MAX_DESCRIPTION:
            problem = f"Invalid '{where}.description': string too long. Expected a maximum length of 1024."
            yield Refusal(problem, "string_above_max_length", f"{where}.description")
        for fault in _openai_schema(function.get("parameters") or {"type": "object", "properties": {}}):
            problem = f"Invalid schema for function '{function['name']}': {fault}"
            yield Refusal(problem, "invalid_function_parameters", f"{where}.parameters")
    output = (body.get("response_format") or {}).get("json_schema") or {}
    schema = output.get("schema")
    for fault in () if schema is None else (*_openai_schema(schema), *(_loose(schema) if output.get("strict") else ())):
        yield Refusal(f"Invalid schema for response_format: {fault}", "invalid_json_schema", "response_format")
    calls = [call for message in body.get("messages") or [] for call in message.get("tool_calls") or []]
    if not all(NAME.fullmatch(call["function"]["name"]) for call in calls):
        yield Refusal("Invalid 'messages[0].tool_calls[0].function.name'", "invalid_value", "messages")


def _openai_schema(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object" or any(keyword in schema for keyword in TOP_LEVEL):
        yield f"schema must have type 'object' and not have {'/'.join(TOP_LEVEL)} at the top level."
    if "properties" not in schema:
        yield "In context=(), object schema missing properties."
    yield from _nested_faults(schema, schema)
    if error := _schema_error(Draft202012Validator, schema):
        yield error


def _nested_faults(schema: Any, root: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(schema, list):
        for number, each in enumerate(schema):
            yield from _nested_faults(each, root, (*where, str(number)))
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if "array" in (kind if isinstance(kind, list) else [kind]) and "items" not in schema:
        yield f"In context={where}, array schema missing items."
    if isinstance(schema.get("items"), list):
        yield f"In context={where}, {schema['items']} is not of type 'object', 'boolean'."
    reference = schema.get("$ref")
    if isinstance(reference, str) and not _resolves(reference, root):
        yield f"In context={where}, reference {reference} can only point to definitions of the schema."
    for keyword, each in schema.items():
        if keyword not in ("enum", "const", "default", "examples"):
            yield from _nested_faults(each, root, (*where, keyword))


def _resolves(reference: str, root: Any) -> bool:
    for part in reference.removeprefix("#").split("/")[1:]:
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return reference.startswith("#") and root is not None


def _loose(schema: Any) -> Iterator[str]:
    """Why a schema is none for a strict answer."""
    for each in schema if isinstance(schema, list) else schema.values() if isinstance(schema, dict) else ():
        yield from _loose(each)
    if not isinstance(schema, dict):
        return
    if "allOf" in schema or "oneOf" in schema:
        yield "'allOf' is not permitted."
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        yield "'additionalProperties' is required to be supplied and to be false."
    if set(schema.get("properties", ())) - set(schema.get("required", ())):
        yield "'required' is required to be an array including every key in properties."


def _anthropic(body: Body) -> Iterator[Refusal]:
    for number, tool in enumerate(body.get("tools") or []):
        schema, where = tool["input_schema"], f"tools.{number}.custom"
        if not NAME.fullmatch(tool["name"]):
            yield Refusal(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if any(keyword in schema for keyword in TOP_LEVEL[:3]):
            yield Refusal(f"{where}.input_schema: does not support oneOf, allOf, or anyOf at the top level")
        if not all(map(PROPERTY.fullmatch, schema.get("properties", {}))):
            yield Refusal(f"{where}.input_schema.properties: Property keys should match pattern '{PROPERTY.pattern}'")
        if schema.get("type") != "object":
            yield Refusal(f"{where}.input_schema.type: Input should be 'object'")
        if _schema_error(Draft202012Validator, schema):
            yield Refusal(f"{where}.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12")


def _mistral(body: Body) -> Iterator[Refusal]:
    """By the validator that Mistral publishes and serves with."""
    functions = [tool["function"] for tool in body.get("tools") or []]
    for function in functions:
        if error := _schema_error(Draft7Validator, function["parameters"]):
            yield Refusal(f"Invalid tool schema: {error}")
    calls = [call["function"] for message in body.get("messages") or () for call in message.get("tool_calls") or ()]
    for function in [*functions, *calls]:
        if not NAME.fullmatch(function["name"]):
            rule = "a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64."
            yield Refusal(f"Function name was {function['name']} but must be {rule}")


def _schema_error(draft: Any, schema: Mapping[str, Any]) -> str:
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        return error.message
    return "" if isinstance(schema, dict) else f"{schema} is not of type 'object'"


def _gemini(body: Body) -> Iterator[Refusal]:
    functions = [each for tool in body.get("tools") or () for each in tool.get("function_declarations", ())]
    if len(functions) > MAX_GEMINI_TOOLS:
        yield Refusal(
            "tools[0].function_declarations: [FIELD_INVALID] At most 512 function declarations can be specified."
        )
    for number, function in enumerate(functions):
        where = f"tools[0].function_declarations[{number}]"
        if not GEMINI_NAME.fullmatch(function["name"]):
            rule = "Must start with a letter or an underscore. Must be alphameric, with a maximum length of 64."
            yield Refusal(f"* GenerateContentRequest.{where}.name: Invalid function name. {rule}")
        if "parameters" in function:
            schema = function["parameters"]
            if str(schema.get("type")).lower() != "object":
                yield Refusal(f"* GenerateContentRequest.{where}.parameters: schema should be of type OBJECT.")
            yield from map(Refusal, _gemini_schema(schema, f"{where}.parameters"))
    output = (body.get("generationConfig") or body.get("generation_config") or {}).get("responseSchema")
    yield from map(Refusal, _gemini_schema(output, "generation_config.response_schema") if output is not None else ())


def _gemini_schema(schema: dict[str, Any], where: str) -> Iterator[str]:
    """The faults of a schema, which Google reads into its message `Schema`."""
    for name in schema.keys() - GEMINI_FIELDS:
        yield f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
    kind = schema.get("type")
    if isinstance(kind, list):
        yield f"Unknown name \"type\" at '{where}': Proto field is not repeating, cannot start list."
    kind = str(kind or "").lower()
    rules = f"* GenerateContentRequest.{where}"
    if not kind and not schema.get("anyOf"):
        yield f"{rules}: didn't specify the schema type field"
    if kind == "array" and "items" not in schema:
        yield f"{rules}.items: missing field."
    if schema.get("enum") and kind != "string":
        yield f"{rules}.enum: only allowed for STRING type"
    if not all(isinstance(each, str) and each for each in schema.get("enum", ())):
        yield f"{rules}.enum[0]: cannot be empty"
    if kind == "string" and schema.get("format", "enum") not in ("enum", "date-time"):
        yield f"{rules}.format: only 'enum' and 'date-time' are supported for STRING type"
    if set(schema.get("required", ())) - set(schema.get("properties", ())):
        yield f"{rules}.required[0]: property is not defined"
    for name, each in schema.get("properties", {}).items():
        yield from _gemini_schema(each, f"{where}.properties[{name}]")
    for number, each in enumerate(schema.get("anyOf", ())):
        yield from _gemini_schema(each, f"{where}.any_of[{number}]")
    if "items" in schema:
        yield from _gemini_schema(schema["items"], f"{where}.items")
