"""Greenhouse gases of flared and vented gas, in metric tons of carbon dioxide equivalent (CO2e).

Sources: the flare method of 40 CFR 98.233(n). Of the gas that the flare burns, each hydrocarbon gives as much carbon
dioxide as it has carbon atoms; pentanes and heavier count five. Of the unburned gas, methane stays methane and the
rest is left out. Combustion efficiency 98 % unless given, the rule's default before its revision of 2024. Densities
of 98.233(v) at 60 F and 14.7 psia: 0.0526 kg a standard cubic foot for carbon dioxide, 0.0192 for methane. Nitrous
oxide by 98.233(z): 1.235e-3 MMBtu/scf and 1e-4 kg/MMBtu. Warming potentials of 40 CFR 98 Table A-1: from 2025 methane
28 and nitrous oxide 265, before that 25 and 298.

Units: mcf, kg, metric tons. Volumes are taken as measured at the base of the densities; from 14.65 psia, the base of
reports in Texas, the difference is 0.3 % and not corrected. An estimate, not a report under 40 CFR 98.
"""

from typing import Any

Row = dict[str, Any]
CARBON_ATOMS = {
    "methane": 1,
    "ethane": 2,
    "propane": 3,
    "iso_butane": 4,
    "n_butane": 4,
    "iso_pentane": 5,
    "n_pentane": 5,
    "hexanes_plus": 5,
}
CO2_KG_PER_SCF, CH4_KG_PER_SCF = 0.0526, 0.0192
N2O_KG_PER_SCF = 1.235e-3 * 1e-4
WARMING = {"table_a1_2025": {"ch4": 28, "n2o": 265}, "table_a1_2014": {"ch4": 25, "n2o": 298}}


def same(one: str, other: str) -> bool:
    """Returns whether two names are equal, apart from case and blanks."""
    return " ".join(one.lower().split()) == " ".join(other.lower().split())


def masses_kg(flared_mcf: float, vented_mcf: float, fraction: Row, efficiency: float) -> Row:
    """Carbon dioxide, methane and nitrous oxide in kg."""
    flared_scf, vented_scf = flared_mcf * 1000, vented_mcf * 1000
    carbon = sum([fraction[key] * CARBON_ATOMS[key] for key in CARBON_ATOMS])
    co2_scf = (flared_scf + vented_scf) * fraction["carbon_dioxide"] + flared_scf * efficiency * carbon
    ch4_scf = (flared_scf * (1 - efficiency) + vented_scf) * fraction["methane"]
    return {
        "co2": co2_scf * CO2_KG_PER_SCF,
        "ch4": ch4_scf * CH4_KG_PER_SCF,
        "n2o": flared_scf * N2O_KG_PER_SCF,
    }


def run(data: Row, **asked: Any) -> Row:
    """The estimate for one lease."""
    name = asked["lease_name"]
    lease: Row | None = None
    for each in data["leases"]["rows"]:
        lease = each if same(each["name"], name) or same(each["lease_id"], name) else lease
    lease_id = lease["lease_id"] if lease is not None else None
    name = lease["name"] if lease is not None else name
    first, last = asked.get("from_month", "0000-00"), asked.get("to_month", "9999-99")
    months = [
        each for each in data["flaring"]["rows"] if each["lease_id"] == lease_id and first <= each["month"] <= last
    ]
    sample: Row | None = None
    for each in data["gas_samples"]["rows"]:
        if each["lease_id"] == lease_id and (sample is None or each["sampled_on"] > sample["sampled_on"]):
            sample = each
    told = "flared_mcf" in asked or "vented_mcf" in asked
    flared = asked.get("flared_mcf", 0) if told else round(sum([each["flared_mcf"] for each in months]), 3)
    vented = asked.get("vented_mcf", 0) if told else round(sum([each["vented_mcf"] for each in months]), 3)
    given = asked.get("composition_mol_pct", sample["composition_mol_pct"] if sample is not None else None)
    efficiency_pct, table = asked.get("combustion_efficiency_pct", 98), asked.get("warming_table", "table_a1_2025")
    missing = []
    if given is None:
        missing.append("composition_mol_pct: the data has no gas sample")
    if not told and not months:
        missing.append("flared_mcf or vented_mcf: the data has no volumes")
    result: Row = {
        "method": "40 CFR 98.233(n)",
        "lease_name": name,
        "estimated": False,
        "flared_mcf": flared,
        "vented_mcf": vented,
        "combustion_efficiency_pct": efficiency_pct,
        "warming_table": table,
        "co2_kg": None,
        "ch4_kg": None,
        "n2o_kg": None,
        "co2e_metric_tons": None,
        "missing": missing,
        "summary": f"{name} cannot be estimated. Missing: {'; '.join(missing)}.",
    }
    if given is None or missing:
        return result
    total = sum([given[key] for key in given])
    if not 99 <= total <= 101:
        raise ValueError(f"the composition adds up to {total:.3f} mol %, not to 100")
    fraction = {key: given.get(key, 0.0) / total for key in [*CARBON_ATOMS, "carbon_dioxide"]}
    kg = masses_kg(flared, vented, fraction, efficiency_pct / 100)
    warming = WARMING[table]
    tons = (kg["co2"] + kg["ch4"] * warming["ch4"] + kg["n2o"] * warming["n2o"]) / 1000
    words = f"{name}: {tons:,.1f} metric tons CO2e from {flared:,.0f} mcf flared at {efficiency_pct:g} % and"
    words += f" {vented:,.0f} mcf vented ({kg['co2'] / 1000:,.1f} t carbon dioxide, {kg['ch4'] / 1000:,.2f} t methane,"
    words += f" {kg['n2o']:,.2f} kg nitrous oxide)."
    return {
        **result,
        "estimated": True,
        "co2_kg": round(kg["co2"], 3),
        "ch4_kg": round(kg["ch4"], 3),
        "n2o_kg": round(kg["n2o"], 4),
        "co2e_metric_tons": round(tons, 3),
        "summary": words,
    }
