"""Spacing of a surface location under Statewide Rule 37: feet to the lease line and to the nearest well that counts.

Source: 16 TAC 3.37(a)(1), statewide distances. No well may be nearer than 467 ft to a property, lease or subdivision
line. None may be nearer than 1,200 ft to a well completed in, or drilling to, the same horizon on the same tract.
"Nearer than" is strict: a location exactly at a distance conforms. Field rules may set other distances, passed as
arguments.

Units: feet on the survey grid, x east and y north. A distance is planar, rounded to 0.01 ft and then compared. Plugged
and proposed wells do not count. A horizontal drainhole has rules of its own (16 TAC 3.86) and is not looked at.
"""

import math
from typing import Any

Row = dict[str, Any]
COUNTING = ("producing", "shut_in", "drilling")


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


def nearest_line(x: float, y: float, corners: list[list[float]], minimum_ft: float) -> Row:
    """The side of a polygon that is nearest, and whether it is far enough."""
    best = -1.0
    side = [corners[-1], corners[0]]
    for place, corner in enumerate(corners):
        distance = to_segment_ft(x, y, corners[place - 1], corner)
        if best < 0 or distance < best:
            best, side = distance, [corners[place - 1], corner]
    distance_ft = round(best, 2)
    return {
        "distance_ft": distance_ft,
        "minimum_ft": minimum_ft,
        "shortfall_ft": round(max(0.0, minimum_ft - distance_ft), 2),
        "conforms": distance_ft >= minimum_ft,
        "side_ft": side,
    }


def nearest_well(x: float, y: float, wells: list[Row], minimum_ft: float) -> Row | None:
    """The nearest of the wells that count, and whether it is far enough."""
    found: Row | None = None
    for well in wells:
        distance_ft = round(math.hypot(well["x_ft"] - x, well["y_ft"] - y), 2)
        if found is None or distance_ft < found["distance_ft"]:
            found = {
                "name": well["name"],
                "api_number": well["api_number"],
                "distance_ft": distance_ft,
                "minimum_ft": minimum_ft,
                "shortfall_ft": round(max(0.0, minimum_ft - distance_ft), 2),
                "conforms": distance_ft >= minimum_ft,
            }
    return found


def in_words(name: str, line: Row, well: Row | None, inside: bool, needed: list[str]) -> str:
    """The result in words."""
    words = f"{name}: the lease line is {line['distance_ft']:,.2f} ft away (at least {line['minimum_ft']:,.0f} ft)"
    if well is None:
        words += "; no well on the lease counts against it"
    else:
        words += f"; the nearest well in the same horizon on the lease is {well['name']}"
        words += f" at {well['distance_ft']:,.2f} ft (at least {well['minimum_ft']:,.0f} ft)"
    if not inside:
        words += "; the location is outside the lease"
    if not needed:
        return words + ". No exception to Rule 37 is needed for these distances."
    kinds = {"lease_line": "lease-line", "between_wells": "between-well"}
    return words + f". It needs a Rule 37 exception: {' and '.join(kinds[each] for each in needed)} spacing."


def run(data: Row, **asked: Any) -> Row:
    """The assessment of one location."""
    wells, leases = data["wells"]["rows"], data["leases"]["rows"]
    well: Row | None = None
    for each in wells:
        if same(each["name"], asked["well_name"]) or same(each["api_number"], asked["well_name"]):
            well = each
    lease: Row | None = None
    for each in leases:
        of_well = well is not None and each["lease_id"] == well["lease_id"]
        if same(each["name"], asked["lease_name"]) if "lease_name" in asked else of_well:
            lease = each
    x_ft = asked.get("surface_x_ft", well["x_ft"] if well is not None else None)
    y_ft = asked.get("surface_y_ft", well["y_ft"] if well is not None else None)
    horizon = asked.get("horizon", well["horizon"] if well is not None else None)
    name = well["name"] if well is not None else asked["well_name"]
    missing = []
    if well is None:
        missing.append(f"well record: the data has no well {asked['well_name']}")
    if lease is None:
        missing.append("lease with its boundary")
    if x_ft is None or y_ft is None:
        missing.append("surface location: surface_x_ft and surface_y_ft")
    if horizon is None:
        missing.append("horizon")
    result: Row = {
        "rule": "16 TAC 3.37",
        "well_name": name,
        "api_number": well["api_number"] if well is not None else None,
        "lease_name": lease["name"] if lease is not None else None,
        "horizon": horizon,
        "assessed": False,
        "surface_ft": None,
        "inside_lease": None,
        "lease_line": None,
        "nearest_well": None,
        "exceptions_needed": [],
        "missing": missing,
        "summary": f"{name} cannot be assessed. Missing: {'; '.join(missing)}.",
    }
    if lease is None or x_ft is None or y_ft is None or horizon is None:
        return result
    counting = [
        each
        for each in wells
        if each["lease_id"] == lease["lease_id"]
        and each["status"] in COUNTING
        and same(each["horizon"], horizon)
        and (well is None or each["api_number"] != well["api_number"])
    ]
    line = nearest_line(x_ft, y_ft, lease["boundary_ft"], asked.get("lease_line_minimum_ft", 467))
    near = nearest_well(x_ft, y_ft, counting, asked.get("between_wells_minimum_ft", 1200))
    inside = is_inside(x_ft, y_ft, lease["boundary_ft"]) or line["distance_ft"] == 0
    needed = [] if line["conforms"] and inside else ["lease_line"]
    if near is not None and not near["conforms"]:
        needed.append("between_wells")
    return {
        **result,
        "assessed": True,
        "surface_ft": [x_ft, y_ft],
        "inside_lease": inside,
        "lease_line": line,
        "nearest_well": near,
        "exceptions_needed": needed,
        "summary": in_words(name, line, near, inside, needed),
    }
