"""tests/reruns.txt names every test that can be run again after a failure, and can only shrink."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import RERUNS
from tests.repo.committed import ROOT, files
from tests.soak import merged, rows

MOST = 35
"""The length of the list. Lower it when a test leaves the list; never raise it."""


def timed(path: str) -> Iterator[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    if "mark.timed" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if any("pytest.mark.timed" in mark for mark in marks):
                yield f"{path}::{node.name}"
        elif isinstance(node, ast.Assign):
            assert "mark.timed" not in ast.unparse(node.value), f"{path}: mark tests, not a module"


def test_the_list_of_reruns_names_the_marked_tests_and_only_shrinks() -> None:
    marked = [name for path in files() if path.startswith("tests/") and path.endswith(".py") for name in timed(path)]
    assert sorted(marked) == sorted(RERUNS)
    assert len(RERUNS) == MOST


CASE = '<testcase classname="tests.repo.test_x" name="{}" time="1"><system-out>{}</system-out>{}</testcase>'
CASES = [
    *(("test_slow", "p50 9"), ("test_slow", "p50 9\np50 2"), ("test_quiet", ""), ("test_shy", ""), ("test_shy", "")),
    *(("test_bad", "p50 7"), ("test_bad", "p50 7\np50 8", "<failure/>"), ("test_bad", "p50 7\np50 8", "<error/>")),
]


def test_a_measurement_reports_all_its_attempts_and_rows_of_gone_tests_are_dropped(tmp_path: Path) -> None:
    cases = "".join(CASE.format(*[*case, ""][:3]) for case in CASES)
    (tmp_path / "report.xml").write_text(f"<testsuite>{cases}</testsuite>")
    found = [[cell.strip() for cell in row.split("|")[2:6]] for row in rows(tmp_path / "report.xml", "now")]
    assert found == [
        ["slow", "passed, second of 2 attempts", "1.0", "attempt 1:<br>p50 9<br>attempt 2:<br>p50 2"],
        ["shy", "passed, second of 2 attempts", "1.0", ""],
        ["bad", "**failed**, second of 2 attempts", "1.0", "attempt 1:<br>p50 7<br>attempt 2:<br>p50 8"],
        ["others: 1", "passed", "1.0", ""],
    ]
    name = test_the_list_of_reruns_names_the_marked_tests_and_only_shrinks.__name__[5:]
    kept = [f"| repo.test_reruns | {name} | x |"]
    gone = ["| repo.test_reruns | no_such_test | x |", "| repo.test_gone | others: 3 | x |"]
    others = ["| repo.test_reruns | others: 2 | x |"]
    before = "\n".join([*gone, *kept, *others])
    assert [row for row in merged(before, []).split("\n") if row.endswith("| x |")] == [*kept, *others]
