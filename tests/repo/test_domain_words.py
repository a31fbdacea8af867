"""Engine packages contain no domain word: content belongs to perdure/examples/.

Words that mean nothing else are looked for everywhere, comments and documents included. Words that English uses too
(well, care, chart) are looked for only as parts of names and of strings that look like names.
"""

import io
import re
import tokenize
from collections.abc import Iterator

from tests.repo.committed import ENGINE, texts

ANYWHERE = re.compile(
    r"\b(refund|filing|flaring|drilling|wellbore|wellhead|oilfield|permitting|clinical|clinician|patient|medication"
    r"|dosage|diagnosis|diagnoses|symptom|prescription|physician|nurse|hospital|triage|kubernetes|kubectl|jenkins"
    r"|argocd|dataviz|plotly|matplotlib|chargeback|merchant|regulatory|aegis|neura|skyflo|nveil)(s|es)?\b",
    re.IGNORECASE,
)
"""Of the five systems that the topologies come from, of the demo, and their names."""
AS_NAMES = frozenset(
    {"chart", "plot", "skeleton", "lease", "permit", "drug", "dose", "doctor", "pod", "helm", "argo", "invoice"}
    | {"payment", "payout", "customer", "shipment", "dataset", "dashboard", "incident", "refund", "filing"}
)
"""In the singular; the plural counts too."""
IN_PAIRS = frozenset({"well", "care", "ops", "order"})
"""Names of a domain only beside another word: `well_id` and `OrderLine`, not `well`, nor `entry_order`."""
EXEMPT = ("perdure/cli/demo/",)
"""The demo shows an app."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAME_LIKE = re.compile(r"[A-Za-z][A-Za-z0-9]*([_/:-][A-Za-z0-9]+)*\Z")


def engine_texts(*endings: str) -> Iterator[tuple[str, str]]:
    return ((path, text) for path, text in texts(*endings, within=ENGINE) if not path.startswith(EXEMPT))


def names_in_sql(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every word of a migration, its comments left out."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]+", line.partition("--")[0]):
            yield number, name


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every identifier in Python, and of every string that could be one."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING:
            inside = token.string.strip("rbfuRBFU").strip("\"'")
            if _NAME_LIKE.match(inside):
                yield token.start[0], inside


def faults_anywhere(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number} says {match.group()!r}: what knows a domain belongs to perdure/examples/"
        for number, line in enumerate(text.splitlines(), 1)
        for match in ANYWHERE.finditer(line.replace("_", " "))
    ]


def of_a_domain(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if AS_NAMES.intersection(words) or AS_NAMES.intersection(word.removesuffix("s") for word in words):
        return True
    return len(words) > 1 and (words[0] in IN_PAIRS or words[0].removesuffix("s") in IN_PAIRS)


def faults_in_names(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number} has the name {name!r}: what knows a domain belongs to perdure/examples/"
        for number, name in (names_in_sql if path.endswith(".sql") else names_in)(text)
        if of_a_domain(name)
    ]


def test_no_text_and_no_name_of_the_engine_contains_a_word_of_a_domain() -> None:
    faults = [fault for path, text in engine_texts() for fault in faults_anywhere(path, text)]
    faults += [fault for path, text in engine_texts(".py", ".sql") for fault in faults_in_names(path, text)]
    assert not faults, "\n".join(faults)


def test_a_word_of_a_domain_is_found_and_english_is_not() -> None:
    for line in ("# for a refund", "def patient_context(): ...", "PLOTLY = 1"):
        assert faults_anywhere("a.py", line)
    for line in ("well_id = 1", "class OrderLine: ...", "x = {'well_id': 1}", "a = 'payments'"):
        assert faults_in_names("a.py", line)
    assert not faults_in_names("a.py", "well = entry_order = 1  # with care\nfarewell = say('All is well')")
    assert len(faults_in_names("a.sql", "id uuid,  -- well, an id\n  well_id uuid) -- ORDER BY")) == 1
