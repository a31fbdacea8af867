"""A Rule 32 filing package (Form R-32, an exception to flare), assembled from the data, and its missing items.

Source: 16 TAC 3.32. An exception may be granted administratively for up to 180 days. Past 45 days the operator shows
why the gas cannot be used or sold. More than 180 days at more than 50 mcf a day takes a final order of the Commission.
At 50 mcf a day or less it may be granted administratively for longer. A value exactly at a limit is within it.

Units: mcf a day, days counted with the first and the last, mole percent. Volumes are the recorded ones. Apart
from the requested rate and days, a package never contains a figure that a model wrote. It is a draft; nothing is filed.
"""

from datetime import date
from typing import Any

Row = dict[str, Any]
SMALL_MCF_PER_DAY, ADMINISTRATIVE_DAYS, PLAIN_DAYS = 50, 180, 45


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def item(name: str, present: bool, note: str) -> Row:
    """One line of the completeness list."""
    return {"item": name, "present": present, "note": note}


def part_of(record: Row | None, fields: list[str]) -> Row | None:
    """Returns these fields of a record, or None if there is no record."""
    return None if record is None else {field: record[field] for field in fields}


def days_of(asked: Row) -> int | None:
    """Returns the number of requested days, or None if one of the two is missing."""
    if "from_day" not in asked or "to_day" not in asked:
        return None
    days = (date.fromisoformat(asked["to_day"]) - date.fromisoformat(asked["from_day"])).days + 1
    if days < 1:
        raise ValueError("to_day is before from_day")
    return days


def route_of(rate: float | None, days: int | None) -> str | None:
    """Returns who can grant it, or None if the rate or the days are missing."""
    if days is not None and days <= ADMINISTRATIVE_DAYS:
        return "administrative"
    if rate is None or days is None:
        return None
    return "administrative_long_term" if rate <= SMALL_MCF_PER_DAY else "final_order"


def run(data: Row, **asked: Any) -> Row:
    """The package of one lease."""
    name, papers = asked["lease_name"], asked.get("attachments", [])
    lease: Row | None = None
    for each in data["leases"]["rows"]:
        lease = each if same(each["name"], name) or same(each["lease_id"], name) else lease
    operator: Row | None = None
    for each in data["operators"]["rows"]:
        operator = each if lease is not None and each["operator_id"] == lease["operator_id"] else operator
    name = lease["name"] if lease is not None else name
    lease_id = lease["lease_id"] if lease is not None else None
    months = [each for each in data["flaring"]["rows"] if each["lease_id"] == lease_id]
    volume = sum([each["flared_mcf"] + each["vented_mcf"] for each in months])
    observed = round(volume / sum([each["days"] for each in months]), 2) if months else None
    highest = max([round((each["flared_mcf"] + each["vented_mcf"]) / each["days"], 2) for each in months], default=None)
    sample: Row | None = None
    for each in data["gas_samples"]["rows"]:
        if each["lease_id"] == lease_id and (sample is None or each["sampled_on"] > sample["sampled_on"]):
            sample = each
    on_file = [each["exception_id"] for each in data["flare_exceptions"]["rows"] if each["lease_id"] == lease_id]
    rate, days, reason = asked.get("requested_mcf_per_day"), days_of(asked), asked.get("reason", "").strip()
    kinds = [paper["kind"] for paper in papers]
    listed = [
        item("lease", lease is not None, "the lease with its number"),
        item("operator", operator is not None, "the operator with its P-5 number"),
        item("requested_rate", rate is not None, "the most that may be flared, in mcf a day"),
        item("period", days is not None, "first and last day"),
        item("reason", bool(reason), "why the gas cannot be used or sold"),
        item("volumes", bool(months), f"{len(months)} months recorded"),
        item("gas_sample", sample is not None, "the newest sample of the lease's gas"),
        item("certification", "certification" in kinds, "the certificate of a person who knows the facts"),
        item("fee_receipt", "fee_receipt" in kinds, "the receipt of the fee of 16 TAC 3.78"),
    ]
    if days is None or days > PLAIN_DAYS:
        note = f"past {PLAIN_DAYS} days: why no gatherer or pipeline takes the gas"
        listed.append(item("gas_market", "gas_market" in kinds, note))
    missing = [each["item"] for each in listed if not each["present"]]
    notes = []
    if rate is not None and highest is not None and rate < highest:
        notes.append(f"the requested rate is below the highest recorded month, {highest:,.2f} mcf a day")
    if on_file:
        notes.append(f"on file already: {', '.join(on_file)}")
    route = route_of(rate, days)
    words = f"Rule 32 package (Form R-32) for {name}: {len(listed) - len(missing)} of {len(listed)} items are there"
    words += f"; missing: {', '.join(missing)}" if missing else ""
    words += f". Recorded: {observed:,.2f} mcf a day on average" if observed is not None else ""
    if route is not None:
        words += f". Requested: {days} days; route: {route.replace('_', ' ')}"
    words += f". Note: {'; '.join(notes)}" if notes else ""
    return {
        "rule": "16 TAC 3.32",
        "form": "R-32",
        "lease": part_of(lease, ["name", "lease_number", "county", "field"]),
        "operator": part_of(operator, ["name", "p5_number", "mailing_address"]),
        "lease_name": name,
        "requested_mcf_per_day": rate,
        "from_day": asked.get("from_day"),
        "to_day": asked.get("to_day"),
        "days": days,
        "route": route,
        "reason": reason if reason else None,
        "observed_mcf_per_day": observed,
        "highest_month_mcf_per_day": highest,
        "sample_id": sample["sample_id"] if sample is not None else None,
        "composition_mol_pct": sample["composition_mol_pct"] if sample is not None else None,
        "exceptions_on_file": on_file,
        "attachments": papers,
        "completeness": listed,
        "missing": missing,
        "complete": not missing,
        "notes": notes,
        "summary": words + ".",
    }
