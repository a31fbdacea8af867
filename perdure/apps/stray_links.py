"""Links in an app folder that lead out of it: they would bring in what whoever reads the folder never saw."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perdure.apps.problems import AppProblem

READ = ("app.yaml", "agents", "tools", "skills", "personas", "rules", "data", "scripts", "mcp")
"""What of the folder is read; whatever else lies there is its author's own affair."""


def stray_links(folder: Path) -> Iterator[AppProblem]:
    """Each of them as a mistake; links that stay inside the folder are followed and are none."""
    root = os.path.realpath(folder)
    waiting = [folder / name for name in reversed(READ)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        if os.path.commonpath((root, real)) != root:
            yield AppProblem(path, None, "is a link that leads out of the app folder; put here what it leads to")
        elif path.is_dir() and real not in seen:
            seen.add(real)
            with suppress(OSError):  # a folder that cannot be listed has nothing that could be read
                waiting += sorted(path.iterdir(), reverse=True)
