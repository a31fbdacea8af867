"""Docstrings name the exceptions that a function raises, and these exist. The names for apps and clients have one. A
folder has at most 20 siblings, a function at most 40 lines, a module at most 600."""

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

from tests.repo.committed import files, text_of, texts

_CLAUSE = re.compile(r"\bRaises: (.*?)(?:\n\s*\n|\Z)", re.DOTALL)
_NAME = re.compile(r"(?:(?<=Raises: )|(?<=; ))_?[A-Z]\w*[a-z]\w*|\b_?[A-Z][a-z]+[A-Z]\w+")


@cache
def known() -> frozenset[str]:
    """Names that perdure/ imports, defines or reads."""
    nodes = [node for _, text in texts(".py", within=("perdure",)) for node in ast.walk(ast.parse(text))]
    names = {getattr(node, part, None) for node in nodes for part in ("name", "attr", "id", "asname")}
    return frozenset({*dir(builtins), *filter(None, names)})


def faults(path: str, text: str) -> list[str]:
    docstrings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    clauses = [found.group() for each in docstrings if isinstance(each, str) for found in _CLAUSE.finditer(each)]
    return [f"{path}: {name}" for each in clauses for name in _NAME.findall(each) if name not in known()]


def test_the_exceptions_that_docstrings_name_exist() -> None:
    assert faults("planted", '"""Raises: NoSuchError; Gone."""') == ["planted: NoSuchError", "planted: Gone"]
    assert not [fault for path, text in texts(".py", within=("perdure",)) for fault in faults(path, text)]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHER_READERS = (
    "perdure/cli/", "perdure/pages/", "perdure/api/routes/", "perdure/apps/template/", "perdure/examples/",
)  # fmt: skip
"""Their docstrings are help texts, descriptions of the API, or texts that a model reads."""
_MODEL_READS = "perdure/activities/toolbox/engine_tools.py"
_BUGS = {"AssertionError", "NotImplementedError"}


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions of a module, and methods of its classes, whose names have no underscore."""
    for node in body:
        if isinstance(node, _FUNCTIONS) and not node.name.startswith("_"):
            yield node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)


def raised(node: ast.AST) -> Iterator[str]:
    """The classes that a function raises itself and does not handle; what inner functions raise is not among them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and isinstance(child.exc.func, ast.Name):
            yield child.exc.func.id
        elif not isinstance(child, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from raised(child)


def silent(path: str, text: str) -> list[str]:
    """Public functions that raise an exception and do not name any after `Raises`."""
    functions = public_functions(ast.parse(text).body)
    raising = [node for node in functions if {name for name in raised(node) if name[:1].isupper()} - _BUGS]
    return [f"{path}: {node.name}" for node in raising if "Raises" not in (ast.get_docstring(node) or "")]


def undocumented(path: str, text: str) -> list[str]:
    body = ast.parse(text).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    named = [*classes, *public_functions(body)]
    return [f"{path}: {node.name}" for node in named if not ast.get_docstring(node)]


def test_a_function_that_raises_an_exception_names_it() -> None:
    assert silent("planted", "def f():\n    raise KeyError(1)") == ["planted: f"]
    read = [(path, text) for path, text in texts(".py", within=("perdure",)) if not path.startswith(_OTHER_READERS)]
    found = [fault for path, text in read if path != _MODEL_READS for fault in silent(path, text)]
    # It handles its exception itself.
    assert found == ["perdure/core/calls/arguments.py: check_arguments"], found


def test_the_names_for_apps_and_clients_have_docstrings() -> None:
    assert undocumented("planted", "class A:\n    def f(self): ...") == ["planted: A", "planted: f"]
    within = ("perdure/client", "perdure/sdk", "perdure/schemas")
    assert not [fault for path, text in texts(".py", within=within) for fault in undocumented(path, text)]


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
