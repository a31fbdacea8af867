"""What vendors refuse in the messages and tools of a request and in the schema of a requested object, as they document
it or as their servers say, in the words of their errors."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError

from tests.doubles.providers.requests import openai_messages
from tests.doubles.providers.script import Body, Refusal
from tests.doubles.providers.wires import SIGNATURE, SKIPPED, signature_of

CALL_IDS = {"mistral": r"[A-Za-z0-9]{9}", "anthropic": r"[A-Za-z0-9_-]+", "": r".{1,40}"}
"""The ids of calls that a vendor takes."""
NO_PREFILL = re.compile(r"claude-[a-z]+-(4-[6-9]|[5-9])")
INVENTED = "[System: "
"""The beginning of what LiteLLM puts in the place of a text without words."""
MISTRAL_FOLLOWS = {
    "system": ("user", "assistant", "system"),
    "user": ("assistant", "system", "user"),
    "assistant": ("assistant", "user", "tool"),
    "tool": ("assistant", "tool"),
}
"""The roles that can follow a role, by the validator that Mistral publishes and serves with."""
ORDER, CALL = "3230", "3280"
"""Mistral's codes."""
UNEQUAL = "The number of function response parts must be equal to the number of function call parts."


def message_refusals(vendor: str, body: Body, url: str) -> Iterator[Refusal]:
    """The rules that the messages break. A Mistral model has its own ones on every host."""
    if vendor == "gemini":
        yield from map(Refusal, _gemini_faults(body["contents"], url) if "contents" in body else ())
        return
    messages, model = body.get("messages") or [], str(body.get("model"))
    if vendor == "ollama":
        yield from map(Refusal, _ollama_faults(messages))
        return
    if vendor == "anthropic":
        yield from map(Refusal, _anthropic_faults(body, messages, model))
    if "mistral" in model:
        yield from (Refusal(fault, ORDER) for fault in _mistral_faults([each["role"] for each in messages]))
        vendor = "mistral"
    pattern = CALL_IDS.get(vendor, CALL_IDS[""])
    for fault, code in _call_faults(openai_messages(body), pattern):
        yield Refusal(fault, code if vendor == "mistral" else "", "messages")


def _call_faults(messages: Iterable[dict[str, Any]], pattern: str) -> Iterator[tuple[str, str]]:
    """Each call has one result right after it, and each message of the model has words or calls."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield "a result without its call", ORDER
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield "a call without its result", ORDER
        calls = message.get("tool_calls") or ()
        waiting = [call["id"] for call in calls]
        text = str(message.get("content") or "")
        if message["role"] == "assistant" and (INVENTED in text or ((text or not calls) and not text.strip())):
            yield "a text without words", ORDER
        if len({*waiting} | seen) < len(waiting) + len(seen):
            yield "two calls with one id", CALL
        seen |= {*waiting}
        for call in calls:
            if not re.fullmatch(pattern, call["id"]):
                yield "an id that the vendor does not take", CALL
            if not _is_object(call["function"].get("arguments", "{}")):
                yield "arguments that are not a JSON object", CALL
    if waiting:
        yield "a call without its result", ORDER


def _is_object(arguments: object) -> bool:
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _anthropic_faults(body: Body, messages: list[Any], model: str) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if roles[:1] == ["assistant"]:
        yield 'messages: first message must use the "user" role'
    for before, role in pairwise(roles):
        if before == role:
            yield f'messages: roles must alternate between "user" and "assistant", but found multiple "{role}" roles'
    parts = [_parts(message) for message in messages]
    if any(part.get("text", "x") == "" for each in parts for part in each):
        yield "messages: text content blocks must be non-empty"
    if roles[-1:] == ["assistant"]:
        if NO_PREFILL.search(model):
            yield "This model does not support assistant message prefill. It must end with a user message."
        text = "".join(part.get("text", "") for part in parts[-1])
        if text != text.rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
    yield from _thinking_faults(body, list(zip(roles, parts, strict=True)))


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _thinking_faults(body: Body, messages: list[tuple[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """Thinking goes back unchanged, and a round that is continued with thinking begins with it."""
    thinks = (body.get("thinking") or {}).get("type") == "enabled"
    if thinks and (body.get("tool_choice") or {}).get("type") in ("tool", "any"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    began = unsigned = False
    for role, parts in messages:
        if role == "user":
            began = began and any(part["type"] == "tool_result" for part in parts)
            continue
        signed = [part for part in parts if part["type"] == "thinking"]
        if any(part["signature"] != signature_of(part["thinking"]) for part in signed):
            yield "thinking blocks in the latest assistant message cannot be modified"
        unsigned = unsigned if began else not signed
        began = True
    if thinks and began and unsigned:
        yield "Expected `thinking` or `redacted_thinking`, but found `tool_use`."


def _mistral_faults(roles: list[str]) -> Iterator[str]:
    for before, role in pairwise(roles):
        if role not in MISTRAL_FOLLOWS[before]:
            yield f"Unexpected role '{role}' after role '{before}'"
    if len(roles) > 1 and roles[-1] == "assistant":
        yield "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"


def _gemini_faults(turns: list[dict[str, Any]], url: str) -> Iterator[str]:
    def of(turn: dict[str, Any], kind: str) -> list[Any]:
        return [part[kind] for part in turn["parts"] if kind in part]

    spoken = [number for number, turn in enumerate(turns) if turn["role"] == "user" and of(turn, "text")]
    asked: list[Any] = []
    for number, turn in enumerate(turns):
        calls, results = of(turn, "function_call"), of(turn, "function_response")
        if not turn["parts"] or any("text" in part and not part["text"] for part in turn["parts"]):
            yield f"* GenerateContentRequest.contents[{number}].parts: contents.parts must not be empty."
        if results and not asked:
            yield "Please ensure that function response turn comes immediately after a function call turn."
        if len(results) != len(asked) or {each["name"] for each in results} - {each["name"] for each in asked}:
            yield UNEQUAL
        if calls and (not number or turns[number - 1]["role"] != "user"):
            yield "Please ensure that function call turn comes immediately after a user turn"
        if not all(isinstance(each["response"], dict) for each in results):
            yield "Invalid value at 'function_response.response' (type.googleapis.com/google.protobuf.Struct)"
        first: dict[str, Any] = next((part for part in turn["parts"] if "function_call" in part), {})
        unsigned = first.get("thoughtSignature") not in (SIGNATURE, SKIPPED)
        if calls and unsigned and "gemini-3" in url and number > max(spoken, default=-1):
            yield "Function call is missing a thought_signature in functionCall parts."
        asked = calls
    if asked:
        yield UNEQUAL
    if turns[-1]["role"] != "user":
        yield "Please ensure that multiturn requests end with a user role or a function response."


def _ollama_faults(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Its server reads the JSON into Go types."""
    into = "json: cannot unmarshal {} into Go struct field ChatRequest.messages.{} of type {}"
    for message in messages:
        if not isinstance(message.get("content", ""), str):
            yield into.format("array", "content", "string")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], dict):
                yield into.format("string", "tool_calls.function.arguments", "api.ToolCallFunctionArguments")


MAX_TOOLS, MAX_DESCRIPTION, MAX_GEMINI_TOOLS = 128, 1_024, 512
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TOP_LEVEL = ("oneOf", "anyOf", "allOf", "enum", "not")
GEMINI_FIELDS = frozenset(
    [
        "type", "format", "title", "description", "nullable", "default", "example", "items", "minItems", "maxItems",
        "enum", "properties", "propertyOrdering", "required", "minProperties", "maxProperties", "minimum", "maximum",
        "minLength", "maxLength", "pattern", "anyOf",
    ]
)  # fmt: skip
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
