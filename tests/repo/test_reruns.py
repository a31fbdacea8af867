"""tests/reruns.txt names every test that may be run again after a failure, and may only shrink."""

import ast
from collections.abc import Iterator

from tests.conftest import RERUNS
from tests.repo.committed import ROOT, files

MOST = 42
"""The length of the list. Lower it when a test leaves the list; never raise it."""


def timed(path: str) -> Iterator[str]:
    """The tests of a file that are marked `timed`."""
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


def test_the_list_names_the_marked_tests_and_only_shrinks() -> None:
    marked = [name for path in files() if path.startswith("tests/") and path.endswith(".py") for name in timed(path)]
    assert sorted(marked) == sorted(RERUNS)
    assert len(RERUNS) == MOST
