"""rule37_filing_assembly and good_cause_narrative: what is in a package, what is missing, whom it names."""

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
        "lease_line_ft": assessed["lease_line"]["distance_ft"],
        "lease_line_minimum_ft": 467,
        "nearest_well_name": nearest["name"],
        "nearest_well_ft": nearest["distance_ft"],
        "between_wells_minimum_ft": 1200,
    }


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


KINDS = ("waste", "confiscation", "geology", "engineering", "surface", "economics", "safety")
WORDS = st.text("abcdefg ", min_size=1, max_size=30).filter(lambda text: text.strip() != "")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), WORDS), min_size=1, max_size=12))
def test_every_fact_is_used_exactly_once(told: list[tuple[str, str]]) -> None:
    facts = [fact(number, kind, words, source="s") for number, (kind, words) in enumerate(told)]
    found = narrate(facts)
    assert sorted(found["facts_used"]) == sorted(each["fact_id"] for each in facts)
    for each in facts:
        assert found["narrative"].count(f"({each['fact_id']}; s)") == 1
        assert each["statement"].strip() in found["narrative"]
