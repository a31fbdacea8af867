"""A folder has at most 20 siblings, a function at most 40 lines, a module at most 600."""

import ast
from collections import Counter
from pathlib import PurePosixPath

from tests.repo.committed import files, text_of

MOST_SIBLINGS = 20
MOST_IN_ROOT = 22
"""`perdure/` itself: the layers."""
MOST_FUNCTION_LINES = 40
MOST_MODULE_LINES = 600
PRODUCT = ("perdure/", "bench/", "deploy/", "worker.py")
GROWING = frozenset({"perdure/store/migrations/versions"})
"""One file for each change of the schema, and none is ever merged into another."""
NO_SIBLING = "__init__.py"
"""Makes its folder a package."""


def product() -> list[str]:
    """The Python files of the product; a code block of a skill is one function by its format."""
    return [path for path in files() if path.endswith(".py") and path.startswith(PRODUCT) and "/blocks/" not in path]


def crowded(paths: list[str]) -> list[str]:
    siblings: Counter[str] = Counter()
    seen: set[PurePosixPath] = set()
    for path in map(PurePosixPath, paths):
        for each in (path, *path.parents):
            if each not in seen and each.name != NO_SIBLING and each != PurePosixPath("."):
                siblings[str(each.parent)] += 1
            seen.add(each)
    most = {"perdure": MOST_IN_ROOT}
    found = {folder: count for folder, count in siblings.items() if folder not in GROWING}
    return [f"{folder} has {count}" for folder, count in found.items() if count > most.get(folder, MOST_SIBLINGS)]


def long_functions(path: str, text: str) -> list[str]:
    found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(each.name, (each.end_lineno or each.lineno) - each.lineno + 1) for each in found]
    return [f"{path}: {name} has {lines} lines" for name, lines in lengths if lines > MOST_FUNCTION_LINES]


def test_no_folder_is_crowded_and_no_function_or_module_too_long() -> None:
    assert not crowded(product()), "cut it along its meaning"
    assert not [each for path in product() for each in long_functions(path, text_of(path))], "cut it along its meaning"
    lengths = {path: len(text_of(path).splitlines()) for path in product()}
    assert not [path for path, lines in lengths.items() if lines > MOST_MODULE_LINES], "make it a folder"
