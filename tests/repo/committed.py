"""The files of the project as they are committed, or would be: what git ignores is not among them."""

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = (
    "activities",
    "api",
    "cli",
    "contracts",
    "graph",
    "local",
    "perdure",
    "policy",
    "relay",
    "reviewer",
    "store",
    "tracing",
    "workflows",
)
"""The packages that know no domain; apps/, bench/ and tests/ do."""


@cache
def files() -> tuple[str, ...]:
    """Paths from the root of the checkout, in order."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(path for path in sorted(set(listed.stdout.split("\0"))) if path and (ROOT / path).is_file())


@cache
def text_of(path: str) -> str:
    """The text of a file; empty where it is no text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def texts(*endings: str, within: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(path, text) of the files with one of these endings, in these top folders; no ending, no folder: all."""
    for path in files():
        if (not endings or path.endswith(endings)) and (not within or path.split("/")[0] in within):
            yield path, text_of(path)
