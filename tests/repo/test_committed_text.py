"""Texts that are not committed: an address of a package registry, a path of one machine, work left for later."""

import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.repo.committed import texts

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
