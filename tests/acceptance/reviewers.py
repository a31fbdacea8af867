"""People who review in a terminal: each with a token of their own, on one really running stack."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.acceptance.command import Command, Ended
from tests.acceptance.running import ROOT

_MOST_SECONDS = 60.0
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who types commands."""

    perdure: Command
    token: str = field(repr=False)

    def __call__(self, *words: str, **environ: str) -> Ended:
        return self.perdure(*words, PERDURE_TOKEN=self.token, **environ)

    def process(self, *words: str) -> Ended:
        return self.perdure.process(*words, PERDURE_TOKEN=self.token)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return self.perdure.start(*words, PERDURE_TOKEN=self.token)


class Terminal:
    """A command on a terminal of its own, as a person sees it and types into it."""

    def __init__(self, perdure: Command, *words: str, **environ: str) -> None:
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *words],
            cwd=ROOT,
            env={**perdure.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40", **environ},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        self.seen = ""

    def until(self, pattern: str) -> str:
        """All that was written so far, escapes and carriage returns left out, once `pattern` stands in it."""
        deadline = time.monotonic() + _MOST_SECONDS
        while not re.search(pattern, self._plain(), re.DOTALL):
            ready = select.select([self._leader], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, self.seen
            try:
                self.seen += os.read(self._leader, 65_536).decode("utf-8", "replace")
            except OSError as error:  # the command has gone
                raise AssertionError(self.seen) from error
        return self._plain()

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def left(self) -> int:
        """The exit code, once it has ended."""
        while True:
            try:
                if not os.read(self._leader, 65_536):
                    break
            except OSError:
                break
        os.close(self._leader)
        return self.process.wait(_MOST_SECONDS)

    def _plain(self) -> str:
        return _ESCAPES.sub("", self.seen).replace("\r", "")
