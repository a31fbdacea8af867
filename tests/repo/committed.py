"""The files of the project as they are committed, or would be: what git ignores is not among them. The modules that a
process loads: name and file of each, as a separate process reports them."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
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


PROGRAMS = {
    "worker": ("perdure.worker.__main__", "perdure.worker.queues", "perdure.workflows.turn_run"),
    "relay": ("perdure.worker.__main__", "perdure.telemetry.metrics", "perdure.worker.telemetry"),
    "api": ("perdure.api.__main__",), "cli": ("perdure.__main__",), "bootstrap": ("perdure.apps.bootstrap",),
    "stack": ("perdure.local", "perdure.local.stack", "perdure.local.fork_server", "perdure.local.temporal_download"),
    "helpers": ("perdure.api.content_check", "perdure.sdk.tables.isolated_program", "perdure.telemetry.heartbeat"),
    "sandbox": ("perdure.activities.sandbox.worker",),
}  # fmt: skip
"""The imports of each process at its start, and later."""
_SAY = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({name: str(getattr(module, "__file__", None) or "") for name, module in [*sys.modules.items()]}))
"""


def said(arguments: list[str], folder: Path, **environ: str) -> str:
    """The output of a program, started in `folder` with little of this process's environment."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "SYSTEMROOT") if name in os.environ}
    ended = subprocess.run(
        arguments, cwd=folder, env=kept | environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, f"{arguments}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def loaded(modules: tuple[str, ...], folder: Path, **environ: str) -> dict[str, Path]:
    """Returns the modules and files of a process in `folder`, first on its path, that imports these."""
    lines = said([sys.executable, "-c", _SAY, *modules], folder, **environ).splitlines()
    found: Mapping[str, str] = json.loads(lines[-1])
    return {name: Path(file) for name, file in found.items() if file}


def doubles(loaded: Mapping[str, Path]) -> dict[str, list[str]]:
    """Files that are loaded under several names, by file; `__main__` is any module's second name."""
    by_file: dict[str, list[str]] = {}
    for name, file in loaded.items():
        if name != "__main__":
            by_file.setdefault(os.path.realpath(file), []).append(name)
    return {file: sorted(names) for file, names in by_file.items() if len(names) > 1}
