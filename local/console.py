"""What the terminal shows: calm lines of the supervisor, prefixed lines of the children, one live line while it builds.

Every line of a child is in its log file as well; the terminal may be gone (a closed pipe) and nothing else stops.
"""

import shutil
import time
from collections.abc import Mapping
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_ROLE_WIDTH = 16
_PLAIN_LIVE_SECONDS = 15.0
"""How often the live line is repeated where it cannot be overwritten."""


class Console:
    """One writer for everything a person sees; without a stream it is silent."""

    def __init__(self, stream: TextIO | None, environ: Mapping[str, str] | None = None) -> None:
        self._stream = stream
        self._tty = bool(stream is not None and stream.isatty())
        self._coloured = self._tty and not (environ or {}).get("NO_COLOR")
        self._roles: dict[str, int] = {}
        self._live = ""
        self._live_at = 0.0

    def say(self, text: str = "") -> None:
        """One line of the supervisor itself."""
        self._write(f"{text}\n")

    def part(self, role: str, state: str, seconds: float | None = None, detail: str = "") -> None:
        """One line about one part: `postgres  ready  0.9 s  127.0.0.1:24513`."""
        took = "" if seconds is None else f"{seconds:.1f} s"
        self.say(f"  {role:<{_ROLE_WIDTH}} {state:<6} {took:>7}   {detail}".rstrip())

    def child(self, role: str, line: str) -> None:
        """One line that a child wrote, or that is about a child."""
        prefix = f"{role:<{_ROLE_WIDTH}} |"
        if self._coloured:
            colour = _COLOURS[self._roles.setdefault(role, len(self._roles)) % len(_COLOURS)]
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self._write(f"{prefix} {line}\n")

    def live(self, text: str) -> None:
        """Progress that replaces the progress before it; without a terminal, a line now and then."""
        now = time.monotonic()
        if self._tty:
            self._write("", live=text[: shutil.get_terminal_size().columns - 1])
        elif now - self._live_at >= _PLAIN_LIVE_SECONDS:
            self._live_at = now
            self.say(text)

    def _write(self, text: str, live: str | None = None) -> None:
        if self._stream is None:
            return
        shown = self._live if live is None else live
        if text and live is None:
            shown = ""
        try:
            if self._live:
                self._stream.write("\r\x1b[2K")
            self._stream.write(text + shown)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
        self._live = shown
