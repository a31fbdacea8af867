"""A good cause narrative, assembled from the facts alone: each sentence has its fact.

Source: 16 TAC 3.37(a)(1) lets the Commission grant an exception to prevent waste or to prevent the confiscation of
property. So the narrative has those two grounds first, then the supporting facts, and names a ground without a fact.
It adds no claim: every statement is one that was passed in, with its number and its source.
"""

from typing import Any

Row = dict[str, Any]
HEADINGS = {
    "waste": "Prevention of waste",
    "confiscation": "Prevention of confiscation",
    "geology": "Geology",
    "engineering": "Engineering",
    "surface": "Surface",
    "economics": "Economics",
    "safety": "Safety",
}
GROUNDS = ("waste", "confiscation")


def sentence(fact: Row) -> str:
    """One fact as a sentence that names it."""
    statement = fact["statement"].strip().rstrip(".")
    source = fact.get("source", "").strip()
    return f"{statement} ({fact['fact_id']}{'; ' + source if source else ''})."


def run(**asked: Any) -> Row:
    """The narrative, the facts it used and what it lacks."""
    facts: list[Row] = asked["facts"]
    seen: list[str] = []
    for fact in facts:
        if fact["fact_id"] in seen:
            raise ValueError(f"two facts are called {fact['fact_id']}")
        if not fact["statement"].strip(" ."):
            raise ValueError(f"the fact {fact['fact_id']} has no statement")
        seen.append(fact["fact_id"])
    parts = [f"Good cause for an exception to Statewide Rule 37: {asked['well_name']}"]
    used: list[str] = []
    for kind, heading in HEADINGS.items():
        of_kind = [fact for fact in facts if fact["kind"] == kind]
        if of_kind:
            parts.append(f"{heading}. {' '.join([sentence(fact) for fact in of_kind])}")
            used.extend([fact["fact_id"] for fact in of_kind])
    grounds = {ground: [fact["fact_id"] for fact in facts if fact["kind"] == ground] for ground in GROUNDS}
    unsourced = [fact["fact_id"] for fact in facts if not fact.get("source", "").strip()]
    missing = []
    if not grounds["waste"] and not grounds["confiscation"]:
        missing.append("a fact that shows prevention of waste or of confiscation: without one there is no good cause")
    if unsourced:
        missing.append(f"the source of {', '.join(unsourced)}")
    argued = [HEADINGS[ground].lower() for ground in GROUNDS if grounds[ground]]
    words = f"The narrative for {asked['well_name']} uses {len(used)} fact{'' if len(used) == 1 else 's'}"
    words += f" ({', '.join(used)}) and argues {' and '.join(argued) if argued else 'neither ground of the rule'}."
    if missing:
        words += f" Missing: {'; '.join(missing)}."
    return {
        "rule": "16 TAC 3.37",
        "well_name": asked["well_name"],
        "narrative": "\n\n".join(parts),
        "grounds": grounds,
        "facts_used": used,
        "facts_without_source": unsourced,
        "missing": missing,
        "summary": words,
    }
