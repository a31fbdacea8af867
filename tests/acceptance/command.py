"""The `perdure` command as a user runs it: a process of its own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.running import ROOT

_MOST_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, read."""
        return json.loads(self.out)


class Command:
    """The command line of one data folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self.environ |= {"PERDURE_HOME": str(home), "PYTHONUNBUFFERED": "1"}

    def __call__(self, *words: str, **environ: str) -> Ended:
        """Run it to its end."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=_MOST_SECONDS)
        return Ended(process.returncode, out, err)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Run it beside the test."""
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", *words],
            cwd=ROOT,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pending(self, prompt: str) -> dict[str, Any]:
        """The approval that waits because somebody said `prompt`."""
        run = json.loads((self._home / "run.json").read_text())
        deadline = time.monotonic() + _MOST_SECONDS
        with httpx.Client(base_url=run["api"], headers={"Authorization": f"Bearer {run['tokens']['reviewer']}"}) as api:
            while time.monotonic() < deadline:
                found: list[dict[str, Any]] = api.get("/v1/approvals", params={"status": "pending"}).json()["items"]
                mine = [approval for approval in found if approval["prompt_excerpt"] == prompt]
                if mine:
                    return mine[0]
                time.sleep(0.05)
        raise AssertionError(f"no approval came for {prompt!r}")
