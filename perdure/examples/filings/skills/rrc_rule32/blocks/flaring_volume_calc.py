"""Volumes flared and vented on a lease, month by month, held against Statewide Rule 32 and the exceptions on file.

Source: 16 TAC 3.32. Without an exception gas may go to the flare for at most 24 hours without a break and 72 hours in
a calendar month. An exception has a rate that may not be exceeded. At 50 mcf a day or less one may be granted without
a hearing for as long as the gas cannot be sold. All are "more than": a month exactly at a limit is within it.

Exceptions that follow each other within a month cover it together, each the days that it names; the rate of the month
is then theirs by days.

Units: mcf (thousand standard cubic feet) as reported, hours, days. A month's average is over its calendar days, whether
or not gas was flared on them; it is rounded to 0.01 mcf a day and then compared.
"""

from typing import Any

Row = dict[str, Any]
SMALL_MCF_PER_DAY, EVENT_HOURS, MONTH_HOURS = 50, 24, 72


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def coverage_of(reading: Row, exceptions: list[Row]) -> list[Any]:
    """[the ids of the exceptions that cover days of a month, the number of these days, the mean mcf a day that they
    authorize]. On a day that several cover, the highest rate applies."""
    ids: list[str] = []
    covered, authorised = 0, 0.0
    for number in range(1, reading["days"] + 1):
        day = f"{reading['month']}-{number:02d}"
        rates: list[float] = []
        for each in exceptions:
            to_day = each["to_day"] if each["to_day"] is not None else "9999-12-31"
            if each["from_day"] <= day and to_day >= day:
                rates.append(each["authorised_mcf_per_day"])
                if each["exception_id"] not in ids:
                    ids.append(each["exception_id"])
        if rates:
            covered, authorised = covered + 1, authorised + max(rates)
    return [ids, covered, round(authorised / covered, 2) if covered else 0.0]


def finding(code: str, month: str, value: float, limit: float, unit: str, words: str) -> Row:
    """One thing that a person must look at."""
    return {"code": code, "month": month, "value": value, "limit": limit, "unit": unit, "text": f"{month}: {words}"}


def month_of(reading: Row, exceptions: list[Row]) -> list[Any]:
    """[the row of a month, its findings]."""
    month, days = reading["month"], reading["days"]
    total = reading["flared_mcf"] + reading["vented_mcf"]
    average = round(total / days, 2)
    hours, longest = reading["event_hours"], reading["longest_event_hours"]
    needs = longest > EVENT_HOURS or hours > MONTH_HOURS
    ids, covered, authorised = coverage_of(reading, exceptions)
    named, cover = " and ".join(ids), "covers" if len(ids) == 1 else "cover"
    found = []
    if longest > EVENT_HOURS and not ids:
        text = f"{longest:g} hours without a break, more than {EVENT_HOURS}, and no exception on file"
        found.append(finding("event_too_long", month, longest, EVENT_HOURS, "hours", text))
    if hours > MONTH_HOURS and not ids:
        text = f"{hours:g} hours in the month, more than {MONTH_HOURS}, and no exception on file"
        found.append(finding("month_too_long", month, hours, MONTH_HOURS, "hours", text))
    if needs and ids and covered < days:
        text = f"{named} {cover} only a part of the month, {covered} of {days} days"
        found.append(finding("covered_in_part", month, covered, days, "days", text))
    if ids and average > authorised:
        rate = "authorizes" if len(ids) == 1 else "authorize over the days that they cover"
        text = f"{average:,.2f} mcf a day, more than the {authorised:,.2f} that {named} {rate}"
        found.append(finding("over_authorised_rate", month, average, authorised, "mcf_per_day", text))
    row = {
        "month": month,
        "days": days,
        "flared_mcf": reading["flared_mcf"],
        "vented_mcf": reading["vented_mcf"],
        "total_mcf": round(total, 3),
        "average_mcf_per_day": average,
        "over_small_volume": average > SMALL_MCF_PER_DAY,
        "needs_exception": needs,
        "exception_id": ", ".join(ids) if ids else None,
    }
    return [row, found]


def run(data: Row, **asked: Any) -> Row:
    """The months of one lease, their totals and what to look at."""
    name = asked["lease_name"]
    lease: Row | None = None
    for each in data["leases"]["rows"]:
        lease = each if same(each["name"], name) or same(each["lease_id"], name) else lease
    lease_id = lease["lease_id"] if lease is not None else None
    first, last = asked.get("from_month", "0000-00"), asked.get("to_month", "9999-99")
    recorded = [each for each in data["flaring"]["rows"] if each["lease_id"] == lease_id]
    readings = [each for each in asked.get("readings", recorded) if first <= each["month"] <= last]
    readings = sorted(readings, key=lambda row: row["month"])
    exceptions = [each for each in data["flare_exceptions"]["rows"] if each["lease_id"] == lease_id]
    months: list[Row] = []
    findings: list[Row] = []
    for reading in readings:
        row, found = month_of(reading, exceptions)
        months.append(row)
        findings.extend(found)
    days = sum([row["days"] for row in months])
    flared = round(sum([row["flared_mcf"] for row in months]), 3)
    vented = round(sum([row["vented_mcf"] for row in months]), 3)
    average = round((flared + vented) / days, 2) if days else 0.0
    shown = lease["name"] if lease is not None else name
    if months:
        words = f"{shown}, {months[0]['month']} to {months[-1]['month']}: {flared:,.0f} mcf flared and {vented:,.0f}"
        words += f" mcf vented in {days} days, {average:,.2f} mcf a day on average (the small volume of Rule 32 is"
        words += f" {SMALL_MCF_PER_DAY}). "
        words += " ".join([f"{each['text']}." for each in findings]) if findings else "Nothing is over a limit."
    else:
        known = "no lease" if lease is None else "no volumes in these months"
        words = f"{shown}: the data has {known}; nothing can be calculated."
    return {
        "rule": "16 TAC 3.32",
        "lease_name": shown,
        "months": months,
        "days": days,
        "flared_mcf": flared,
        "vented_mcf": vented,
        "total_mcf": round(flared + vented, 3),
        "average_mcf_per_day": average,
        "limits": {
            "small_volume_mcf_per_day": SMALL_MCF_PER_DAY,
            "event_hours": EVENT_HOURS,
            "month_hours": MONTH_HOURS,
        },
        "over_a_limit": bool(findings),
        "findings": findings,
        "summary": words,
    }
