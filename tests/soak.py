"""The soak tier: repetitions, large data, long kills and measured times. `python -m tests.soak`

Runs one test after the other. Arguments are pytest's. The rows of each file that ran are written to
docs/figures/soak.md, where those of other files stay; with `-k` they are printed. The exit status is pytest's.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.scale import FULL_VARIABLE

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RESULTS = ROOT / "docs" / "figures" / "soak.md"
HEAD = """# Soak

Written by `make soak`. The machine has {cores} cores and {gib:.0f} GiB, Python {python}. One test ran at a time, at
full size. What a test printed is its figure; `others` is what other programs used of the machine meanwhile. Tests that
passed and printed nothing share the last row of their file.

| file | test | outcome | seconds | printed | run |
|---|---|---|---|---|---|
"""
FILE = re.compile(r"tests\.((?:\w+\.)*?test_\w+).*")
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d |---|#x1B")


def rows(report: Path, run: str) -> Iterator[str]:
    """The table's rows of a report in JUnit's format; `run` says when and on which commit it was made."""
    cases = {  # of a test that was run again, the last
        (FILE.sub(r"\1", case.get("classname", "")), case.get("name", "")): case
        for case in ElementTree.parse(report).getroot().iter("testcase")
    }
    quiet: dict[str, list[float]] = defaultdict(list)
    for (file, name), case in cases.items():
        failed = case.find("failure") is not None or case.find("error") is not None
        seconds = float(case.get("time", 0))
        lines = [line.strip() for line in (case.findtext("system-out") or "").split("\n")]
        printed = "<br>".join(line for line in lines if line and not LOGGED.match(line)).replace("|", "\\|")
        if not failed and not printed:
            quiet[file].append(seconds)
            continue
        shown = name.removeprefix("test_").replace("|", "\\|")
        yield f"| {file} | {shown} | {'**failed**' if failed else 'passed'} | {seconds:.1f} | {printed} | {run} |"
    for file, times in quiet.items():
        yield f"| {file} | others: {len(times)} | passed | {sum(times):.1f} | | {run} |"


def merged(before: str, found: list[str]) -> str:
    """The whole document: the rows of files that are still there and did not run stay."""
    ran = {row.split(" | ")[0] for row in found}
    there = {f"| {'.'.join(path.relative_to(TESTS).with_suffix('').parts)}" for path in TESTS.rglob("test_*.py")}
    kept = [row for row in before.split("\n") if row.split(" | ")[0] in there - ran]
    head = HEAD.format(
        cores=psutil.cpu_count(), gib=psutil.virtual_memory().total / 2**30, python=platform.python_version()
    )
    return head + "\n".join(sorted([*kept, *found], key=lambda row: row.split(" | ")[0])) + "\n"


def main(arguments: list[str]) -> int:
    git = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak or sized"]
        command += ["-o", "junit_logging=system-out", f"--junitxml={report}", *arguments]
        code = subprocess.call(command, cwd=ROOT, env={**os.environ, FULL_VARIABLE: "full"})
        if report.exists():
            found = [*rows(report, f"{datetime.now(UTC):%Y-%m-%d} {commit}")]
            if "-k" in arguments:
                print("\n".join(found))
            else:
                RESULTS.parent.mkdir(exist_ok=True)
                before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
                RESULTS.write_text(merged(before, found), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
