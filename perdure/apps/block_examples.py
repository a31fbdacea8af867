"""The examples of a block's card: each runs, and where it says what it comes to, that is what it must come to.

Only a command that checks an app runs them; a worker that loads it does not.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.frozen import Frozen
from contracts.skills import CodeBlock
from perdure.apps.problems import AppProblem
from perdure.apps.yaml_file import Place, YamlFile

_SHOWN_CHARACTERS = 120


class ExampleForm(Frozen):
    """An entry under `examples:` of a card; those under `input.examples` are inputs alone."""

    input: dict[str, JsonValue]
    output: dict[str, JsonValue] | None = None
    """What `run` returns for it; left out, any result will do that the schema allows."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What one run came to."""

    value: JsonValue = None
    fault: str = ""
    """Why there is no value; empty where there is one."""
    line: int | None = None
    """Of the block, where the fault has one."""
    spent: bool = False
    """It used up its time: further examples would as well."""


Trial = Callable[[CodeBlock, Mapping[str, JsonValue], Mapping[str, JsonValue]], Tried | None]
"""One run of a block with these inputs and these tables by name; None where nothing can be run here."""


def example_mistakes(
    block: CodeBlock,
    examples: Sequence[ExampleForm],
    tables: Mapping[str, JsonValue],
    card: YamlFile,
    trial: Trial,
) -> Iterator[AppProblem]:
    """What is wrong with the examples of a block that has no other mistake, each at its line of the card."""
    listed = block.input.get("examples")
    given: list[tuple[Place, JsonValue, JsonValue]] = [
        (("input", "examples", index), inputs, None)
        for index, inputs in enumerate(listed if isinstance(listed, list) else ())
    ]
    given += [(("examples", index), each.input, each.output) for index, each in enumerate(examples)]
    for place, inputs, expected in given:
        if not isinstance(inputs, dict):
            yield card.problem(place, "an example is an object with the fields of the input")
            continue
        tried = trial(block, inputs, tables)
        if tried is None:
            return
        if tried.fault:
            where = f" ({block.name}.py:{tried.line})" if tried.line else ""
            yield card.problem(place, f"the example fails: {tried.fault}{where}")
        elif expected is not None and (found := difference(tried.value, expected)) is not None:
            yield card.problem((*place, "output"), f"the example comes to something else: {found}")
        if tried.spent:
            return


def difference(value: JsonValue, expected: JsonValue, place: str = "") -> str | None:
    """The first place where JSON differs, in words; 2 and 2.0 are one number, 1 and true are two things."""
    if isinstance(value, dict) and isinstance(expected, dict):
        for name in (*expected, *value):
            here = f"{place}.{name}" if place else name
            if name not in value or name not in expected:
                return f"{here} is {'missing' if name not in value else 'not expected'}"
            if (found := difference(value[name], expected[name], here)) is not None:
                return found
        return None
    if isinstance(value, list) and isinstance(expected, list):
        if len(value) != len(expected):
            return f"{place} has {len(value)} items, not {len(expected)}"
        inner = (difference(*pair, f"{place}.{index}") for index, pair in enumerate(zip(value, expected, strict=True)))
        return next((found for found in inner if found is not None), None)
    if value == expected and isinstance(value, bool) is isinstance(expected, bool):
        return None
    return f"{place} is {_shown(value)}, not {_shown(expected)}"


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
