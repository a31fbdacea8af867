"""The `perdure` command against a running stack, in the test's process or a separate one."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from perdure.__main__ import run
from perdure.client import Client
from tests.acceptance.running import ROOT
from tests.eventually import wait_until

_MOST_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def shell_output(line: str, **given: Any) -> str:
    """What a line typed into a shell prints. Raises AssertionError if it fails."""
    command = ["/bin/sh", "-c", line]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=90, **given
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Command:
    """The commands of one user at the stack in `home`; `environ` can name the token."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self.environ |= {"PERDURE_HOME": str(home), "PYTHONUNBUFFERED": "1", **environ}

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

    def start(self, *words: str) -> "Started":
        return Started(
            [sys.executable, "-m", "perdure", *words], cwd=ROOT, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def client(self) -> Client:
        """The requester's."""
        run = json.loads((self.home / "run.json").read_text())
        return Client(run["api"], run["tokens"]["requester"])

    def waiting(self, prompt: str, count: int) -> list[dict[str, Any]]:
        """The pending approvals of the prompt `prompt`, once there are so many."""

        def pending() -> list[dict[str, Any]]:
            items = self("approvals", "list", "--json", PERDURE_TOKEN="").json["items"]
            of_prompt = [approval for approval in items if approval["prompt_excerpt"] == prompt]
            return of_prompt if len(of_prompt) == count else []

        return wait_until(pending, _MOST_SECONDS, f"never {count} approvals for {prompt!r}")

    def pending(self, prompt: str) -> dict[str, Any]:
        (approval,) = self.waiting(prompt, 1)
        return approval


class Started(subprocess.Popen[str]):
    def wait_ended(self) -> Ended:
        out, err = self.communicate(timeout=_MOST_SECONDS)
        return Ended(self.returncode, out, err)
