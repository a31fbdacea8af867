"""The blocks of Rule 37: distances worked out by hand and for any place; what is in a package, what is missing, whom it
names."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import ValidationError
from syrupy.assertion import SnapshotAssertion

from tests.unit.examples.filings.blocks import rows, run

PAPERS = [
    {"kind": kind, "reference": reference}
    for kind, reference in (("plat", "plat.pdf"), ("certification", "certificate.pdf"), ("fee_receipt", "0001"))
]
NARRATIVE = "Prevention of waste. Oil would stay behind (F1; study)."
ALWAYS = ["well_record", "operator", "lease"]
FOR_AN_EXCEPTION = ["plat", "certification", "fee_receipt", "affected_persons", "good_cause_narrative"]
KINDS = ("waste", "confiscation", "geology", "engineering", "surface", "economics", "safety")
WORDS = st.text("abcdefg ", min_size=1, max_size=30).filter(lambda text: text.strip() != "")
FEET = st.integers(min_value=-20_000, max_value=20_000)
PLACES = st.tuples(FEET, FEET)
SQUARE = [[0, 0], [5280, 0], [5280, 5280], [0, 5280]]


def assemble(name: str, **args: Any) -> dict[str, Any]:
    return run("rule37_filing_assembly", {"well_name": name, **args})


def named(package: dict[str, Any]) -> list[tuple[str, float]]:
    return [(each["name"], each["tract_distance_ft"]) for each in package["affected_persons"]]


def test_a_package_with_every_paper_is_complete_and_one_without_says_what_is_missing() -> None:
    whole = assemble("Mitchell Ranch 1H", good_cause_narrative=NARRATIVE, attachments=PAPERS)
    assert whole["complete"] and whole["missing"] == []
    assert [each["item"] for each in whole["completeness"]] == ALWAYS + FOR_AN_EXCEPTION
    of = (whole["form"], whole["operator"]["p5_number"], whole["lease"]["lease_number"])
    assert of == ("W-1", "990001", "99-00101")
    bare = assemble("Mitchell Ranch 1H")
    assert not bare["complete"] and bare["missing"] == ["plat", "certification", "fee_receipt", "good_cause_narrative"]
    for left_out in PAPERS:
        papers = [paper for paper in PAPERS if paper is not left_out]
        found = assemble("Mitchell Ranch 1H", good_cause_narrative=NARRATIVE, attachments=papers)
        assert found["missing"] == [left_out["kind"]] and not found["complete"]
    assert "good_cause_narrative" in assemble("Dry Fork 2", good_cause_narrative=" \n", attachments=PAPERS)["missing"]


def test_a_well_that_conforms_needs_no_papers() -> None:
    package = assemble("Mitchell Ranch 4")
    assert package["complete"] and package["exceptions_needed"] == [] and package["affected_persons"] == []
    assert [each["item"] for each in package["completeness"]] == ALWAYS


def test_a_well_that_is_not_on_record_gives_a_package_that_lacks_everything() -> None:
    package = assemble("Lone Star 1", attachments=PAPERS[:1])
    assert not package["complete"] and package["spacing"] is None
    assert package["missing"] == [*ALWAYS, "certification", "fee_receipt", "affected_persons", "good_cause_narrative"]


@pytest.mark.parametrize("name", [each["name"] for each in rows("wells")])
def test_a_package_has_the_distances_of_the_assessment(name: str) -> None:
    package, assessed = assemble(name), run("spacing_assessment", {"well_name": name})
    nearest = assessed["nearest_well"] or {"name": None, "distance_ft": None}
    assert package["exceptions_needed"] == assessed["exceptions_needed"]
    assert package["spacing"] == {
        "lease_line_ft": assessed["lease_line"]["distance_ft"], "lease_line_minimum_ft": 467,
        "nearest_well_name": nearest["name"], "nearest_well_ft": nearest["distance_ft"],
        "between_wells_minimum_ft": 1200,
    }  # fmt: skip


def test_the_affected_persons_are_those_of_the_tracts_around() -> None:
    assert named(assemble("Mitchell Ranch 1H")) == [("Llano Placeholder Petroleum Inc.", 330)]
    # An unleased tract has owners in place of an operator.
    assert named(assemble("Cottonwood 4")) == [("Ada Example", 440), ("Estate of Ben Placeholder", 440)]
    # Between wells: every adjacent tract, however far; nearest first.
    assert named(assemble("Sand Draw 2")) == [
        ("Mesa Fictional Operating Co.", 360),
        ("Ada Example", 940),
        ("Estate of Ben Placeholder", 940),
        ("Windmill Specimen Resources LLC", 2280),
    ]


def test_the_applicants_own_tracts_and_waivers_are_not_notified_and_no_one_twice() -> None:
    package = assemble("Broken Spoke 3")
    own = {each["tract"]: each["is_applicant"] for each in package["affected_persons"]}
    assert own == {"Cottonwood": False, "Dry Fork": True, "Lonesome Tank": False, "Twin Windmills": False}
    assert package["to_notify"] == ["Windmill Specimen Resources LLC", "Mesa Fictional Operating Co."]
    waiver = {"kind": "waiver", "reference": "waiver.pdf", "person": "windmill specimen  resources LLC"}
    assert assemble("Broken Spoke 3", attachments=[waiver])["to_notify"] == ["Mesa Fictional Operating Co."]
    with pytest.raises(ValidationError):
        assemble("Broken Spoke 3", attachments=[{"kind": "waiver", "reference": "whose?"}])


@pytest.mark.parametrize(("y_ft", "affected"), [(599.99, True), (600, False), (600.01, False)])
def test_600_feet_are_not_closer_than_600_feet(y_ft: float, affected: bool) -> None:
    well = rows("wells")[2] | {"x_ft": 400, "y_ft": y_ft}
    neighbour = rows("leases")[1] | {"boundary_ft": [[0, 0], [5280, 0], [5280, -5280], [0, -5280]]}
    leases = [rows("leases")[0], neighbour]
    package = run("rule37_filing_assembly", {"well_name": well["name"]}, wells=[well], leases=leases)
    assert package["exceptions_needed"] == ["lease_line"]
    assert [each["tract"] for each in package["affected_persons"]] == (["Dry Fork"] if affected else [])


def narrate(facts: list[dict[str, str]]) -> dict[str, Any]:
    return run("good_cause_narrative", {"well_name": "Dry Fork 2", "facts": facts})


def fact(number: int, kind: str, statement: str = "It is so", **more: str) -> dict[str, str]:
    return {"fact_id": f"F{number}", "kind": kind, "statement": statement, **more}


def test_a_narrative_says_each_fact_once_with_its_source_and_nothing_else(snapshot: SnapshotAssertion) -> None:
    facts = [
        fact(1, "geology", "The sand thins out to the east.", source="log of Dry Fork 1"),
        fact(2, "waste", "41 acres would stay undrained", source="study"),
        fact(3, "confiscation", "The neighbour drains the corner", source="letter"),
    ]
    found = narrate(facts)
    assert found["narrative"] == snapshot
    assert found["facts_used"] == ["F2", "F3", "F1"] and found["missing"] == []
    assert found["grounds"] == {"waste": ["F2"], "confiscation": ["F3"]}


def test_without_a_ground_or_a_source_the_narrative_says_so() -> None:
    bare = narrate([fact(1, "economics", source="budget")])
    assert bare["grounds"] == {"waste": [], "confiscation": []} and len(bare["missing"]) == 1
    assert narrate([fact(1, "waste", source=" ")])["facts_without_source"] == ["F1"]


@pytest.mark.parametrize("facts", [[fact(1, "waste"), fact(1, "geology")], [fact(1, "waste", " . ")]])
def test_ambiguous_and_empty_facts_are_refused(facts: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="F1"):
        narrate(facts)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), WORDS), min_size=1, max_size=12))
def test_every_fact_is_used_exactly_once(told: list[tuple[str, str]]) -> None:
    facts = [fact(number, kind, words, source="s") for number, (kind, words) in enumerate(told)]
    found = narrate(facts)
    assert sorted(found["facts_used"]) == sorted(each["fact_id"] for each in facts)
    for each in facts:
        assert found["narrative"].count(f"({each['fact_id']}; s)") == 1
        assert each["statement"].strip() in found["narrative"]


def lease(corners: Sequence[Sequence[float]]) -> dict[str, Any]:
    return rows("leases")[0] | {"boundary_ft": corners}


def well(number: int, place: tuple[float, float], **fields: Any) -> dict[str, Any]:
    own = {"api_number": f"42-999-{number:05d}", "name": f"Well {number}", "x_ft": place[0], "y_ft": place[1]}
    return rows("wells")[0] | own | fields


def assess(name: str, **args: Any) -> dict[str, Any]:
    return run("spacing_assessment", {"well_name": name, **args})


@pytest.mark.parametrize(("name", "line_ft", "well_ft", "needed"), [
    ("Mitchell Ranch 1H", 330.0, 1642.59, ["lease_line"]),  # 5280 - 4950; hypot(950, 1340)
    ("Mitchell Ranch 4", 467.0, 2860.34, []),  # exactly at the distance; hypot(2173, 1860)
    ("Mitchell Ranch 5", 1680.0, 1200.0, []),  # 720-960-1200 from Mitchell Ranch 1: exactly at the distance
    ("Dry Fork 2", 1920.0, 900.0, ["between_wells"]),  # 540-720-900 from Dry Fork 1
    ("Cottonwood 2", 200.0, 1860.11, ["lease_line"]),  # the corner that points inwards: 13200 - 13000
    ("Sand Draw 2", 360.0, 1032.47, ["lease_line", "between_wells"]),  # 3000 - 2640; hypot(380, 960)
    ("Twin Windmills 2", 476.29, 2700.0, []),  # a leaning side: 480 * 5280 / hypot(660, 5280)
    ("Broken Spoke 3", 1320.0, 800.0, ["between_wells"]),  # the one being drilled is nearer than the producing one
])  # fmt: skip
def test_a_place_has_distances_and_exceptions(name: str, line_ft: float, well_ft: float, needed: list[str]) -> None:
    found = assess(name)
    assert found["lease_line"]["distance_ft"] == line_ft and found["nearest_well"]["distance_ft"] == well_ft
    assert found["exceptions_needed"] == needed and found["inside_lease"] and found["assessed"]
    assert found["lease_line"]["shortfall_ft"] == max(0, 467 - line_ft)
    assert f"{line_ft:,.2f}" in found["summary"] and f"{well_ft:,.2f}" in found["summary"]


@pytest.mark.parametrize(("x_ft", "conforms"), [(466.99, False), (467, True), (467.01, True)])
def test_467_feet_conform_to_the_lease_line_distance(x_ft: float, conforms: bool) -> None:
    found = assess("Mitchell Ranch 4", surface_x_ft=x_ft, surface_y_ft=4500)
    assert found["lease_line"]["conforms"] is conforms
    assert found["exceptions_needed"] == ([] if conforms else ["lease_line"])


@pytest.mark.parametrize(("apart_ft", "conforms"), [(1199.99, False), (1200, True), (1200.01, True)])
def test_1200_feet_conform_to_the_distance_between_wells(apart_ft: float, conforms: bool) -> None:
    wells = [well(1, (1000, 2000)), well(2, (1000 + apart_ft, 2000), status="proposed")]
    found = run("spacing_assessment", {"well_name": "Well 2"}, wells=wells, leases=[lease(SQUARE)])
    assert found["nearest_well"]["conforms"] is conforms


@pytest.mark.parametrize(("fields", "counts"), [
    ({}, True), *(({"status": status}, True) for status in ("shut_in", "drilling")),
    *(({"status": status}, False) for status in ("plugged", "proposed")), ({"horizon": "Placeholder Lime"}, False),
    ({"lease_id": "L-02"}, False),
])  # fmt: skip
def test_only_wells_in_the_same_horizon_on_the_same_lease_count(fields: dict[str, Any], counts: bool) -> None:
    wells = [well(1, (1000, 2000), **fields), well(2, (1100, 2000), status="proposed")]
    found = run("spacing_assessment", {"well_name": "Well 2"}, wells=wells, leases=[lease(SQUARE)])
    assert (found["nearest_well"] is not None) is counts


def test_field_rules_set_other_distances_and_a_place_outside_its_lease_needs_an_exception() -> None:
    found = assess("Mitchell Ranch 1H", lease_line_minimum_ft=330, between_wells_minimum_ft=1700)
    assert found["exceptions_needed"] == ["between_wells"]
    assert found["nearest_well"]["shortfall_ft"] == 57.41
    outside = assess("Mitchell Ranch 1H", surface_x_ft=7920, surface_y_ft=2640)
    assert not outside["inside_lease"] and outside["lease_line"]["distance_ft"] == 2640
    assert outside["exceptions_needed"] == ["lease_line"], "however far the line is"


def test_a_well_that_is_not_on_record_is_reported_and_one_described_whole_is_assessed() -> None:
    unknown = assess("Lone Star 1")
    assert not unknown["assessed"] and "Lone Star 1" in unknown["summary"]
    assert unknown["lease_line"] is None and len(unknown["missing"]) == 4
    place = {"surface_x_ft": 5700, "surface_y_ft": 4000}
    described = assess("Lone Star 1", lease_name="dry fork", horizon="made-up sand", **place)
    assert described["assessed"] and described["lease_line"]["distance_ft"] == 420


@settings(deadline=None)
@given(place=PLACES, move=PLACES)
def test_distances_do_not_change_when_everything_moves(place: tuple[int, int], move: tuple[int, int]) -> None:
    def at(dx: int, dy: int) -> dict[str, Any]:
        wells = [well(1, (2640 + dx, 2640 + dy)), well(2, (place[0] + dx, place[1] + dy), status="proposed")]
        corners = [[x + dx, y + dy] for x, y in SQUARE]
        return run("spacing_assessment", {"well_name": "Well 2"}, wells=wells, leases=[lease(corners)])

    here, there = at(0, 0), at(*move)
    assert here["lease_line"]["distance_ft"] == pytest.approx(there["lease_line"]["distance_ft"], abs=0.011)
    assert here["nearest_well"]["distance_ft"] == there["nearest_well"]["distance_ft"]
    assert here["inside_lease"] == there["inside_lease"]


@settings(deadline=None)
@given(place=PLACES)
def test_in_a_square_the_line_is_as_far_as_plain_arithmetic_says(place: tuple[int, int]) -> None:
    wells = [well(2, place, status="proposed")]
    found = run("spacing_assessment", {"well_name": "Well 2"}, wells=wells, leases=[lease(SQUARE)])
    x, y = place
    inside = 0 <= x <= 5280 and 0 <= y <= 5280
    beyond = math.hypot(max(-x, 0, x - 5280), max(-y, 0, y - 5280))
    wanted = min(x, y, 5280 - x, 5280 - y) if inside else beyond
    assert found["lease_line"]["distance_ft"] == pytest.approx(wanted, abs=0.006)
    assert found["inside_lease"] is inside and found["nearest_well"] is None


def offsets(name: str, **args: Any) -> dict[str, Any]:
    return run("offset_well_analysis", {"well_name": name, **args})


def test_offset_wells_have_distance_and_bearing_nearest_first() -> None:
    found = offsets("Broken Spoke 3", radius_ft=1200)
    told = [(each["name"], each["distance_ft"], each["bearing_deg"]) for each in found["wells"]]
    assert told == [("Broken Spoke 2", 800, 0), ("Broken Spoke 1", 980, 180)]
    assert found["operators"] == ["Llano Placeholder Petroleum Inc."]
    north_east = offsets("Mitchell Ranch 1", radius_ft=1200)["wells"]
    assert [(each["name"], each["distance_ft"], each["bearing_deg"]) for each in north_east] == [
        ("Mitchell Ranch 5", 1200, 36.9)  # atan(720 / 960); exactly at the radius is within it
    ]
    assert offsets("Mitchell Ranch 1", radius_ft=1199.99)["wells"] == []


def test_plugged_wells_and_other_horizons_are_listed_only_as_asked() -> None:
    def names(**args: Any) -> list[str]:
        return [each["name"] for each in offsets("Mitchell Ranch 5", radius_ft=1300, **args)["wells"]]

    assert names() == ["Mitchell Ranch 1"]
    assert names(plugged=True) == ["Mitchell Ranch 3", "Mitchell Ranch 1"]
    other = [each["name"] for each in offsets("Cottonwood 2", radius_ft=300)["wells"]]
    assert other == ["Cottonwood 3"] and offsets("Cottonwood 2", radius_ft=300, same_horizon_only=True)["wells"] == []
    assert not offsets("Lone Star 1")["analysed"]


@settings(deadline=None)
@given(one=PLACES, other=PLACES)
def test_distances_are_alike_from_both_ends_and_bearings_opposite(one: tuple[int, int], other: tuple[int, int]) -> None:
    wells = [well(1, one), well(2, other)]

    def look(number: int) -> list[dict[str, Any]]:
        args = {"well_name": f"Well {number}", "radius_ft": 26_400}
        found: list[dict[str, Any]] = run("offset_well_analysis", args, wells=wells)["wells"]
        return found

    there, back = look(1), look(2)
    assert [each["distance_ft"] for each in there] == [each["distance_ft"] for each in back]
    if there and there[0]["distance_ft"] > 1:
        turned = (there[0]["bearing_deg"] - back[0]["bearing_deg"]) % 360
        assert turned == pytest.approx(180, abs=0.11)


def test_the_sphere_and_the_grid_agree_over_a_few_miles() -> None:
    for subject in ("Mitchell Ranch 1H", "Twin Windmills 2"):
        planar = offsets(subject, radius_ft=26_400)["wells"]
        sphere = offsets(subject, radius_ft=26_400, method="haversine")["wells"]
        by_name = {each["name"]: each for each in sphere}
        for each in planar:
            assert by_name[each["name"]]["distance_ft"] == pytest.approx(each["distance_ft"], rel=5e-4)
            turned = (by_name[each["name"]]["bearing_deg"] - each["bearing_deg"] + 180) % 360 - 180
            assert abs(turned) < 0.2
