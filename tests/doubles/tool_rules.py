"""What OpenAI and Anthropic refuse in the tools of a request, with the errors that they send."""

import re
from collections.abc import Iterator
from typing import Any

MAX_TOOLS, MAX_DESCRIPTION = 128, 1_024
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TOP_LEVEL = ("oneOf", "anyOf", "allOf", "enum", "not")
Refusal = dict[str, Any]


def openai_refusal(body: dict[str, Any]) -> Refusal | None:
    """OpenAI's error for this request, or None."""
    tools = body.get("tools") or []
    if len(tools) > MAX_TOOLS:
        problem = f"Invalid 'tools': array too long. Expected an array with maximum length 128, but got {len(tools)}."
        return _openai(problem, "array_above_max_length", "tools")
    for number, tool in enumerate(tools):
        function = tool["function"]
        where = f"tools[{number}].function"
        if not NAME.fullmatch(function["name"]):
            return _openai(f"Invalid '{where}.name': string does not match pattern.", "invalid_value", f"{where}.name")
        if len(function.get("description") or "") > MAX_DESCRIPTION:
            problem = f"Invalid '{where}.description': string too long. Expected a maximum length of 1024."
            return _openai(problem, "string_above_max_length", f"{where}.description")
        fault = _schema_fault(function.get("parameters") or {"type": "object", "properties": {}})
        if fault:
            problem = f"Invalid schema for function '{function['name']}': {fault}"
            return _openai(problem, "invalid_function_parameters", f"{where}.parameters")
    output = (body.get("response_format") or {}).get("json_schema") or {}
    schema = output.get("schema")
    if schema is not None and (fault := _schema_fault(schema) or (_loose(schema) if output.get("strict") else "")):
        return _openai(f"Invalid schema for response_format: {fault}", "invalid_json_schema", "response_format")
    calls = [call for message in body.get("messages") or [] for call in message.get("tool_calls") or []]
    if not all(NAME.fullmatch(call["function"]["name"]) for call in calls):
        return _openai("Invalid 'messages[0].tool_calls[0].function.name'", "invalid_value", "messages")
    return None


def anthropic_refusal(body: dict[str, Any]) -> Refusal | None:
    """Anthropic's error for this request, or None."""
    for number, tool in enumerate(body.get("tools") or []):
        schema, where = tool["input_schema"], f"tools.{number}.custom"
        fault = ""
        if not NAME.fullmatch(tool["name"]):
            fault = f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        elif any(keyword in schema for keyword in TOP_LEVEL[:3]):
            fault = f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        elif not all(map(PROPERTY.fullmatch, schema.get("properties", {}))):
            fault = f"{where}.input_schema.properties: Property keys should match pattern '{PROPERTY.pattern}'"
        elif schema.get("type") != "object":
            fault = f"{where}.input_schema.type: Input should be 'object'"
        if fault:
            return {"type": "error", "error": {"type": "invalid_request_error", "message": fault}}
    return None


def _openai(message: str, code: str, param: str) -> Refusal:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _schema_fault(schema: dict[str, Any]) -> str:
    if schema.get("type") != "object" or any(keyword in schema for keyword in TOP_LEVEL):
        return f"schema must have type 'object' and not have {'/'.join(TOP_LEVEL)} at the top level."
    if "properties" not in schema:
        return "In context=(), object schema missing properties."
    return next(_nested_faults(schema, schema), "")


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


def _loose(schema: Any) -> str:
    """Why a schema is none for a strict answer; empty if it is one."""
    if isinstance(schema, list):
        return next(filter(None, map(_loose, schema)), "")
    if not isinstance(schema, dict):
        return ""
    if "allOf" in schema or "oneOf" in schema:
        return "'allOf' is not permitted."
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    if set(schema.get("properties", ())) - set(schema.get("required", ())):
        return "'required' is required to be an array including every key in properties."
    return next(filter(None, map(_loose, schema.values())), "")


def _resolves(reference: str, root: Any) -> bool:
    for part in reference.removeprefix("#").split("/")[1:]:
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return reference.startswith("#") and root is not None
