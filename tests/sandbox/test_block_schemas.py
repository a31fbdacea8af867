"""A block and its schemas: what is checked when it is loaded, and what each time it runs."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.activities.sandbox import Block, FaultKind, run_block
from perdure.activities.sandbox.pool import MontySandbox

CIRCLE = """
import math
from typing import Any


def run(radius_feet: float, places: int = 2) -> dict[str, Any]:
    \"\"\"The area of a circle, in square feet.\"\"\"
    if radius_feet < 0:
        raise ValueError("a radius is not negative")
    print("radius", radius_feet)
    return {"area_square_feet": round(math.pi * radius_feet**2, places)}
"""
INPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"radius_feet": {"type": "number"}, "places": {"type": "integer", "minimum": 0}},
    "required": ["radius_feet"],
    "additionalProperties": False,
}
OUTPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"area_square_feet": {"type": "number", "minimum": 0, "maximum": 1000}},
    "required": ["area_square_feet"],
}


async def flaws(sandbox: MontySandbox, code: str, inputs: Any = INPUTS, outputs: Any = OUTPUTS) -> list[str]:
    return [str(flaw) for flaw in await sandbox.check(code, inputs, outputs)]


async def test_a_good_block_has_no_flaw_and_gives_its_value(sandbox: MontySandbox) -> None:
    assert await sandbox.check(CIRCLE, INPUTS, OUTPUTS) == ()
    ran = await run_block(sandbox, "t", Block(CIRCLE, INPUTS, OUTPUTS), {"radius_feet": 2})
    assert ran.value == {"area_square_feet": 12.57}
    assert (ran.fault, ran.output) == (None, "radius 2\n")


@pytest.mark.parametrize(("inputs", "kind", "told"), [
    ({}, FaultKind.INPUTS, "radius_feet"),
    ({"radius_feet": "2"}, FaultKind.INPUTS, "radius_feet"),
    ({"radius_feet": 2, "colour": "red"}, FaultKind.INPUTS, "colour"),
    ({"radius_feet": -1}, FaultKind.RAISED, "ValueError: a radius is not negative"),
    ({"radius_feet": 100}, FaultKind.VALUE, "area_square_feet"),
])  # fmt: skip
async def test_an_invalid_block_is_a_fault_and_no_exception(
    sandbox: MontySandbox, inputs: dict[str, JsonValue], kind: FaultKind, told: str
) -> None:
    ran = await run_block(sandbox, "t", Block(CIRCLE, INPUTS, OUTPUTS), inputs)
    assert ran.value is None
    assert ran.fault is not None and ran.fault.kind is kind
    assert told in ran.fault.message
    assert ran.fault.line == (9 if kind is FaultKind.RAISED else None)


@pytest.mark.parametrize(("code", "schema", "value", "fits"), [
    ("[1, 2]", {"type": "array", "items": {"type": "integer"}}, [1, 2], True),
    ("[1, '2']", {"type": "array", "items": {"type": "integer"}}, None, False),
    ("(1, 2)", {"$ref": "#/$defs/pair", "$defs": {"pair": {"maxItems": 2}}}, [1, 2], True),
    ("(1, 2, 3)", {"$ref": "#/$defs/pair", "$defs": {"pair": {"maxItems": 2}}}, None, False),
    ("None", {"type": ["string", "null"]}, None, True), ("'é\\n'", {"type": "string"}, "é\n", True),
    ("1.5", {"type": "integer"}, None, False), ("10 ** 30", {}, 10**30, True),
    ("{1: 'a'}", {"type": "object"}, {"1": "a"}, True), ("{'a': float('nan')}", {}, None, False),
])  # fmt: skip
async def test_values_of_every_kind_are_checked_against_the_schema(
    sandbox: MontySandbox, code: str, schema: Any, value: JsonValue, fits: bool
) -> None:
    ran = await run_block(sandbox, "t", Block(f"def run():\n    return {code}", {"type": "object"}, schema), {})
    assert ran.value == value
    assert fits is (ran.fault is None)
    assert fits or (ran.fault is not None and ran.fault.kind is FaultKind.VALUE)


async def test_every_json_value_passes_through_a_block_unchanged(sandbox: MontySandbox) -> None:
    every: JsonValue = {
        "texts": ["", "é 漢 \U0001f600", 'quote " and \\ and \n', "\u2028", "perdure_value"],
        "numbers": [0, -1, 1.5, 1e-300, 2**63, -(10**200), 1e300],
        "rest": [True, False, None, [], {}, [[[]]], {"": {"a b": 1, "class": 2}}],
    }
    ran = await sandbox.run("t", "def run(given):\n    return given", {"given": every})
    assert ran.fault is None
    assert json.dumps(ran.value) == json.dumps(every)


async def test_inputs_that_cannot_be_serialized_are_a_fault(sandbox: MontySandbox) -> None:
    for given in ("\ud800", object()):
        ran = await sandbox.run("t", "def run(given):\n    return given", {"given": given})  # type: ignore[dict-item]
        assert ran.fault is not None and ran.fault.kind is FaultKind.INPUTS
    assert (await sandbox.run("t", "def run():\n    return 1", {})).value == 1


def circle(line: int, replaced: str) -> str:
    """The block with another line in this place."""
    lines = CIRCLE.split("\n")
    return "\n".join([*lines[: line - 1], replaced, *lines[line:]])


def block_with_signature(signature: str) -> str:
    return f"from typing import Any\n\ndef run({signature}) -> dict[str, Any]:\n    return {{}}"


@pytest.mark.parametrize(("code", "line"), [
    (circle(9, "        raise ValueError(radius_foot)"), 9), (circle(11, "    return {'area': 'x' / 2}"), 11),
    (circle(2, "import subprocess"), 2), (circle(10, "    spare = 1; del spare"), 10),
    (circle(4, "class Sly(dict): pass"), 4), (circle(8, "    if radius_feet < 0"), 8),
    (block_with_signature("radius_feet: str, places: int = 2"), 3),
    (block_with_signature("radius_feet: float, places: int"), 3), (block_with_signature("radius_feet: float"), 3),
    (block_with_signature("radius_feet: float, places: int, more: int"), 3),
    ("def run(radius_feet: float, places: int = 2) -> list[float]:\n    return [radius_feet]", 1),
    (block_with_signature("radius_feet: float, places: int = 2"), None),
])  # fmt: skip
async def test_a_flaw_of_code_or_of_its_call_has_its_line(sandbox: MontySandbox, code: str, line: int | None) -> None:
    found = await sandbox.check(code, INPUTS, OUTPUTS)
    assert line in [flaw.line for flaw in found] if line else found == (), found


async def test_an_invalid_schema_is_refused_with_its_place(sandbox: MontySandbox) -> None:
    wrong = {"type": "object", "properties": {"radius_feet": {"type": "long"}}}
    assert "properties.radius_feet.type" in (await flaws(sandbox, CIRCLE, wrong))[0]
    assert await flaws(sandbox, CIRCLE, INPUTS, {"type": 7}) and await flaws(sandbox, CIRCLE, {"type": "array"})
    for name in ("radius feet", "class"):
        named = {"type": "object", "properties": {name: {"type": "number"}}}
        assert repr(name) in (await flaws(sandbox, CIRCLE, named))[0]


async def test_a_block_without_run_is_refused_and_a_check_runs_nothing_of_a_block(sandbox: MontySandbox) -> None:
    assert len(await sandbox.check("def ran():\n    return 1", INPUTS, OUTPUTS)) == 1
    assert await flaws(sandbox, "x = '''\ndef run(): pass\n'''") != []
    code = "print('x' * 10)\nwhile True:\n    pass\n\ndef run() -> dict[str, int]:\n    return {}"
    assert await sandbox.check(code, {"type": "object"}, {"type": "object"}) == ()


async def test_a_check_of_a_hostile_block_ends(sandbox: MontySandbox) -> None:
    for code in ("x = " + "(" * 100_000, "a, " * 80_000, "x" * 300_000, "def run() -> " + "list[" * 5000):
        assert await sandbox.check(code, {"type": "object"}, {"type": "object"}) != ()
    assert await sandbox.check(CIRCLE, INPUTS, OUTPUTS) == ()
