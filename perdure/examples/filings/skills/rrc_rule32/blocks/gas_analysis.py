"""A gas sample: heating value in BTU a standard cubic foot, and whether a pipeline is likely to take the gas.

Sources: the components' gross heating values are those of the ideal gas at 60 F and 14.696 psia, GPA 2145-09, to 0.1
BTU. Hexanes and heavier count as n-hexane. Nothing is corrected for compressibility or water. The pipeline limits are
typical of transmission tariffs in the United States: 2 % carbon dioxide, 0.2 % oxygen, 4 % inert gas in all, 950 to
1,150 BTU. They allow a quarter grain of hydrogen sulfide in 100 scf, which is 4 ppmv, and 7 lb of water in a million
scf. The tariff of the pipeline in question decides. A value exactly at a limit is within it.

Units: mole percent, which for gas is percent by volume; BTU/scf; ppmv; lb/MMscf. A composition that adds up to 99 to
101 is scaled to 100; one further off is refused.
"""

from typing import Any

Row = dict[str, Any]
BTU_PER_SCF = {
    "methane": 1010.0,
    "ethane": 1769.7,
    "propane": 2516.1,
    "iso_butane": 3251.9,
    "n_butane": 3262.3,
    "iso_pentane": 4000.9,
    "n_pentane": 4008.7,
    "hexanes_plus": 4756.0,
    "hydrogen_sulfide": 637.1,
    "nitrogen": 0.0,
    "carbon_dioxide": 0.0,
    "oxygen": 0.0,
}
INERT = ("nitrogen", "carbon_dioxide", "oxygen")


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def check(name: str, value: float, low: float, high: float, unit: str) -> Row:
    """One property held against its limits."""
    return {"property": name, "value": value, "minimum": low, "maximum": high, "unit": unit, "ok": low <= value <= high}


def run(data: Row, **asked: Any) -> Row:
    """The analysis of one sample."""
    name = asked["lease_name"]
    lease: Row | None = None
    for each in data["leases"]["rows"]:
        lease = each if same(each["name"], name) or same(each["lease_id"], name) else lease
    sample: Row | None = None
    for each in data["gas_samples"]["rows"]:
        newer = sample is None or each["sampled_on"] > sample["sampled_on"]
        if lease is not None and each["lease_id"] == lease["lease_id"] and newer:
            sample = each
    name = lease["name"] if lease is not None else name
    given = asked.get("composition_mol_pct", sample["composition_mol_pct"] if sample is not None else None)
    result: Row = {
        "rule": "16 TAC 3.32",
        "lease_name": name,
        "sample_id": sample["sample_id"] if sample is not None and "composition_mol_pct" not in asked else None,
        "analysed": False,
        "total_mol_pct": None,
        "heating_value_btu_per_scf": None,
        "checks": [],
        "unknown": [],
        "pipeline_ready": None,
        "summary": f"{name}: the data has no gas sample; hand a composition in.",
    }
    if given is None:
        return result
    total = sum([given[key] for key in given])
    if not 99 <= total <= 101:
        raise ValueError(f"the composition adds up to {total:.3f} mol %, not to 100")
    # Rounded so that scaling leaves no dust at a limit: 2.0 of 100 stays 2.0.
    share = {key: round(given.get(key, 0.0) * 100 / total, 6) for key in BTU_PER_SCF}
    heat = round(sum([share[key] * BTU_PER_SCF[key] for key in BTU_PER_SCF]) / 100, 1)
    checks = [
        check("heating_value", heat, 950, 1150, "btu_per_scf"),
        check("carbon_dioxide", share["carbon_dioxide"], 0, 2, "mol_pct"),
        check("oxygen", share["oxygen"], 0, 0.2, "mol_pct"),
        check("inert_gas", round(sum([share[key] for key in INERT]), 6), 0, 4, "mol_pct"),
        check("hydrogen_sulfide", round(share["hydrogen_sulfide"] * 10_000, 2), 0, 4, "ppmv"),
    ]
    sampled_water = sample["water_lb_per_mmscf"] if sample is not None and "composition_mol_pct" not in asked else None
    water = asked.get("water_lb_per_mmscf", sampled_water)
    unknown = []
    if water is None:
        unknown.append("water")
    else:
        checks.append(check("water", water, 0, 7, "lb_per_mmscf"))
    failed = [each for each in checks if not each["ok"]]
    words = f"{name}: {heat:,.1f} BTU/scf"
    if failed:
        told = [f"{each['property'].replace('_', ' ')} {each['value']:g} {each['unit']}" for each in failed]
        words += f"; not ready for a pipeline: {', '.join(told)}"
    elif unknown:
        words += "; nothing measured is over a pipeline limit, but the water is not known"
    else:
        words += "; within the usual pipeline limits"
    return {
        **result,
        "analysed": True,
        "total_mol_pct": round(total, 4),
        "heating_value_btu_per_scf": heat,
        "checks": checks,
        "unknown": unknown,
        "pipeline_ready": not failed and not unknown,
        "summary": words + ".",
    }
