"""The soak tier: repetitions, large data, long kills and measured times. `python -m tests.soak`

Runs one test after the other. Arguments are pytest's. The rows of each file that ran are written to
docs/figures/soak.md, which keeps those of other files; with `-k` they are printed. The exit status is pytest's.
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
RESULTS = ROOT / "docs" / "figures" / "soak.md"
HEAD = """# Soak

Written by `make soak`. The machine has {cores} cores and {gib:.0f} GiB, Python {python}. One test ran at a time, at
full size. What a test printed is its figure; `others` is what other programs used of the machine meanwhile. A test that
was rerun has the output of each attempt. Tests that passed at once and printed nothing share their file's last row.

| file | test | outcome | seconds | printed | run |
|---|---|---|---|---|---|
"""
FILE = re.compile(r"tests\.((?:\w+\.)*?test_\w+).*")
ATTEMPTS = ("", "", ", second of 2 attempts", ", third of 3 attempts")
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d |---|#x1B")


def rows(report: Path, run: str) -> Iterator[str]:
    """The table's rows of a report in JUnit's format; `run` says when and on which commit it was made."""
    tests: dict[tuple[str, str], list[ElementTree.Element]] = defaultdict(list)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        tests[case.get("classname", ""), case.get("name", "")].append(case)
    quiet: dict[str, list[float]] = defaultdict(list)
    for (classname, name), cases in tests.items():
        file, seconds, failed = FILE.sub(r"\1", classname), float(cases[-1].get("time", 0)), any(map(_failed, cases))
        attempts = [*(case for case in cases[:-1] if not _failed(case)), cases[-1]]  # only the last one can fail
        printed = _printed(attempts)
        if not failed and not printed and len(attempts) == 1:
            quiet[file].append(seconds)
            continue
        outcome = ("**failed**" if failed else "passed") + ATTEMPTS[len(attempts)]
        shown = name.removeprefix("test_").replace("|", "\\|")
        yield f"| {file} | {shown} | {outcome} | {seconds:.1f} | {printed} | {run} |"
    for file, times in quiet.items():
        yield f"| {file} | others: {len(times)} | passed | {sum(times):.1f} | | {run} |"


def _failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def _printed(attempts: list[ElementTree.Element]) -> str:
    """The output of all attempts; pytest repeats that of the earlier ones in each."""
    found: list[str] = []
    earlier = 0
    for number, case in enumerate(attempts, 1):
        lines = [line.strip() for line in (case.findtext("system-out") or "").split("\n")]
        lines = [line for line in lines if line and not LOGGED.match(line)]
        label = [f"attempt {number}:"] if len(attempts) > 1 and lines[earlier:] else []
        found += [*label, *lines[earlier:]]
        earlier = len(lines)
    return "<br>".join(found).replace("|", "\\|")


def merged(before: str, found: list[str]) -> str:
    """The whole document: the rows of tests that still exist stay, if their file did not run."""
    ran = {row.split(" | ")[0] for row in found}
    kept = [row for row in before.split("\n") if row.split(" | ")[0] not in ran and _test_exists(row)]
    head = HEAD.format(
        cores=psutil.cpu_count(), gib=psutil.virtual_memory().total / 2**30, python=platform.python_version()
    )
    return head + "\n".join(sorted([*kept, *found], key=lambda row: row.split(" | ")[0])) + "\n"


def _test_exists(row: str) -> bool:
    """Whether the row's test still exists; of a shared row, whether its file does."""
    file, test, *_ = [*row.removeprefix("| ").split(" | "), ""]
    path = (ROOT / "tests") / f"{file.replace('.', '/')}.py"
    if not path.is_file():
        return False
    return test.startswith("others: ") or f"def test_{test.partition('[')[0]}(" in path.read_text(encoding="utf-8")


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
