"""emissions_estimate: masses worked out by hand, and what must hold for any gas and any flare."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.examples.filings.blocks import run
from tests.unit.examples.filings.mixtures import SHARES, composition_of


def estimate(lease: str = "Sand Draw", **args: Any) -> dict[str, Any]:
    return run("emissions_estimate", {"lease_name": lease, **args})


METHANE = {"methane": 100}


@pytest.mark.parametrize(
    ("args", "co2_kg", "ch4_kg", "n2o_kg", "tons"),
    [
        # 1e6 scf * 0.98 * 0.0526; 1e6 * 0.02 * 0.0192; 1e6 * 1.235e-7
        ({"flared_mcf": 1000, "composition_mol_pct": METHANE}, 51548, 384, 0.1235, 62.333),
        ({"vented_mcf": 1000, "composition_mol_pct": METHANE}, 0, 19200, 0, 537.6),
        (
            {"flared_mcf": 1000, "composition_mol_pct": {"ethane": 100}, "combustion_efficiency_pct": 100},
            105200,
            0,
            0.1235,
            105.233,
        ),
        (
            {
                "flared_mcf": 100,
                "composition_mol_pct": {"methane": 50, "carbon_dioxide": 50},
                "combustion_efficiency_pct": 100,
            },
            5260,
            0,
            0.0124,
            5.263,
        ),
        (
            {"flared_mcf": 1000, "composition_mol_pct": METHANE, "warming_table": "table_a1_2014"},
            51548,
            384,
            0.1235,
            61.185,
        ),
        ({"flared_mcf": 0, "composition_mol_pct": METHANE}, 0, 0, 0, 0),
        (
            {"flared_mcf": 1000, "composition_mol_pct": METHANE, "combustion_efficiency_pct": 0},
            0,
            19200,
            0.1235,
            537.633,
        ),
    ],
)
def test_burning_and_venting_give_these_masses(
    args: dict[str, Any], co2_kg: float, ch4_kg: float, n2o_kg: float, tons: float
) -> None:
    found = estimate(**args)
    assert found["co2_kg"] == pytest.approx(co2_kg, abs=0.001) and found["ch4_kg"] == pytest.approx(ch4_kg, abs=0.001)
    assert found["n2o_kg"] == pytest.approx(n2o_kg, abs=0.00011) and found["co2e_metric_tons"] == tons


def test_what_is_on_record_is_used_and_what_is_not_is_asked_for() -> None:
    found = estimate("Twin Windmills", from_month="2026-01", to_month="2026-02")
    assert (found["flared_mcf"], found["vented_mcf"]) == (18346, 62) and found["estimated"]
    assert len(estimate("Sand Draw")["missing"]) == 2 and estimate("Sand Draw")["co2e_metric_tons"] is None
    assert not estimate("Sand Draw", flared_mcf=5)["estimated"]


MCF = st.floats(min_value=0, max_value=1e6).map(lambda mcf: round(mcf, 2))


@settings(deadline=None)
@given(shares=SHARES, less=MCF, more=MCF, efficiency=st.floats(min_value=0, max_value=100))
def test_more_gas_never_gives_less_and_two_volumes_give_what_they_give_together(
    shares: tuple[float, ...], less: float, more: float, efficiency: float
) -> None:
    def tons(**volumes: float) -> float:
        given: dict[str, Any] = {"composition_mol_pct": composition_of(shares)}
        found: float = estimate(**(given | volumes), combustion_efficiency_pct=efficiency)["co2e_metric_tons"]
        return found

    for kind in ("flared_mcf", "vented_mcf"):
        assert tons(**{kind: less}) <= tons(**{kind: less + more}) + 0.001
    assert tons(flared_mcf=less, vented_mcf=more) == pytest.approx(
        tons(flared_mcf=less) + tons(vented_mcf=more), abs=0.002
    )


@settings(deadline=None)
@given(
    methane=st.floats(min_value=70, max_value=100),
    better=st.floats(min_value=0, max_value=100),
    worse=st.floats(min_value=0, max_value=100),
)
def test_of_gas_that_is_mostly_methane_a_better_flare_gives_less(methane: float, better: float, worse: float) -> None:
    composition = {"methane": methane, "hexanes_plus": 100 - methane}
    tons = [
        estimate(flared_mcf=1000, composition_mol_pct=composition, combustion_efficiency_pct=each)["co2e_metric_tons"]
        for each in (max(better, worse), min(better, worse))
    ]
    assert tons[0] <= tons[1]
