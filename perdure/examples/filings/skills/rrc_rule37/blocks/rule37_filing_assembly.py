"""A Rule 37 filing package (Form W-1 with an exception), assembled from the data, and its missing items.

Source: 16 TAC 3.37(a)(2). The application has the form, the fee of 16 TAC 3.78, a plat, the certificate of a person
who knows the facts, and the addresses of the affected persons. A tract counts if it is closer to the well than the
greater of half the between-well distance and the lease-line distance (600 ft statewide). Its operator is affected, or
without an operator its unleased mineral owners. If the exception is from between-well spacing, those of every adjacent
tract are affected too.

Units: feet on the survey grid, rounded to 0.01 ft. The distances are recomputed from the data, by the same rule as
spacing_assessment: a package never contains a figure that a model wrote. It is a draft; nothing is filed by it.
"""

import math
from typing import Any

Row = dict[str, Any]
COUNTING = ("producing", "shut_in", "drilling")
LINE_FT, BETWEEN_FT, TOUCHING_FT = 467, 1200, 0.5
PAPERS = {
    "plat": "a plat to scale with lease lines, the location and the wells around it",
    "certification": "the certificate of a person who knows the facts",
    "fee_receipt": "the receipt of the fee of 16 TAC 3.78",
}


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def to_segment_ft(x: float, y: float, start: list[float], end: list[float]) -> float:
    """The distance of a point from the nearest point of a line's piece."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    length = along_x * along_x + along_y * along_y
    share = 0.0 if length == 0 else ((x - start[0]) * along_x + (y - start[1]) * along_y) / length
    share = max(0.0, min(1.0, share))
    return math.hypot(x - (start[0] + share * along_x), y - (start[1] + share * along_y))


def is_inside(x: float, y: float, corners: list[list[float]]) -> bool:
    """Returns whether a point is in a polygon: a ray to the east crosses its sides an odd number of times."""
    inside = False
    for place, corner in enumerate(corners):
        before = corners[place - 1]
        if (corner[1] > y) != (before[1] > y):
            crossing = before[0] + (y - before[1]) / (corner[1] - before[1]) * (corner[0] - before[0])
            if x < crossing:
                inside = not inside
    return inside


def to_line_ft(x: float, y: float, corners: list[list[float]]) -> float:
    """The distance of a point from the nearest side of a polygon."""
    return round(min([to_segment_ft(x, y, corners[place - 1], end) for place, end in enumerate(corners)]), 2)


def touches(one: list[list[float]], other: list[list[float]]) -> bool:
    """Returns whether two tracts have a line or a corner in common."""
    apart = [to_line_ft(x, y, other) for x, y in one] + [to_line_ft(x, y, one) for x, y in other]
    return min(apart) <= TOUCHING_FT


def affected(well: Row, lease: Row, leases: list[Row], operators: list[Row], adjacent: bool) -> list[Row]:
    """Returns the persons that the application must name, tract by tract, nearest first."""
    by_id = {each["operator_id"]: each for each in operators}
    persons = []
    for tract in leases:
        if tract["lease_id"] == lease["lease_id"]:
            continue
        corners = tract["boundary_ft"]
        inside = is_inside(well["x_ft"], well["y_ft"], corners)
        distance_ft = 0.0 if inside else to_line_ft(well["x_ft"], well["y_ft"], corners)
        if distance_ft >= max(BETWEEN_FT / 2, LINE_FT) and not (adjacent and touches(corners, lease["boundary_ft"])):
            continue
        operator = by_id.get(tract["operator_id"])
        found = [operator] if operator is not None else tract["mineral_owners"]
        for person in found:
            persons.append(
                {
                    "tract": tract["name"],
                    "tract_distance_ft": distance_ft,
                    "role": "operator" if operator is not None else "mineral_owner",
                    "name": person["name"],
                    "mailing_address": person["mailing_address"],
                    "is_applicant": operator is not None and tract["operator_id"] == well["operator_id"],
                }
            )
    return sorted(persons, key=lambda row: (row["tract_distance_ft"], row["tract"], row["name"]))


def item(name: str, present: bool, note: str) -> Row:
    """One line of the completeness list."""
    return {"item": name, "present": present, "note": note}


def part_of(record: Row | None, fields: list[str]) -> Row | None:
    """Returns these fields of a record, or None if there is no record."""
    return None if record is None else {field: record[field] for field in fields}


def run(data: Row, **asked: Any) -> Row:
    """The package of one well."""
    wells, leases, operators = data["wells"]["rows"], data["leases"]["rows"], data["operators"]["rows"]
    name, papers = asked["well_name"], asked.get("attachments", [])
    narrative = asked.get("good_cause_narrative", "").strip()
    well: Row | None = None
    for each in wells:
        if same(each["name"], name) or same(each["api_number"], name):
            well = each
    lease: Row | None = None
    operator: Row | None = None
    spacing: Row | None = None
    needed: list[str] = []
    persons: list[Row] = []
    if well is not None:
        name = well["name"]
        for each in leases:
            lease = each if each["lease_id"] == well["lease_id"] else lease
        for each in operators:
            operator = each if each["operator_id"] == well["operator_id"] else operator
    if well is not None and lease is not None:
        x_ft, y_ft, corners = well["x_ft"], well["y_ft"], lease["boundary_ft"]
        near: list[Any] = [None, None]
        for each in wells:
            counts = each["lease_id"] == well["lease_id"] and each["status"] in COUNTING
            if counts and each["api_number"] != well["api_number"] and same(each["horizon"], well["horizon"]):
                apart = round(math.hypot(each["x_ft"] - x_ft, each["y_ft"] - y_ft), 2)
                near = [each["name"], apart] if near[1] is None or apart < near[1] else near
        line = to_line_ft(x_ft, y_ft, corners)
        if line < LINE_FT or not is_inside(x_ft, y_ft, corners):
            needed.append("lease_line")
        if near[1] is not None and near[1] < BETWEEN_FT:
            needed.append("between_wells")
        spacing = {
            "lease_line_ft": line,
            "lease_line_minimum_ft": LINE_FT,
            "nearest_well_name": near[0],
            "nearest_well_ft": near[1],
            "between_wells_minimum_ft": BETWEEN_FT,
        }
        if needed:
            persons = affected(well, lease, leases, operators, "between_wells" in needed)
    waivers = [paper.get("person", "") for paper in papers if paper["kind"] == "waiver"]
    to_notify: list[str] = []
    for person in persons:
        waived = any(same(person["name"], each) for each in waivers)
        if not (person["is_applicant"] or waived or person["name"] in to_notify):
            to_notify.append(person["name"])
    listed = [
        item("well_record", well is not None, "name, API number, horizon and surface location of the well"),
        item("operator", operator is not None, "the operator with its P-5 number"),
        item("lease", lease is not None, "the lease with its number and boundary"),
    ]
    if needed or spacing is None:
        kinds = [paper["kind"] for paper in papers]
        listed.extend([item(kind, kind in kinds, note) for kind, note in PAPERS.items()])
        addressed = spacing is not None and all(person["mailing_address"] for person in persons)
        listed.append(item("affected_persons", addressed, f"{len(persons)} recorded, with mailing addresses"))
        listed.append(item("good_cause_narrative", bool(narrative), "why waste or confiscation is prevented"))
    missing = [each["item"] for each in listed if not each["present"]]
    words = f"Rule 37 package (Form W-1) for {name}: {len(listed) - len(missing)} of {len(listed)} items are there"
    if missing:
        words += f"; missing: {', '.join(missing)}"
    if spacing is not None:
        kinds_told = {"lease_line": "lease-line", "between_wells": "between-well"}
        told = " and ".join([kinds_told[each] for each in needed])
        words += f". Lease line at {spacing['lease_line_ft']:,.2f} ft"
        if spacing["nearest_well_ft"] is not None:
            words += f", nearest well at {spacing['nearest_well_ft']:,.2f} ft"
        words += f"; exception: {told} spacing" if needed else "; no exception is needed"
        words += f". To notify without a waiver: {', '.join(to_notify)}" if to_notify else ""
    return {
        "rule": "16 TAC 3.37",
        "form": "W-1",
        "well_name": name,
        "api_number": well["api_number"] if well is not None else None,
        "horizon": well["horizon"] if well is not None else None,
        "surface_ft": [well["x_ft"], well["y_ft"]] if well is not None else None,
        "operator": part_of(operator, ["name", "p5_number", "mailing_address"]),
        "lease": part_of(lease, ["name", "lease_number", "county", "field", "acres"]),
        "spacing": spacing,
        "exceptions_needed": needed,
        "affected_persons": persons,
        "to_notify": to_notify,
        "good_cause_narrative": narrative if narrative else None,
        "attachments": papers,
        "completeness": listed,
        "missing": missing,
        "complete": not missing,
        "summary": words + ".",
    }
