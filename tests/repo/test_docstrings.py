"""The exceptions that docstrings name after `Raises:` exist."""

import ast
import builtins
import re
from functools import cache

from tests.repo.committed import texts

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
