"""Checks of a block when it is loaded: schemas, types and language. No code of the block runs.

The block is checked twice. The first check reads the block alone and reports each flaw at its line. The second adds the
types of the schemas and reports flaws at the line of `def run`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from keyword import iskeyword
from typing import NoReturn

from pydantic import JsonValue
from pydantic_monty import CollectString, MontyError, MontyRuntimeError, MontySyntaxError, MontyTypingError

from perdure.activities.sandbox.protocol import MAX_MESSAGE_CHARACTERS, Flaw, Limits
from perdure.activities.sandbox.worker import MAX_CODE_CHARACTERS, Worker
from perdure.core.json_schema import mistakes_in_schema

_RUN = re.compile(r"^def run\b", re.MULTILINE)
_INPUT_PREFIX = "perdure_given_"
_MAX_FLAWS = 20
_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANY = "Any"


def schema_flaws(input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]) -> tuple[Flaw, ...]:
    """Returns the flaws of a block's schemas: invalid JSON Schema, an input that is not an object, or a property that
    cannot be a parameter name."""
    flaws = []
    for name, schema in (("input", input_schema), ("output", output_schema)):
        for place, mistake in mistakes_in_schema(schema):
            where = ".".join(map(str, place)) or "top"
            flaws.append(Flaw(f"the {name} schema is not a valid JSON Schema at {where}: {mistake[:200]}"))
    if not flaws and input_schema.get("type") != "object":
        flaws.append(Flaw("the input schema must have `type: object`; its properties are the parameters of `run`"))
    if not flaws:
        flaws += [
            Flaw(f"the input schema's property {name!r} cannot be a parameter name")
            for name in properties(input_schema)
            if not name.isidentifier() or iskeyword(name)
        ]
    return tuple(flaws)


def code_flaws(
    worker: Worker,
    code: str,
    input_schema: Mapping[str, JsonValue],
    output_schema: Mapping[str, JsonValue],
    limits: Limits,
) -> tuple[Flaw, ...]:
    """Returns the flaws of a block whose schemas are valid; blocks the thread."""
    if len(code) > MAX_CODE_CHARACTERS:
        return (Flaw(f"the block exceeds {MAX_CODE_CHARACTERS} characters"),)
    parameters = properties(input_schema)
    stubs = _stubs(parameters, output_schema)
    block_flaws = _program_flaws(worker, code, stubs, limits)
    if block_flaws:
        return block_flaws
    definition = _RUN.search(code)
    if definition is None:
        return (Flaw("the block does not define the function `run`"),)
    line = code.count("\n", 0, definition.start()) + 1
    required_names = [name for name, (_, required) in parameters.items() if required]
    calls = {_call(required_names), _call(parameters)}
    call_flaws = _program_flaws(worker, code + "\n\n" + "\n".join(sorted(calls)), stubs, limits)
    return tuple(dict.fromkeys(Flaw(f"type error for the schemas' types: {flaw.message}", line) for flaw in call_flaws))


def _stubs(parameters: Mapping[str, tuple[str, bool]], output_schema: Mapping[str, JsonValue]) -> str:
    """Returns declarations for the type checker: the stop function, the inputs, and the function that takes the block's
    value."""
    lines = [
        "from typing import Any",
        "def perdure_stop() -> None: ...",
        f"def the_output_schema(value: {annotation(dict(output_schema))}) -> None: ...",
    ]
    lines += [f"{_INPUT_PREFIX}{name}: {kind}" for name, (kind, _) in parameters.items()]
    return "\n".join(lines) + "\n"


def _call(names: Iterable[str]) -> str:
    arguments = ", ".join(f"{name}={_INPUT_PREFIX}{name}" for name in names)
    return f"the_output_schema(run({arguments}))"


class _Stopped(Exception):
    """Ends the program before the block's first line."""


def _program_flaws(worker: Worker, code: str, stubs: str, limits: Limits) -> tuple[Flaw, ...]:
    """Returns the errors of the type checker and the compiler for a program that stops before its first line."""
    try:
        with worker.session(limits, stubs) as session:
            session.feed_run(
                "perdure_stop()\n" + code,
                external_lookup={"perdure_stop": _stop},
                print_callback=CollectString(1),
            )
    except MontyTypingError as error:
        return tuple(_typing_flaws(error.display()))
    except (MontySyntaxError, MontyRuntimeError) as error:
        line = next((frame.line for frame in reversed(error.traceback())), None)
        if line == 1:  # the stop itself: the block has no flaws
            return ()
        message = error.display("type-msg")[:MAX_MESSAGE_CHARACTERS]
        return (Flaw(message, None if line is None else line - 1),)
    except (MontyError, ValueError) as error:
        return (Flaw(f"the block cannot be checked: {error}"[:MAX_MESSAGE_CHARACTERS]),)
    return (Flaw("the block cannot be checked: the test did not stop before its first line"),)


def _typing_flaws(report: str) -> Iterator[Flaw]:
    """Yields the type checker's findings. Their line numbers include the stop line, which is not part of the block."""
    for finding in json.loads(report)[:_MAX_FLAWS]:
        yield Flaw(str(finding["message"])[:MAX_MESSAGE_CHARACTERS], int(finding["location"]["row"]) - 1)


def _stop() -> NoReturn:
    raise _Stopped


def annotation(schema: JsonValue) -> str:
    """Returns the Python type for values of this schema, or `Any` if no type can express it. An annotation is never
    narrower than the schema, so that no valid block is rejected. Every object is `dict[str, Any]`: a TypedDict could
    not be passed to a parameter of type `dict`, which blocks use. The contents are checked at run time by the
    schema."""
    if not isinstance(schema, Mapping) or "$ref" in schema:
        return ANY
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _union([annotation({**schema, "type": kind}) for kind in kinds])
    if isinstance(kinds, str):
        return _of_kind(kinds, schema)
    for choice in ("anyOf", "oneOf"):
        options = schema.get(choice)
        if isinstance(options, list):
            return _union([annotation(option) for option in options])
    return ANY


def properties(schema: Mapping[str, JsonValue]) -> dict[str, tuple[str, bool]]:
    """Returns the annotation of each property of an object's schema, and whether it is required."""
    schemas, required_names = schema.get("properties"), schema.get("required")
    if not isinstance(schemas, dict):
        return {}
    required = set(map(str, required_names)) if isinstance(required_names, list) else set()
    return {name: (annotation(property_schema), name in required) for name, property_schema in schemas.items()}


def _of_kind(kind: str, schema: Mapping[str, JsonValue]) -> str:
    if kind == "array":
        return f"list[{annotation(schema.get('items', True))}]"
    if kind == "object":
        return "dict[str, Any]"
    return _SIMPLE.get(kind, ANY)


def _union(annotations: list[str]) -> str:
    kinds = sorted(set(annotations))
    return ANY if ANY in kinds or not kinds else " | ".join(kinds)
