"""flaring_volume_calc and rule32_filing_assembly: volumes against limits, each exactly at the limit too."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.examples.filings.blocks import rows, run


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
    (24, 24, []),
    (24.01, 24.01, ["event_too_long"]),
    (72, 20, []),
    (72.01, 20, ["month_too_long"]),
    (100, 30, ["event_too_long", "month_too_long"]),
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


VOLUMES = st.floats(min_value=0, max_value=1e6).map(lambda mcf: round(mcf, 1))


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
    (300, "2026-12-27", 180, "administrative"),
    (50, "2026-12-28", 181, "administrative_long_term"),
    (50.01, "2026-12-28", 181, "final_order"),
    (None, "2026-12-27", 180, "administrative"),
    (None, "2026-12-28", 181, None),
    (300, "2026-07-01", 1, "administrative"),
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
