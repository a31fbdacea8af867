"""What a person sees of the demo: numbered steps with times, the streamed text, each kill with its pids."""

import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from cli.demo.claims import Claim
from cli.live_text import LiveText
from local.config import own_environ

_MARGIN = " " * 11
_BOLD, _DIM, _RED, _GREEN = "1", "2", "31", "32"


class Narrator:
    """One teller for the whole demo."""

    def __init__(self, stream: TextIO) -> None:
        self._live = LiveText(stream, terminal=False)
        self._stream = stream
        self._coloured = stream.isatty() and not own_environ().get("NO_COLOR")
        self._began = time.monotonic()
        self._steps = 0
        self._speaks = False

    def title(self, text: str) -> None:
        """The first line."""
        self._line(self._ink(text, _BOLD))

    def step(self, text: str) -> None:
        """A new part of the story."""
        self._steps += 1
        self._line("")
        self._line(self._ink(f"{self._time()} {self._steps}. {text}", _BOLD))

    def say(self, text: str) -> None:
        """A plain sentence."""
        self._line(_MARGIN + text)

    def now(self, text: str) -> None:
        """Something that happens at this moment."""
        self._line(f"{self._ink(self._time(), _DIM)} {text}")

    def killed(self, pids: Mapping[str, int], when: str) -> None:
        """A kill that has just been made."""
        named = ", ".join(f"{pid} ({role})" for role, pid in pids.items())
        self.now(self._ink(f"kill -9 {named}: {when}", _RED))

    def back(self, pids: Mapping[str, int]) -> None:
        """The supervisor has started them again."""
        self.now("back again under new pids: " + ", ".join(f"{pid} ({role})" for role, pid in pids.items()))

    def hear(self, text: str) -> None:
        """Streamed text, as it comes."""
        if not self._speaks:
            self._stream.write(_MARGIN + self._ink("┃ ", _DIM))
            self._speaks = True
        self._live.write(text)

    def quote(self, text: str) -> None:
        """What a command printed."""
        for line in text.splitlines():
            self._line(_MARGIN + self._ink("| ", _DIM) + line)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def claims(self, claims: Sequence[Claim]) -> None:
        """The table at the end."""
        width = max(len(claim.text) for claim in claims)
        for claim in claims:
            mark = self._ink("held  ", _GREEN) if claim.held else self._ink("FAILED", _RED)
            self._line(f"  {mark}  {claim.text:<{width}}   {self._ink(claim.evidence, _DIM)}")
        self._line("")

    def failed(self, text: str, logs: str) -> None:
        """What went wrong, and where to look."""
        self._line("")
        self._line(self._ink(text, _RED))
        if logs:
            self._line(f"The logs are kept in {logs}")

    def _line(self, text: str) -> None:
        if self._speaks:
            self._live.end()
            self._speaks = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def _time(self) -> str:
        return f"[{self.seconds:6.1f} s]"

    def _ink(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text
