"""The soak tier: repetitions, large data, long kills and measured times. `python -m tests.soak`

Runs one test after the other. Arguments are pytest's: files, or `-k NAME`. Without any, writes what each test printed,
with its time, to docs/figures/soak.md; else prints it. The exit status is pytest's.
"""

import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.scale import FULL_VARIABLE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "figures" / "soak.md"
HEAD = """# Soak

Written by `make soak` on {date}, commit {commit}: {cores} cores, {gib:.0f} GiB, Python {python}. One test ran at a
time, at full size. What a test printed is its figure; `others` is what other programs used of the machine meanwhile.

| test | outcome | seconds | printed |
|---|---|---|---|
"""


def rows(report: Path) -> Iterator[str]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        name = f"{case.get('classname', '').removeprefix('tests.')}: {case.get('name')}"
        printed = (case.findtext("system-out") or "").strip().replace("|", "\\|").split("\n")
        shown = "<br>".join(line.strip() for line in printed if line.strip() and not line.startswith("---"))
        outcome = "**failed**" if failed else "passed"
        yield f"| {name.replace('|', chr(92) + '|')} | {outcome} | {float(case.get('time', 0)):.1f} | {shown} |"


def head() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return HEAD.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit.strip() or "unknown",
        cores=psutil.cpu_count(),
        gib=psutil.virtual_memory().total / 2**30,
        python=platform.python_version(),
    )


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak or sized"]
        command += ["-o", "junit_logging=system-out", f"--junitxml={report}", *arguments]
        code = subprocess.call(command, cwd=ROOT, env={**os.environ, FULL_VARIABLE: "full"})
        if report.exists():
            table = head() + "\n".join(rows(report)) + "\n"
            if arguments:
                print(table)
            else:
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(table, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
