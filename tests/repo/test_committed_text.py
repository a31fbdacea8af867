"""Texts that are not committed: an address of a package registry, a path of one machine, work left for later; and in
the engine no domain word, as content belongs to perdure/examples/. Words that mean nothing else are looked for
everywhere; words that English uses too (well, care, chart) only as parts of names and of strings that look like
names."""

import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.repo.committed import ENGINE, texts

_PUBLIC = ("pypi/org", "files.pythonhosted/org", "registry.npmjs/org", "proxy.golang/org", "index.docker/io")
"""Written with a slash, so that this file does not say them itself."""
_NAMED_BY = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "GOPROXY")
MACHINE_PATH = re.compile(
    r"(?<![\w.$}/-])/(?:root|work|workspace|(?:home|Users|mnt)/(?!somebody\b)\w+)(?=[/\s\"'`:),]|$)", re.MULTILINE
)
"""`somebody` is nobody: examples may live there."""
LATER = re.compile(r"\b(?:TO" "DO|FIX" "ME|X" "XX|HA" "CK)\\b")
_SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def registry_hosts() -> set[str]:
    """The public registries, and those that this machine is configured to use."""
    hosts = {name.replace("/", ".") for name in _PUBLIC}
    told = [os.environ.get(name, "") for name in _NAMED_BY]
    for option in ("global.index-url", "global.extra-index-url"):
        pip = [sys.executable, "-m", "pip", "config", "get", option]
        told.append(subprocess.run(pip, capture_output=True, text=True, timeout=60).stdout)
    for address in re.split(r"[\s,|]+", " ".join(told)):
        host = urlsplit(address).hostname
        if host and host not in ("localhost", "127.0.0.1"):
            hosts.add(host)
    return hosts


def naming(hosts: set[str]) -> re.Pattern[str]:
    """Finds one of these hosts, and not one whose name only ends or begins like it."""
    return re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(hosts))) + r")(?![\w.-]*\w)")


def said(pattern: re.Pattern[str], path: str, text: str) -> list[str]:
    return [
        f"{path}:{number} says {found.group()!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in pattern.finditer(line)
    ]


def bare_skips(path: str, text: str) -> Iterator[str]:
    """Skips of a test file that give no reason: a mark without `reason=`, a call without words."""
    if not any(name in text for name in _SKIPS):
        return
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type != tokenize.NL]
    for place, token in enumerate(tokens):
        if token.type != tokenize.NAME or token.string not in _SKIPS or tokens[place - 1].string != ".":
            continue
        if tokens[place - 2].string not in ("mark", "pytest", "unittest"):
            continue
        line = [each for each in tokens[place + 1 : place + 60] if each.start[0] <= token.start[0] + 6]
        called = line and line[0].string == "("
        words = any(each.type in (tokenize.STRING, getattr(tokenize, "FSTRING_START", -1)) for each in line)
        reasoned = words if tokens[place - 2].string == "pytest" else any(each.string == "reason" for each in line)
        if not (called and reasoned):
            yield f"{path}:{token.start[0]} skips without a reason: say why, or mend it"


def test_no_text_names_a_package_registry_a_path_of_one_machine_or_work_for_later() -> None:
    patterns = (naming(registry_hosts()), MACHINE_PATH, LATER)
    faults = [fault for path, text in texts() for pattern in patterns for fault in said(pattern, path, text)]
    assert not faults, "\n".join(faults)


def test_no_test_is_skipped_without_a_reason() -> None:
    faults = [fault for path, text in texts(".py", within=("tests",)) for fault in bare_skips(path, text)]
    assert not faults, "\n".join(faults)


_HOST = naming({"wheels.example"})
_SKIP = "def test_it(): ...\n"


@pytest.mark.parametrize(("found", "count"), [
    (said(_HOST, "a", "from https://wheels.example/simple it comes, index = wheels.example."), 2),
    (said(MACHINE_PATH, "a", "cd |root/.cache, HOME=\"|home/ann\" open('|work/main/a.py')".replace("|", "/")), 3),
    (said(MACHINE_PATH, "a", "|var/lib and |homestead and |home/somebody apps|work/x".replace("|", "/")), 0),
    ([*bare_skips("a.py", f"@pytest.mark.skip\n{_SKIP}")], 1),
    ([*bare_skips("a.py", f"@pytest.mark.skipif(True, reason='no Go here')\n{_SKIP}")], 0),
    ([*bare_skips("a.py", "def test_it():\n    pytest.skip('no Go here')\n    itertools.skip()\n")], 0),
])  # fmt: skip
def test_planted_text_is_found_and_nothing_else(found: list[str], count: int) -> None:
    assert len(found) == count


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
