"""Each of the eight code blocks has strict schemas and working examples, and runs in the sandbox."""

import ast
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic_monty import Monty

from tests.unit.examples.filings.blocks import STUBS, Block, blocks, examples, run, run_in_monty

UNITS = ("_ft", "_deg", "_mcf", "_mcf_per_day", "_pct", "_btu_per_scf", "_lb_per_mmscf", "_kg", "_tons", "hours")
PLAIN = ("acres", "days", "value", "minimum", "maximum", "limit")
"""Numbers whose name is their unit, or that have a field `unit` beside them."""


def schemas(schema: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the field, schema) of a schema and of all in it."""
    yield name, schema
    for field, inner in schema.get("properties", {}).items():
        yield from schemas(inner, field)
    if isinstance(schema.get("items"), dict):
        yield from schemas(schema["items"], name)


@pytest.fixture(params=sorted(blocks()))
def block(request: pytest.FixtureRequest) -> Block:
    return blocks()[request.param]


def test_the_schemas_are_closed_and_every_field_of_a_result_is_always_there(block: Block) -> None:
    for side in ("input", "output"):
        Draft202012Validator.check_schema(block.card[side])
        for name, schema in schemas(block.card[side]):
            if "object" in schema.get("type", ()):
                assert "additionalProperties" in schema, f"{side}: {name} is open"
    more: list[dict[str, Any]] = [{"nobody_knows": 1}, {"data": {}}]
    for extra in more:
        with pytest.raises(ValidationError):
            Draft202012Validator(block.card["input"]).validate({**block.examples[0], **extra})
    for name, schema in schemas(block.card["output"]):
        if "properties" in schema and name != "attachments":
            assert sorted(schema["required"]) == sorted(schema["properties"]), name


def test_every_number_has_a_unit(block: Block) -> None:
    for side in ("input", "output"):
        in_composition = set(block.card[side]["properties"].get("composition_mol_pct", {}).get("properties", {}))
        for name, schema in schemas(block.card[side]):
            kinds = schema.get("type", ())
            if ("number" in kinds or "integer" in kinds) and name not in in_composition:
                assert name in PLAIN or name.endswith(UNITS) or name == "side_ft", f"{side}: {name}"


def test_a_block_only_computes_and_its_docstring_says_where_the_rule_is_from(block: Block) -> None:
    assert block.card["effect"] == "read" and block.card["llm_visible"] is True
    tree = ast.parse(block.source)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = [
        [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names] for node in imports
    ]
    assert {name for names in modules for name in names} <= {"math", "datetime", "typing"}
    told = ast.get_docstring(tree) or ""
    assert any(source in told for source in ("16 TAC 3.37", "16 TAC 3.32", "40 CFR 98", "GPA 2145"))


def test_each_block_has_an_example_with_a_finding_and_most_one_without(block: Block) -> None:
    assert len(block.examples) >= 2
    found = [run(block.name, args) for args in block.examples]
    assert len({result["summary"] for result in found}) == len(found)


@pytest.fixture(scope="module")
def monty() -> Iterator[Monty]:
    with Monty() as pool:
        yield pool


@pytest.mark.parametrize(("name", "args"), examples())
def test_every_example_works_and_the_sandbox_gives_the_same(monty: Monty, name: str, args: dict[str, Any]) -> None:
    result = run(name, args)
    assert result["summary"].endswith(".") and "None" not in result["summary"]
    with monty.checkout(type_check=True, type_check_stubs=STUBS) as session:
        assert run_in_monty(session, name, args) == result


def test_names_are_found_whatever_their_case_and_blanks() -> None:
    one = run("spacing_assessment", {"well_name": "Mitchell Ranch 1H"})
    assert run("spacing_assessment", {"well_name": "  mitchell   RANCH 1h"}) == one
    assert run("spacing_assessment", {"well_name": "42-999-00003"}) == one
    assert run("gas_analysis", {"lease_name": "L-02"}) == run("gas_analysis", {"lease_name": "dry fork"})
