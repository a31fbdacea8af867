"""Each of the eight code blocks has strict schemas and working examples, and runs in the sandbox. The made-up data says
so, its rows fit together, and its two kinds of coordinates name the same places."""

import ast
import math
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic_monty import Monty

from tests.unit.examples.filings.blocks import FILINGS, STUBS, Block, blocks, examples, rows, run, run_in_monty, table

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


@pytest.mark.parametrize("name", sorted(path.stem for path in FILINGS.glob("data/*.json")))
def test_a_table_says_that_it_is_made_up_and_a_block_needs_it(name: str) -> None:
    assert set(table(name)) == {"_about", "rows"} and table(name)["_about"].startswith("Made up")
    assert any(name in block.card["needs"] for block in blocks().values())
    assert len({frozenset(row) for row in rows(name)}) == 1, "all rows of a table have the same fields"


@pytest.mark.parametrize(("name", "key"), [("wells", "api_number"), ("wells", "name"), ("leases", "name")])
def test_names_and_numbers_are_unique(name: str, key: str) -> None:
    assert max(Counter(row[key].lower() for row in rows(name)).values()) == 1


def test_every_reference_points_to_an_existing_row() -> None:
    operators = {each["operator_id"] for each in rows("operators")}
    leases = {each["lease_id"]: each for each in rows("leases")}
    for well in rows("wells"):
        assert leases[well["lease_id"]]["operator_id"] == well["operator_id"] in operators
        assert re.fullmatch(r"42-999-\d{5}", well["api_number"])
    for name in ("flaring", "gas_samples", "flare_exceptions"):
        assert {each["lease_id"] for each in rows(name)} <= set(leases)


def test_every_well_lies_within_its_lease() -> None:
    for well in rows("wells"):
        assert run("spacing_assessment", {"well_name": well["name"]})["inside_lease"], well["name"]


def test_the_acres_of_a_lease_are_those_within_its_boundary() -> None:
    for lease in rows("leases"):
        corners = lease["boundary_ft"]
        double = sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(corners, corners[1:] + corners[:1], strict=True))
        assert double > 0 and lease["acres"] == pytest.approx(double / 2 / 43_560), lease["name"]


def test_latitude_and_longitude_are_those_of_the_grid() -> None:
    sphere_ft, south_west = 6_371_008.8 / 0.3048, (31.80, -103.00)
    for well in rows("wells"):
        north_ft = math.radians(well["latitude_deg"] - south_west[0]) * sphere_ft
        east = math.radians(well["longitude_deg"] - south_west[1]) * math.cos(math.radians(south_west[0]))
        assert (east * sphere_ft, north_ft) == pytest.approx((well["x_ft"], well["y_ft"]), abs=0.05), well["name"]


def test_months_have_valid_days_and_hours() -> None:
    for row in rows("flaring"):
        year, month = map(int, row["month"].split("-"))
        assert row["days"] == monthrange(year, month)[1]
        assert row["longest_event_hours"] <= row["event_hours"] <= row["days"] * 24
        assert row["flared_mcf"] + row["vented_mcf"] <= row["produced_mcf"]


def test_the_shares_of_a_gas_sample_add_up() -> None:
    for sample in rows("gas_samples"):
        assert sum(sample["composition_mol_pct"].values()) == pytest.approx(100, abs=1e-9), sample["sample_id"]
