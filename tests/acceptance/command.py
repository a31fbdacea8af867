"""The `perdure` command against a running stack, in the test's process or in its own.

A process of its own costs a second of CPU for its imports. Tests of terminals, signals and races need one.
"""

import io
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from perdure.__main__ import run
from tests.acceptance.running import ROOT

_MOST_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self.environ |= {"PERDURE_HOME": str(home), "PYTHONUNBUFFERED": "1"}

    def __call__(self, *words: str, **environ: str) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, {**self.environ, **environ}, clear=True),
            patch("sys.stdin", io.StringIO()),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = run(list(words))
        return Ended(code, out.getvalue(), err.getvalue())

    def process(self, *words: str, **environ: str) -> Ended:
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=_MOST_SECONDS)
        return Ended(process.returncode, out, err)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", *words],
            cwd=ROOT,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_file(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._home / "run.json").read_text())
        return found

    def pending(self, prompt: str) -> dict[str, Any]:
        """The approval that waits because somebody said `prompt`."""
        run = self.run_file()
        deadline = time.monotonic() + _MOST_SECONDS
        with httpx.Client(base_url=run["api"], headers={"Authorization": f"Bearer {run['tokens']['reviewer']}"}) as api:
            while time.monotonic() < deadline:
                found: list[dict[str, Any]] = api.get("/v1/approvals", params={"status": "pending"}).json()["items"]
                mine = [approval for approval in found if approval["prompt_excerpt"] == prompt]
                if mine:
                    return mine[0]
                time.sleep(0.05)
        raise AssertionError(f"no approval came for {prompt!r}")
