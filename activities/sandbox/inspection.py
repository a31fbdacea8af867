"""The check of a block when it is loaded: schemas, types, language; nothing of the block runs.

The block is checked twice: alone, where each flaw has its line, and called as its schemas will call it, where a flaw
belongs to the line of its `def run`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from keyword import iskeyword
from typing import NoReturn

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import JsonValue
from pydantic_monty import CollectString, MontyError, MontyRuntimeError, MontySyntaxError, MontyTypingError

from activities.sandbox.call import MOST_CODE_CHARACTERS
from activities.sandbox.limits import Limits
from activities.sandbox.protocol import Flaw
from activities.sandbox.ran import MOST_MESSAGE_CHARACTERS
from activities.sandbox.schema_types import annotation, properties
from activities.sandbox.worker import Worker

_RUN = re.compile(r"^def run\b", re.MULTILINE)
_GIVEN = "perdure_given_"
_MOST_FLAWS = 20


def schema_flaws(input_schema: Mapping[str, JsonValue], output_schema: Mapping[str, JsonValue]) -> tuple[Flaw, ...]:
    """What is wrong with the schemas themselves."""
    flaws = []
    for name, schema in (("input", input_schema), ("output", output_schema)):
        try:
            Draft202012Validator.check_schema(dict(schema))
        except SchemaError as error:
            where = ".".join(map(str, error.absolute_path)) or "top"
            flaws.append(Flaw(f"the {name} schema is no JSON schema, at {where}: {error.message[:200]}"))
    if not flaws and input_schema.get("type") != "object":
        flaws.append(Flaw("the input schema must be of type object: its properties are the parameters of run"))
    if not flaws:
        flaws += [
            Flaw(f"the input schema's property {name!r} can be no parameter's name")
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
    """What is wrong with a block whose schemas are well; blocks the thread."""
    if len(code) > MOST_CODE_CHARACTERS:
        return (Flaw(f"the block is longer than {MOST_CODE_CHARACTERS} characters"),)
    parameters = properties(input_schema)
    stubs = _stubs(parameters, output_schema)
    alone = _flaws(worker, code, stubs, limits)
    if alone:
        return alone
    found = _RUN.search(code)
    if found is None:
        return (Flaw("the block defines no function run"),)
    line = code.count("\n", 0, found.start()) + 1
    least = [name for name, (_, must) in parameters.items() if must]
    calls = {_call(least), _call(parameters)}
    called = _flaws(worker, code + "\n\n" + "\n".join(sorted(calls)), stubs, limits)
    return tuple(dict.fromkeys(Flaw(f"as its schemas call it: {flaw.message}", line) for flaw in called))


def _stubs(parameters: Mapping[str, tuple[str, bool]], output_schema: Mapping[str, JsonValue]) -> str:
    """Declarations that stand beside the block: where it is stopped, what it is given, where its value goes."""
    lines = [
        "from typing import Any",
        "def perdure_stop() -> None: ...",
        f"def the_output_schema(value: {annotation(dict(output_schema))}) -> None: ...",
    ]
    lines += [f"{_GIVEN}{name}: {kind}" for name, (kind, _) in parameters.items()]
    return "\n".join(lines) + "\n"


def _call(names: Iterable[str]) -> str:
    given = ", ".join(f"{name}={_GIVEN}{name}" for name in names)
    return f"the_output_schema(run({given}))"


class _Stopped(Exception):
    """Ends the program before the block's first line."""


def _flaws(worker: Worker, code: str, stubs: str, limits: Limits) -> tuple[Flaw, ...]:
    """What the type checker and the compiler say of a program that stops before it begins."""
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
        if line == 1:  # the stop itself: nothing stands in its way
            return ()
        told = error.display("type-msg")[:MOST_MESSAGE_CHARACTERS]
        return (Flaw(told, None if line is None else line - 1),)
    except (MontyError, ValueError) as error:
        return (Flaw(f"the block cannot be checked: {error}"[:MOST_MESSAGE_CHARACTERS]),)
    return (Flaw("the block cannot be checked: it did not stop before its first line"),)


def _typing_flaws(report: str) -> Iterator[Flaw]:
    """The type checker's findings; its first line is not the block's."""
    for finding in json.loads(report)[:_MOST_FLAWS]:
        yield Flaw(str(finding["message"])[:MOST_MESSAGE_CHARACTERS], int(finding["location"]["row"]) - 1)


def _stop() -> NoReturn:
    raise _Stopped
