"""gas_analysis and emissions_estimate: values worked out by hand, exact limits, rules for any mixture and flare."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.examples.filings.blocks import run

HEAVIER = ("iso_butane", "n_butane", "iso_pentane", "n_pentane", "hexanes_plus")
REST = ("nitrogen", "carbon_dioxide", "oxygen", "hydrogen_sulfide")
NAMES = ("methane", "ethane", "propane", *HEAVIER, *REST)
SHARES = st.tuples(*[st.floats(min_value=0.01, max_value=1)] * len(NAMES))


def composition_of(shares: tuple[float, ...]) -> dict[str, float]:
    """Mole percent that add up to 100."""
    return {name: share * 100 / sum(shares) for name, share in zip(NAMES, shares, strict=True)}


def analyse(lease: str = "Sand Draw", **args: Any) -> dict[str, Any]:
    return run("gas_analysis", {"lease_name": lease, **args})


def failed(found: dict[str, Any]) -> list[str]:
    return [each["property"] for each in found["checks"] if not each["ok"]]


@pytest.mark.parametrize(("lease", "btu", "against"), [
    ("Mitchell Ranch", 1267.3, ["heating_value", "water"]),
    ("Dry Fork", 1032.7, []),
    ("Cottonwood", 1076.9, ["carbon_dioxide", "inert_gas", "hydrogen_sulfide", "water"]),
    ("North Pasture", 1008.2, []),  # its sample is exactly at every limit but that of the heating value
    ("Twin Windmills", 876.2, ["heating_value", "inert_gas"]),
])  # fmt: skip
def test_a_samples_heating_value_is_compared_with_the_contract(lease: str, btu: float, against: list[str]) -> None:
    found = analyse(lease)
    assert found["heating_value_btu_per_scf"] == btu and failed(found) == against
    assert found["pipeline_ready"] is (not against) and f"{btu:,.1f}" in found["summary"]


def test_pure_methane_has_its_own_heating_value_and_unknown_water_is_not_ready() -> None:
    found = analyse(composition_mol_pct={"methane": 100})
    assert found["heating_value_btu_per_scf"] == 1010 and found["unknown"] == ["water"]
    assert found["pipeline_ready"] is False and failed(found) == []
    assert analyse(composition_mol_pct={"methane": 100}, water_lb_per_mmscf=7)["pipeline_ready"] is True


@pytest.mark.parametrize(("name", "within", "beyond"), [
    ("carbon_dioxide", 2, 2.01), ("oxygen", 0.2, 0.21), ("nitrogen", 4, 4.01), ("hydrogen_sulfide", 0.0004, 0.00041),
])  # fmt: skip
def test_a_value_at_a_limit_is_within_it(name: str, within: float, beyond: float) -> None:
    for share, ok in ((within, True), (beyond, False)):
        found = analyse(composition_mol_pct={"methane": 100 - share, name: share}, water_lb_per_mmscf=0)
        assert found["pipeline_ready"] is ok, found["checks"]
    assert failed(analyse("Dry Fork", water_lb_per_mmscf=7)) == []
    assert failed(analyse("Dry Fork", water_lb_per_mmscf=7.01)) == ["water"]


@pytest.mark.parametrize(("methane", "ok"), [(94.0594, True), (94.04, False)])
def test_950_btu_meets_the_limit(methane: float, ok: bool) -> None:
    found = analyse(composition_mol_pct={"methane": methane, "nitrogen": 100 - methane})
    assert ("heating_value" not in failed(found)) is ok


@pytest.mark.parametrize(("total", "taken"), [(98.99, False), (99, True), (101, True), (101.01, False)])
def test_a_composition_is_scaled_if_it_nearly_adds_up_and_else_refused(total: float, taken: bool) -> None:
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


def estimate(lease: str = "Sand Draw", **args: Any) -> dict[str, Any]:
    return run("emissions_estimate", {"lease_name": lease, **args})


def of(how: str, mcf: float, efficiency: float | None = None, **gas: float) -> dict[str, Any]:
    """A volume of a gas that is flared or vented."""
    burnt = {} if efficiency is None else {"combustion_efficiency_pct": efficiency}
    return {f"{how}_mcf": mcf, "composition_mol_pct": gas, **burnt}


@pytest.mark.parametrize(("args", "co2_kg", "ch4_kg", "n2o_kg", "tons"), [
    # 1e6 scf * 0.98 * 0.0526; 1e6 * 0.02 * 0.0192; 1e6 * 1.235e-7
    (of("flared", 1000, methane=100), 51548, 384, 0.1235, 62.333),
    (of("vented", 1000, methane=100), 0, 19200, 0, 537.6),
    (of("flared", 1000, 100, ethane=100), 105200, 0, 0.1235, 105.233),
    (of("flared", 100, 100, methane=50, carbon_dioxide=50), 5260, 0, 0.0124, 5.263),
    (of("flared", 1000, methane=100) | {"warming_table": "table_a1_2014"}, 51548, 384, 0.1235, 61.185),
    (of("flared", 0, methane=100), 0, 0, 0, 0),
    (of("flared", 1000, 0, methane=100), 0, 19200, 0.1235, 537.633),
])  # fmt: skip
def test_gas_has_these_masses(args: dict[str, Any], co2_kg: float, ch4_kg: float, n2o_kg: float, tons: float) -> None:
    found = estimate(**args)
    assert found["co2_kg"] == pytest.approx(co2_kg, abs=0.001) and found["ch4_kg"] == pytest.approx(ch4_kg, abs=0.001)
    assert found["n2o_kg"] == pytest.approx(n2o_kg, abs=0.00011) and found["co2e_metric_tons"] == tons


def test_recorded_volumes_are_used_and_missing_ones_listed() -> None:
    found = estimate("Twin Windmills", from_month="2026-01", to_month="2026-02")
    assert (found["flared_mcf"], found["vented_mcf"]) == (18346, 62) and found["estimated"]
    assert len(estimate("Sand Draw")["missing"]) == 2 and estimate("Sand Draw")["co2e_metric_tons"] is None
    assert not estimate("Sand Draw", flared_mcf=5)["estimated"]


MCF = st.floats(min_value=0, max_value=1e6).map(lambda mcf: round(mcf, 2))


@settings(deadline=None)
@given(shares=SHARES, less=MCF, more=MCF, efficiency=st.floats(min_value=0, max_value=100))
def test_tons_grow_with_gas_and_add_up(shares: tuple[float, ...], less: float, more: float, efficiency: float) -> None:
    def tons(**volumes: float) -> float:
        given: dict[str, Any] = {"composition_mol_pct": composition_of(shares)}
        found: float = estimate(**(given | volumes), combustion_efficiency_pct=efficiency)["co2e_metric_tons"]
        return found

    for kind in ("flared_mcf", "vented_mcf"):
        assert tons(**{kind: less}) <= tons(**{kind: less + more}) + 0.001
    apart = tons(flared_mcf=less) + tons(vented_mcf=more)
    assert tons(flared_mcf=less, vented_mcf=more) == pytest.approx(apart, abs=0.002)


PERCENT = st.floats(min_value=0, max_value=100)


@settings(deadline=None)
@given(methane=st.floats(min_value=70, max_value=100), better=PERCENT, worse=PERCENT)
def test_a_better_flare_gives_no_more_for_mostly_methane(methane: float, better: float, worse: float) -> None:
    gas = {"methane": methane, "hexanes_plus": 100 - methane}
    flares = (max(better, worse), min(better, worse))
    less, more = (estimate(**of("flared", 1000, each, **gas))["co2e_metric_tons"] for each in flares)
    assert less <= more
