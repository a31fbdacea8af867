"""The made-up data: it says so, its rows fit together, and its two kinds of coordinates name the same places."""

import math
import re
from calendar import monthrange
from collections import Counter

import pytest

from tests.unit.examples.filings.blocks import FILINGS, blocks, rows, run, table


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
