"""The modules that a process loads: name and file of each, as a separate process reports them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = {
    "worker": ("perdure.worker.__main__", "perdure.worker.queues", "perdure.workflows.turn_run"),
    "relay": ("perdure.worker.__main__", "perdure.telemetry.metrics", "perdure.worker.telemetry"),
    "api": ("perdure.api.__main__",),
    "cli": ("perdure.__main__",),
    "bootstrap": ("perdure.apps.bootstrap",),
    "stack": ("perdure.local", "perdure.local.stack", "perdure.local.fork_server", "perdure.local.temporal_download"),
    "helpers": ("perdure.api.content_check", "perdure.sdk.tables.isolated_program", "perdure.telemetry.heartbeat"),
    "sandbox": ("perdure.activities.sandbox.worker",),
}
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
