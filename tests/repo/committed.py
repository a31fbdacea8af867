"""The files of the project as they are committed, or would be: what git ignores is not among them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LAYERS = "activities api apps cli client contracts core graph local pages schemas sdk store telemetry temporal worker"
ENGINE = tuple(f"perdure/{each}" for each in (*_LAYERS.split(), "workflows"))
"""The packages that know no domain; perdure/examples/, bench/ and tests/ do."""


@cache
def files() -> tuple[str, ...]:
    list_all = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(list_all, cwd=ROOT, check=True, capture_output=True, text=True)
    return tuple(path for path in sorted(set(listed.stdout.split("\0"))) if path and (ROOT / path).is_file())


@cache
def text_of(path: str) -> str:
    """The text of a file; empty where it is no text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def texts(*endings: str, within: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(path, text) of the files with one of these endings, in these folders or files; no ending, no folder: all."""
    folders = tuple(f"{each}/" for each in within)
    for path in files():
        if (not endings or path.endswith(endings)) and (not within or path.startswith(folders) or path in within):
            yield path, text_of(path)


@cache
def imported(text: str) -> tuple[str, ...]:
    """Returns the dotted names that a module imports, at its top, in a function or for types: `from a import b` is
    `a.b`. A relative import is `.` and its name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names += (f"{'.' * node.level}{node.module or ''}.{each.name}" for each in node.names)
    return tuple(names)
