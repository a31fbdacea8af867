"""The wells around a well: distance in feet, bearing in degrees, operator; those within a radius, nearest first.

Source: the offset wells and operators that an application under 16 TAC 3.37 shows on its plat and may have to notify.
A well exactly at the radius is within it. The radius is the asker's choice; the rule sets none for this list.

Units: feet and degrees clockwise from north. `planar`: on the survey grid; north is the
grid's. `haversine`: great circles on a sphere of 6,371,008.8 m mean radius (IUGG), 0.3048 m to the foot; north is true.
Distances are rounded to 0.01 ft and then compared; bearings are initial bearings, rounded to 0.1 degree.
"""

import math
from typing import Any

Row = dict[str, Any]
SPHERE_FT = 6371008.8 / 0.3048


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def planar(subject: Row, well: Row) -> list[float]:
    """[distance in feet, bearing in degrees] on the grid."""
    east, north = well["x_ft"] - subject["x_ft"], well["y_ft"] - subject["y_ft"]
    return [math.hypot(east, north), math.degrees(math.atan2(east, north))]


def haversine(subject: Row, well: Row) -> list[float]:
    """[distance in feet, initial bearing in degrees] on the sphere."""
    here, there = math.radians(subject["latitude_deg"]), math.radians(well["latitude_deg"])
    turn = math.radians(well["longitude_deg"] - subject["longitude_deg"])
    half = math.sin((there - here) / 2) ** 2 + math.cos(here) * math.cos(there) * math.sin(turn / 2) ** 2
    distance = 2 * SPHERE_FT * math.asin(math.sqrt(min(1.0, half)))
    east = math.sin(turn) * math.cos(there)
    north = math.cos(here) * math.sin(there) - math.sin(here) * math.cos(there) * math.cos(turn)
    return [distance, math.degrees(math.atan2(east, north))]


def run(data: Row, **asked: Any) -> Row:
    """The offset wells of one well."""
    wells = data["wells"]["rows"]
    radius_ft, method = asked.get("radius_ft", 2640), asked.get("method", "planar")
    subject: Row | None = None
    for each in wells:
        if same(each["name"], asked["well_name"]) or same(each["api_number"], asked["well_name"]):
            subject = each
    result: Row = {
        "rule": "16 TAC 3.37",
        "well_name": subject["name"] if subject is not None else asked["well_name"],
        "api_number": subject["api_number"] if subject is not None else None,
        "analysed": subject is not None,
        "radius_ft": radius_ft,
        "method": method,
        "wells": [],
        "operators": [],
        "summary": f"The data has no well {asked['well_name']}, so its offset wells cannot be determined.",
    }
    if subject is None:
        return result
    lease_names = {each["lease_id"]: each["name"] for each in data["leases"]["rows"]}
    operator_names = {each["operator_id"]: each["name"] for each in data["operators"]["rows"]}
    found: list[Row] = []
    for well in wells:
        if well["api_number"] == subject["api_number"]:
            continue
        if well["status"] == "plugged" and not asked.get("plugged", False):
            continue
        if asked.get("same_horizon_only", False) and not same(well["horizon"], subject["horizon"]):
            continue
        distance, bearing = planar(subject, well) if method == "planar" else haversine(subject, well)
        distance_ft = round(distance, 2)
        if distance_ft <= radius_ft:
            found.append(
                {
                    "name": well["name"],
                    "api_number": well["api_number"],
                    "operator_name": operator_names.get(well["operator_id"]),
                    "lease_name": lease_names.get(well["lease_id"]),
                    "well_type": well["well_type"],
                    "status": well["status"],
                    "horizon": well["horizon"],
                    "same_lease": well["lease_id"] == subject["lease_id"],
                    "same_horizon": same(well["horizon"], subject["horizon"]),
                    "distance_ft": distance_ft,
                    "bearing_deg": round(bearing % 360, 1) % 360,
                }
            )
    found = sorted(found, key=lambda row: (row["distance_ft"], row["api_number"]))
    operator_list = sorted({row["operator_name"] for row in found if row["operator_name"] is not None})
    words = f"{subject['name']} has {len(found)} offset well{'' if len(found) == 1 else 's'} within {radius_ft:,.0f} ft"
    if found:
        first = found[0]
        words += f"; the nearest is {first['name']}, {first['distance_ft']:,.2f} ft at {first['bearing_deg']:.1f}"
        words += f" degrees; operators: {', '.join(operator_list)}"
    return {**result, "wells": found, "operators": operator_list, "summary": words + "."}
