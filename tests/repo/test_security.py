"""SECURITY.md: each claim names a test that exists, and each requirement of the chosen ASVS chapters has a row."""

import re

from tests.repo.committed import ROOT, files, text_of

SECURITY = (ROOT / "SECURITY.md").read_text()
TEST = re.compile(r"`((?:[\w]+/)*test_\w+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (\d\.\d+\.\d+) \| (\S+) \| (.*) \|$", re.MULTILINE)
LEVEL_2 = {
    "6.1": 3, "6.2": 12, "6.3": 4, "6.4": 4, "6.5": 5, "6.6": 3, "6.8": 4,
    "7.1": 3, "7.2": 4, "7.3": 2, "7.4": 5, "7.5": 2, "7.6": 2,
    "8.1": 2, "8.2": 3, "8.3": 1, "8.4": 1,
}  # fmt: skip
"""Requirements of level 1 and 2 by section, as ASVS 5.0 numbers them."""


def test_each_named_test_exists() -> None:
    named = TEST.findall(SECURITY)
    assert len(named) > 30
    known = {path.removeprefix("tests/"): text_of(path) for path in files() if path.startswith("tests/")}
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in known.get(file, "")]
    assert not missing


def test_each_requirement_has_one_row_with_evidence_or_a_named_gap() -> None:
    rows = [(number, status, evidence) for number, status, evidence in ROW.findall(SECURITY)]
    expected = [f"{section}.{each}" for section, most in LEVEL_2.items() for each in range(1, most + 1)]
    assert [number for number, _, _ in rows] == expected
    for number, status, evidence in rows:
        assert status in ("met", "partly", "gap", "n/a"), number
        assert status != "met" or TEST.search(evidence) or "](#" in evidence or "](docs/" in evidence, number
        assert len(evidence) > 10, number
