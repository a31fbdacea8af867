"""Rules for tests: tests/reruns.txt names every test that can be run again after a failure, and can only shrink. No
test asserts the text of a message: codes, fields and ids are asserted, and a snapshot holds the text. A sentence that
stands in the file a second time is data of the test, such as a comment that comes back in a page."""

import ast
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from tests.conftest import RERUNS
from tests.repo.committed import ROOT, files, texts
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


SENTENCE = re.compile(r"[A-Za-z'’]{2,}(?:[,;:.]? [a-z'’]{2,}){3}")
SEARCHES = frozenset({"startswith", "endswith", "search", "match", "fullmatch", "count", "index", "find", "findall"})
_ROWS = Path(__file__).with_name("messages_left.tsv").read_text(encoding="utf-8").splitlines()
LEFT = {path: int(count) for count, path in (row.split("\t") for row in _ROWS)}
"""Files that still assert sentences, with the most that each can have."""
MOST_LEFT = 7
"""The sum of LEFT. It can only be lowered."""


def asserted(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what assertions compare and search for, and the patterns of expected exceptions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for each in ast.walk(node.test):
                if isinstance(each, ast.Compare):
                    yield from (each.left, *each.comparators)
                elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in SEARCHES:
                    yield from each.args
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def literals(node: ast.AST) -> Iterator[ast.Constant]:
    """Yields the strings in a value that is written out; what a call in it is given is no part of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif not isinstance(node, ast.Call):
        for each in ast.iter_child_nodes(node):
            yield from literals(each)


def faults(text: str) -> list[str]:
    """The lines and sentences of a test file that are asserted and nowhere put in."""
    tree = ast.parse(text)
    found = {id(each): each for part in asserted(tree) for each in literals(part)}
    others = (each for each in ast.walk(tree) if isinstance(each, ast.Constant) and id(each) not in found)
    put_in = "\n".join(str(each.value) for each in others)
    sentences = ((each.lineno, unescape(str(each.value))) for each in found.values())
    return [f"{line}: {said!r}" for line, said in sentences if SENTENCE.search(said) and said.strip() not in put_in]


def test_no_more_sentences_are_asserted_than_are_listed() -> None:
    found = {path: faults(text) for path, text in texts(".py", within=("tests",)) if "assert " in text}
    more = [f"{path}:{each}" for path, said in found.items() if len(said) > LEFT.get(path, 0) for each in said]
    assert not more, "\n".join(["assert a code, a field or an id; a snapshot holds the text:", *more])
    assert sum(LEFT.values()) <= MOST_LEFT


def test_an_asserted_sentence_is_found_unless_the_test_put_it_in() -> None:
    said = '"The queue is full"'
    for planted in (f"assert a.detail == {said}", f"assert a.startswith({said})", f"with raises(E, match={said}): ..."):
        assert len(faults(planted)) == 1
    for fine in (f"a.post({said})\nassert {said} in a.text", f"assert a == 1, {said}", f"assert ask({said}) == 1"):
        assert faults(fine) == []
