"""gas_analysis: heating values worked out by hand, limits exactly met, and what must hold for any mixture."""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.unit.examples.filings.blocks import run
from tests.unit.examples.filings.mixtures import SHARES, composition_of


def analyse(lease: str = "Sand Draw", **args: Any) -> dict[str, Any]:
    return run("gas_analysis", {"lease_name": lease, **args})


def failed(found: dict[str, Any]) -> list[str]:
    return [each["property"] for each in found["checks"] if not each["ok"]]


@pytest.mark.parametrize(
    ("lease", "btu", "against"),
    [
        ("Mitchell Ranch", 1267.3, ["heating_value", "water"]),
        ("Dry Fork", 1032.7, []),
        ("Cottonwood", 1076.9, ["carbon_dioxide", "inert_gas", "hydrogen_sulfide", "water"]),
        ("North Pasture", 1008.2, []),  # its sample is exactly at every limit but that of the heating value
        ("Twin Windmills", 876.2, ["heating_value", "inert_gas"]),
    ],
)
def test_a_sample_has_this_heating_value_and_this_against_it(lease: str, btu: float, against: list[str]) -> None:
    found = analyse(lease)
    assert found["heating_value_btu_per_scf"] == btu and failed(found) == against
    assert found["pipeline_ready"] is (not against) and f"{btu:,.1f}" in found["summary"]


def test_methane_alone_has_the_heating_value_of_methane_and_unknown_water_is_no_readiness() -> None:
    found = analyse(composition_mol_pct={"methane": 100})
    assert found["heating_value_btu_per_scf"] == 1010 and found["unknown"] == ["water"]
    assert found["pipeline_ready"] is False and failed(found) == []
    assert analyse(composition_mol_pct={"methane": 100}, water_lb_per_mmscf=7)["pipeline_ready"] is True


@pytest.mark.parametrize(
    ("name", "within", "beyond"),
    [
        ("carbon_dioxide", 2.0, 2.01),
        ("oxygen", 0.2, 0.21),
        ("nitrogen", 4.0, 4.01),
        ("hydrogen_sulfide", 0.0004, 0.00041),
    ],
)
def test_a_value_at_a_limit_is_within_it(name: str, within: float, beyond: float) -> None:
    for share, ok in ((within, True), (beyond, False)):
        found = analyse(composition_mol_pct={"methane": 100 - share, name: share}, water_lb_per_mmscf=0)
        assert found["pipeline_ready"] is ok, found["checks"]
    assert failed(analyse("Dry Fork", water_lb_per_mmscf=7)) == []
    assert failed(analyse("Dry Fork", water_lb_per_mmscf=7.01)) == ["water"]


@pytest.mark.parametrize(("methane", "ok"), [(94.0594, True), (94.04, False)])
def test_950_btu_is_still_enough(methane: float, ok: bool) -> None:
    found = analyse(composition_mol_pct={"methane": methane, "nitrogen": 100 - methane})
    assert ("heating_value" not in failed(found)) is ok


@pytest.mark.parametrize(("total", "taken"), [(98.99, False), (99, True), (101, True), (101.01, False)])
def test_a_composition_that_does_not_add_up_is_refused_and_one_nearly_does_is_scaled(total: float, taken: bool) -> None:
    composition = {"methane": 90, "nitrogen": total - 90}
    if taken:
        assert analyse(composition_mol_pct=composition)["heating_value_btu_per_scf"] == round(1010 * 90 / total, 1)
        return
    for block in ("gas_analysis", "emissions_estimate"):
        args = {"lease_name": "Sand Draw", "composition_mol_pct": composition}
        with pytest.raises(ValueError):
            run(block, args | ({"flared_mcf": 1} if block == "emissions_estimate" else {}))


@settings(deadline=None)
@given(SHARES)
def test_a_mixture_lies_between_its_components_and_nitrogen_only_lowers_it(shares: tuple[float, ...]) -> None:
    mixed = composition_of(shares)
    btu = analyse(composition_mol_pct=mixed)["heating_value_btu_per_scf"]
    assert 0 <= btu <= 4756
    thinned = {name: share / 2 for name, share in mixed.items()}
    thinned["nitrogen"] += 50
    assert analyse(composition_mol_pct=thinned)["heating_value_btu_per_scf"] == pytest.approx(btu / 2, abs=0.06)
