"""The blocks of Rule 32: volumes, heating values and emissions worked out by hand, at exact limits, and for any mixture
and flare."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.examples.filings.blocks import rows, run

VOLUMES = st.floats(min_value=0, max_value=1e6).map(lambda mcf: round(mcf, 1))
MCF = st.floats(min_value=0, max_value=1e6).map(lambda mcf: round(mcf, 2))
PERCENT = st.floats(min_value=0, max_value=100)


def calculate(lease: str, **args: Any) -> dict[str, Any]:
    return run("flaring_volume_calc", {"lease_name": lease, **args})


def reading(**fields: Any) -> dict[str, Any]:
    """A month of 30 days in which nothing happened."""
    quiet = {"flared_mcf": 0, "vented_mcf": 0, "event_hours": 0, "longest_event_hours": 0}
    return {"month": "2026-09", "days": 30} | quiet | fields


def codes(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["month"], each["code"]) for each in found["findings"]]


def test_the_recorded_months_are_added_up() -> None:
    found = calculate("Mitchell Ranch")
    assert found["flared_mcf"] == 3720 + 3332 + 3689 + 4650 + 3813 + 3540 == found["total_mcf"]
    assert found["days"] == 181 and found["average_mcf_per_day"] == 125.66  # 22744 / 181
    assert [each["average_mcf_per_day"] for each in found["months"]] == [120, 119, 119, 155, 123, 118]
    assert codes(found) == [("2026-04", "over_authorised_rate"), ("2026-06", "covered_in_part")]
    assert "22,744" in found["summary"] and "150.00" in found["summary"]


def test_each_month_over_its_allowance_is_reported() -> None:
    both = ("event_too_long", "month_too_long")
    assert codes(calculate("Twin Windmills")) == [(f"2026-0{month}", code) for month in (4, 5, 6) for code in both]
    assert codes(calculate("North Pasture")) == [("2026-03", "event_too_long"), ("2026-05", "month_too_long")]
    assert codes(calculate("Dry Fork")) == [] and not calculate("Dry Fork")["over_a_limit"]
    vented = calculate("Cottonwood", from_month="2026-02", to_month="2026-02")
    assert (vented["total_mcf"], vented["vented_mcf"]) == (2308, 12)


@pytest.mark.parametrize(("flared_mcf", "over"), [(1499.7, False), (1500, False), (1500.3, True)])
def test_fifty_mcf_a_day_is_still_a_small_volume(flared_mcf: float, over: bool) -> None:
    (month,) = calculate("Sand Draw", readings=[reading(flared_mcf=flared_mcf)])["months"]
    assert month["over_small_volume"] is over


@pytest.mark.parametrize(("hours", "longest", "found"), [
    (24, 24, []), (24.01, 24.01, ["event_too_long"]), (72, 20, []),
    (72.01, 20, ["month_too_long"]), (100, 30, ["event_too_long", "month_too_long"]),
])  # fmt: skip
def test_one_continuous_day_and_three_days_a_month_are_allowed(hours: float, longest: float, found: list[str]) -> None:
    result = calculate("Sand Draw", readings=[reading(event_hours=hours, longest_event_hours=longest)])
    assert result["months"][0]["needs_exception"] is bool(found)
    assert [code for _, code in codes(result)] == found


@pytest.mark.parametrize(("flared_mcf", "found"), [(4500, []), (4500.3, ["over_authorised_rate"])])
def test_the_authorised_rate_is_still_allowed(flared_mcf: float, found: list[str]) -> None:
    result = calculate("Mitchell Ranch", readings=[reading(month="2026-04", flared_mcf=flared_mcf, event_hours=720)])
    assert [code for _, code in codes(result)] == found
    assert result["months"][0]["exception_id"] == "R32-990001"


def test_an_exception_without_an_end_covers_and_one_that_begins_in_the_month_covers_in_part() -> None:
    def look(from_day: str, to_day: str | None) -> dict[str, Any]:
        exception = rows("flare_exceptions")[0] | {"from_day": from_day, "to_day": to_day}
        args = {"lease_name": "L-01", "readings": [reading(event_hours=720)]}
        return run("flaring_volume_calc", args, flare_exceptions=[exception])

    assert codes(look("2026-09-01", None)) == codes(look("2026-09-01", "2026-09-30")) == []
    assert codes(look("2026-09-02", None)) == [("2026-09", "covered_in_part")]
    assert codes(look("2026-10-01", None)) == [("2026-09", "month_too_long")]


@pytest.mark.parametrize(("days", "flared_mcf", "found"), [
    ((("01", "20"), ("21", "30")), 4000, []),  # 20 days at 150 and 10 at 100
    ((("01", "20"), ("21", "30")), 4000.3, ["over_authorised_rate"]),
    ((("21", "30"), ("01", "20")), 3500.3, ["over_authorised_rate"]),  # 10 at 150 and 20 at 100
    ((("01", "20"), ("22", "30")), 3000, ["covered_in_part"]),
    ((("01", "30"), ("11", "20")), 4500, []),  # on both the higher rate holds
])  # fmt: skip
def test_two_exceptions_cover_a_month(days: tuple[tuple[str, str], ...], flared_mcf: float, found: list[str]) -> None:
    exceptions = [
        {"exception_id": f"R32-{place}", "lease_id": "L-01", "authorised_mcf_per_day": rate}
        | {"from_day": f"2026-09-{first}", "to_day": f"2026-09-{last}"}
        for place, ((first, last), rate) in enumerate(zip(days, (150, 100), strict=True))
    ]
    args = {"lease_name": "L-01", "readings": [reading(event_hours=720, flared_mcf=flared_mcf)]}
    for order in (exceptions, exceptions[::-1]):
        result = run("flaring_volume_calc", args, flare_exceptions=order)
        assert [code for _, code in codes(result)] == found, result["findings"]
        assert set(result["months"][0]["exception_id"].split(", ")) == {"R32-0", "R32-1"}


def test_a_lease_without_volumes_is_reported() -> None:
    assert calculate("Nowhere")["days"] == 0 == calculate("Mitchell Ranch", from_month="2027-01")["days"]


@settings(deadline=None)
@given(st.lists(st.tuples(VOLUMES, VOLUMES), min_size=1, max_size=12))
def test_volumes_add_up_however_the_months_come(volumes: list[tuple[float, float]]) -> None:
    numbered = [(f"2026-{number:02d}", *volume) for number, volume in enumerate(volumes, 1)]
    months = [reading(month=month, flared_mcf=flared, vented_mcf=vented) for month, flared, vented in numbered]
    found, turned = (calculate("Sand Draw", readings=each) for each in (months, months[::-1]))
    assert found == turned
    assert found["flared_mcf"] == pytest.approx(sum(flared for flared, _ in volumes), abs=0.001)
    assert found["total_mcf"] == pytest.approx(sum(each["total_mcf"] for each in found["months"]), abs=0.01)
    assert found["average_mcf_per_day"] == pytest.approx(found["total_mcf"] / found["days"], abs=0.01)
    one_by_one = [calculate("Sand Draw", readings=[month])["total_mcf"] for month in months]
    assert found["total_mcf"] == pytest.approx(sum(one_by_one), abs=0.01)


def assemble(lease: str, **args: Any) -> dict[str, Any]:
    return run("rule32_filing_assembly", {"lease_name": lease, **args})


@pytest.mark.parametrize(("rate", "to_day", "days", "route"), [
    (300, "2026-12-27", 180, "administrative"), (50, "2026-12-28", 181, "administrative_long_term"),
    (50.01, "2026-12-28", 181, "final_order"), (None, "2026-12-27", 180, "administrative"),
    (None, "2026-12-28", 181, None), (300, "2026-07-01", 1, "administrative"),
])  # fmt: skip
def test_days_and_rate_decide_who_grants_an_exception(rate: float | None, to_day: str, days: int, route: str) -> None:
    asked: dict[str, Any] = {} if rate is None else {"requested_mcf_per_day": rate}
    package = assemble("Cottonwood", from_day="2026-07-01", to_day=to_day, **asked)
    assert (package["days"], package["route"]) == (days, route)


@pytest.mark.parametrize(("to_day", "asked_for"), [("2026-08-14", False), ("2026-08-15", True)])
def test_beyond_45_days_the_gas_market_must_be_stated(to_day: str, asked_for: bool) -> None:
    assert ("gas_market" in assemble("Cottonwood", from_day="2026-07-01", to_day=to_day)["missing"]) is asked_for


def test_a_package_contains_the_recorded_facts_and_lists_missing_ones() -> None:
    bare = assemble("Mitchell Ranch")
    asked_of_the_user = ["requested_rate", "period", "reason", "certification", "fee_receipt", "gas_market"]
    assert bare["missing"] == asked_of_the_user and not bare["complete"]
    assert (bare["observed_mcf_per_day"], bare["highest_month_mcf_per_day"]) == (125.66, 155)
    assert bare["sample_id"] == "G-990001" and bare["exceptions_on_file"] == ["R32-990001"]
    papers = [{"kind": kind, "reference": "1"} for kind in ("certification", "fee_receipt", "gas_market")]
    period = {"from_day": "2026-07-01", "to_day": "2026-12-27"}
    whole = assemble("Mitchell Ranch", requested_mcf_per_day=150, reason="no line", attachments=papers, **period)
    assert whole["complete"] and "155.00" in whole["summary"]
    assert assemble("Nowhere")["missing"][:2] == ["lease", "operator"]
    assert "volumes" in assemble("Sand Draw")["missing"] and "gas_sample" in assemble("Sand Draw")["missing"]


@pytest.mark.parametrize(("from_day", "to_day"), [("2026-07-02", "2026-07-01"), ("2026-02-30", "2026-03-01")])
def test_days_that_do_not_exist_or_run_backwards_are_refused(from_day: str, to_day: str) -> None:
    with pytest.raises(ValueError):
        assemble("Cottonwood", from_day=from_day, to_day=to_day)


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


@settings(deadline=None)
@given(methane=st.floats(min_value=70, max_value=100), better=PERCENT, worse=PERCENT)
def test_a_better_flare_gives_no_more_for_mostly_methane(methane: float, better: float, worse: float) -> None:
    gas = {"methane": methane, "hexanes_plus": 100 - methane}
    flares = (max(better, worse), min(better, worse))
    less, more = (estimate(**of("flared", 1000, each, **gas))["co2e_metric_tons"] for each in flares)
    assert less <= more
